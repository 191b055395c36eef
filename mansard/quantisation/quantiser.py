"""Static quantisation of a float Graph: ranges from calibration data, integers, and what they cost.

The Graph is canonical then, so that it does not matter which framework it came from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mansard.api.quantization import REPORT, LayerReport, QuantizationReport
from mansard.errors import CompileError
from mansard.ir.graph import Graph
from mansard.ir.types import Value
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import quantisable_steps
from mansard.quantisation.calibration import Calls, Runner, rows
from mansard.quantisation.errors import Distances
from mansard.quantisation.layers import Layer, Point, operations, parallel_axes, select
from mansard.quantisation.norms import normalised
from mansard.quantisation.options import StaticOptions
from mansard.quantisation.parameters import Parameters, Weight, quantised_weight
from mansard.quantisation.ranges import Observer
from mansard.quantisation.rewrite import integer_graph
from mansard.quantisation.smoothing import Basis, smoothed
from mansard.quantisation.switched import Group, groups, sensitivities

Progress = Callable[[str, int, int], None]


def quantise_graph(
    imported: Graph, data: Any, options: StaticOptions, progress: Progress | None = None
) -> tuple[Graph, QuantizationReport]:
    """The integer graph of an imported float graph, and the report.

    Raises InputError for data that does not fit, CompileError for a model without products to quantise.
    """
    calls = Calls(imported, data)
    graph = run_passes(imported, quantisable_steps())
    rows = normalised(graph)
    scaled: tuple[Basis, ...] = ()
    if options.smoothing is not None:
        graph, scaled = smoothed(graph, calls.items, options.smoothing)
    return _Quantiser(graph, calls, options, progress, rows.keys(), scaled).run()


class _Quantiser:
    def __init__(
        self,
        graph: Graph,
        calls: Calls,
        options: StaticOptions,
        progress: Progress | None,
        rows: Collection[Value],
        scaled: Sequence[Basis],
    ) -> None:
        """``rows`` are the values whose rows norms divide, ``scaled`` those whose channels have scales."""
        self.graph, self.calls, self.options, self.rows = graph, calls.items, options, rows
        self.scaled = scaled
        self.progress = progress or (lambda stage, done, total: None)
        self.selection = select(
            graph,
            keep=options.keep,
            attention=options.attention,
            everywhere=options.everywhere,
            scaled=frozenset(value for basis in scaled for value in basis.values),
        )
        if not self.selection.layers:
            left = "; ".join(f"{x.name}: {x.reason}" for x in self.selection.left)
            raise CompileError(
                f"the model has no product that can be quantised{f' ({left})' if left else ''}"
            )
        self.sensitivity: dict[Layer, float] = {}
        self.wide_points: set[Point] = set()

    def run(self) -> tuple[Graph, QuantizationReport]:
        layers = self.selection.layers
        watched = [*(p.value for p in self.selection.points), *self._results()]
        with Runner(self.graph, watched) as runner:
            observers = self._observe(runner)
            weights = _weights(self.graph, layers)
            precisions = self._precisions(observers, weights)
            graph = self._rewritten(observers, weights, precisions)
            distances = self._compare(runner, graph)
        report = self._report(graph, precisions, distances)
        notes = {"quantisation": f"{self.options.scheme}, calibrated", REPORT: report.to_json()}
        return replace(graph, notes={**graph.notes, **notes}), report

    def _results(self) -> list[Value]:
        """The results of all products."""
        return [*(x.output for x in self.selection.layers), *(x.op.output for x in self.selection.left)]

    def _observe(self, runner: Runner) -> dict[Value, Observer]:
        observers = {p.value: Observer(rows=p.value in self.rows) for p in self.selection.points}
        for number, call in enumerate(self.calls):
            self.progress("calibrate", number, len(self.calls))
            _, values = runner.run(call)
            for value, observer in observers.items():
                observer.see(values[value], value.name)
        return observers

    def _parameters(
        self, observers: Mapping[Value, Observer], precision: Mapping[Point, str]
    ) -> dict[Point, Parameters]:
        return {
            point: observers[point.value].parameters(
                self.options.ranges,
                self.options.dtype(kind, symmetric=point.symmetric),
                symmetric=point.symmetric,
            )
            for point, kind in precision.items()
        }

    # Precision of layers ------------------------------------------------------------------------
    def _precisions(
        self, observers: Mapping[Value, Observer], weights: Mapping[Layer, Weight]
    ) -> dict[Layer, str]:
        """The precision of each layer. Sets ``wide_points``, whose errors are above the usual one of a layer:
        results between layers cost no multiply-adds."""
        layers = self.selection.layers
        if self.options.scheme != "mixed":
            kind = "int16" if self.options.scheme == "int16" else "int8"
            return dict.fromkeys(layers, kind)
        members = groups(layers)
        inputs = {p: "int8" for layer in layers for p in layer.points if p is not None}
        others = [p for p in self.selection.others if p not in inputs]
        self.progress("sensitivity", 0, 1)
        parameters = self._parameters(observers, {**inputs, **dict.fromkeys(others, "int8")})
        measured = sensitivities(self.graph, members, others, parameters, weights, self.calls)
        groups_, points = measured[: len(members)], measured[len(members) :]
        self.sensitivity = {x: s for group, s in zip(members, groups_, strict=True) for x in group}
        usual = math.fsum(s * s for s in groups_) / len(groups_)
        self.wide_points = {p for p, s in zip(others, points, strict=True) if s * s > usual}
        wide = widened(members, groups_, self.options.budget, self.options.target_error)
        return {layer: self.options.wide if layer in wide else "int8" for layer in layers}

    def _rewritten(
        self,
        observers: Mapping[Value, Observer],
        weights: Mapping[Layer, Weight],
        precisions: Mapping[Layer, str],
    ) -> Graph:
        default = "int16" if self.options.scheme == "int16" else "int8"
        points = dict.fromkeys(self.selection.others, default)
        points.update(dict.fromkeys(self.wide_points, self.options.wide))
        points = {p: kind for p, kind in points.items() if kind != "float"}
        for layer, kind in precisions.items():
            if kind != "float":
                points.update({p: kind for p in layer.points if p is not None})
        floats = {layer for layer, kind in precisions.items() if kind == "float"}
        parameters = self._parameters(observers, points)
        return integer_graph(self.graph, self.selection, parameters, weights, floats)

    # Results ------------------------------------------------------------------------------------
    def _compare(self, runner: Runner, graph: Graph) -> Distances:
        outputs = self._results()
        distances = Distances(outputs)
        with Runner(graph, outputs) as quantised:
            for number, call in enumerate(self.calls):
                self.progress("compare", number, len(self.calls))
                wanted, wanted_values = runner.run(call)
                given, given_values = quantised.run(call)
                distances.add(given, wanted, given_values, wanted_values)
        return distances

    def _report(
        self, graph: Graph, precisions: Mapping[Layer, str], distances: Distances
    ) -> QuantizationReport:
        reports = [
            LayerReport(
                layer.name,
                kind,
                layer.operations,
                distances.values[layer.output].relative,
                self.sensitivity.get(layer),
                "" if kind == "int8" or self.options.scheme == "int16" else "sensitive",
            )
            for layer, kind in precisions.items()
        ]
        reports += [
            LayerReport(
                x.name,
                "float",
                operations(x.op),
                distances.values[x.op.output].relative,
                reason=x.reason,
            )
            for x in self.selection.left
        ]
        return QuantizationReport(
            self.options.scheme,
            self.options.ranges,
            sum(rows(call) for call in self.calls),
            tuple(reports),
            distances.outputs.relative,
            distances.agreement,
            len(self.wide_points),
            _bytes(self.graph),
            _bytes(graph),
            self.options.smoothing,
            len(self.scaled),
        )


def widened(
    members: Sequence[Group], found: Sequence[float], budget: float, target: float | None
) -> set[Layer]:
    """The layers that get more bits: those whose error by multiply-add is largest, within ``budget`` of all
    multiply-adds, until the others' errors, taken as independent, stay below ``target``."""
    operations = [sum(layer.operations for layer in group) for group in members]
    left = budget * sum(operations)
    remaining = math.fsum(s * s for s in found)
    order = sorted(range(len(members)), key=lambda i: found[i] ** 2 / max(operations[i], 1), reverse=True)
    wide: set[Layer] = set()
    for i in order:
        if target is not None and remaining <= target * target:
            break
        if operations[i] <= left and found[i] > 0:
            left -= operations[i]
            remaining -= found[i] ** 2
            wide.update(members[i])
    return wide


def _weights(graph: Graph, layers: Sequence[Layer]) -> dict[Layer, Weight]:
    """The weights of layers; layers that read one constant alike share one."""
    known: dict[tuple[object, ...], Weight] = {}
    keys: set[str] = set()
    weights = {}
    for layer in layers:
        if layer.weight is None:
            continue
        value, parallel = layer.op.inputs[layer.weight], parallel_axes(layer.op, layer.weight)
        if (value, parallel) not in known:
            weight = quantised_weight(graph, layer)
            key = weight.key if weight.key not in keys else f"{weight.key}.{len(keys)}"
            keys.add(key)
            known[value, parallel] = replace(weight, key=key)
        weights[layer] = known[value, parallel]
    return weights


def _bytes(graph: Graph) -> int:
    sizes = (v.type.bytes for v in graph.constants)
    return sum(size for size in sizes if isinstance(size, int))
