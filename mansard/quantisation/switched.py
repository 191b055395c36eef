"""A Graph whose layers are quantised or not, as an input of each call says: one compilation measures all.

A group of layers (those that share inputs) has an element of ``switches``, and so has a point that is no
layer's input. Before::

    %y = generic (…) add {%x[…] * %w[…]}

After::

    %q = generic (…) {select(%switches[3] > 0.0,
                             (min(max(round(%x[…] * 38.6) + 3.0, 0.0), 255.0) - 3.0) * 0.0259, %x[…])}
    %a = generic (…) add {%q[…] * %w[…]}
    %b = generic (…) add {%q[…] * %w.change[…]}         what rounding the weight adds to it
    %y = generic (…) {%a[…] + %switches[3] * %b[…]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mansard.analysis.operands import renamed
from mansard.dtypes import DType
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.interpreter.graph import load
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Arg, Const, Scalar
from mansard.ir.types import Constant, IndexMap, Linear, TensorType, Value
from mansard.quantisation.calibration import Runner, rows
from mansard.quantisation.errors import Distance
from mansard.quantisation.layers import Layer, Point
from mansard.quantisation.parameters import LIMITS, Array, Parameters, Weight

F32 = DType.F32
SAMPLES = 4
"""Samples of the calibration data that measure a group, or one call."""
Group = tuple[Layer, ...]


def groups(layers: Sequence[Layer]) -> list[Group]:
    """Layers by the points that they share."""
    of: dict[Point, list[Layer]] = {}
    for layer in layers:
        merged = [layer]
        for point in layer.points:
            if point is not None:
                merged = [*(x for x in of.get(point, []) if x not in merged), *merged]
        for member in merged:
            of.update({p: merged for p in member.points if p is not None})
    distinct = {id(members): members for members in of.values()}
    return [tuple(members) for members in distinct.values()]


def sensitivities(
    graph: Graph, members: Sequence[Group], points: Sequence[Point],
    parameters: Mapping[Point, Parameters], weights: Mapping[Layer, Weight],
    calls: Sequence[Sequence[Array]],
) -> list[float]:  # fmt: skip
    """The relative L2 distance of the outputs when one group, or then one point, alone is quantised."""
    switched = switched_graph(graph, members, points, parameters, weights)
    count = len(members) + len(points)
    distances = [Distance() for _ in range(count)]
    with Runner(switched, ()) as runner:
        for call in _first(calls):
            wanted, _ = runner.run([*call, np.zeros(count, np.float32)])
            for number, distance in enumerate(distances):
                given, _ = runner.run([*call, np.eye(count, dtype=np.float32)[number]])
                for a, b in zip(given, wanted, strict=True):
                    distance.add(a, b)
    return [distance.relative for distance in distances]


def _first(calls: Sequence[Sequence[Array]]) -> Sequence[Sequence[Array]]:
    """The first calls, with enough samples."""
    sizes = [rows(call) for call in calls]
    return calls[: next((i for i in range(1, len(calls)) if sum(sizes[:i]) >= SAMPLES), len(calls))]


def switched_graph(
    graph: Graph, members: Sequence[Group], points: Sequence[Point],
    parameters: Mapping[Point, Parameters], weights: Mapping[Layer, Weight],
) -> Graph:  # fmt: skip
    """The graph with ``switches`` as its last input."""
    return _Switcher(graph, members, points, parameters, weights).run()


class _Switcher:
    def __init__(
        self, graph: Graph, members: Sequence[Group], points: Sequence[Point],
        parameters: Mapping[Point, Parameters], weights: Mapping[Layer, Weight],
    ) -> None:  # fmt: skip
        self.graph, self.parameters, self.weights = graph, parameters, weights
        self.taken = {v.name for v in graph.values()}
        count = len(members) + len(points)
        self.switches = Value(fresh_name(self.taken, "switches"), TensorType((count,), F32))
        self.layers = {layer.op: (layer, i) for i, group in enumerate(members) for layer in group}
        self.points = {point: len(members) + i for i, point in enumerate(points)}
        self.constants, self.ops = dict(graph.constants), list[Op]()
        self.done: dict[tuple[Value, Point], Value] = {}
        self.read: dict[Value, Value] = {}
        """What readers of a point get instead of it."""

    def run(self) -> Graph:
        for op in self.graph.ops:
            layer, switch = self.layers.get(op, (None, 0))  # type: ignore[call-overload]
            if layer is None:
                self.ops.append(renamed(op, self.read))
            else:
                self._layer(layer, switch)
            for value in op.outputs:
                point = Point(value)
                if point in self.points:
                    body = _switched(self.parameters[point])
                    self.read[value] = self._each([value], self.points[point], body, "switched")
        outputs = tuple(self.read.get(v, v) for v in self.graph.outputs)
        inputs = (*self.graph.inputs, self.switches)
        changed = replace(
            self.graph, inputs=inputs, outputs=outputs, constants=self.constants, interface=None
        )
        return replace(changed, ops=tuple(self.ops))

    def _each(
        self, inputs: Sequence[Value], switch: int, body: Scalar, name: str, out: Value | None = None
    ) -> Value:
        """Append an elementwise op on values and a switch."""
        type_ = inputs[0].type
        out = out or Value(fresh_name(self.taken, name), type_)
        identity = IndexMap.identity(type_.rank)
        maps = (*(identity for _ in inputs), IndexMap((Linear((), switch),)))
        self.ops.append(Generic((*inputs, self.switches), (out,), type_.shape, maps, body))
        return out

    def _layer(self, layer: Layer, switch: int) -> None:
        op, inputs = layer.op, list(layer.op.inputs)
        for side, point in enumerate(layer.points):
            if point is not None:
                key = (inputs[side], point)
                if key not in self.done:
                    body = _switched(self.parameters[point])
                    self.done[key] = self._each([inputs[side]], switch, body, "switched")
                inputs[side] = self.done[key]
        weight = self.weights.get(layer)
        if weight is None or layer.weight is None:
            self.ops.append(replace(op, inputs=tuple(inputs)))
            return
        exact, added = (Value(fresh_name(self.taken, n), op.output.type) for n in ("exact", "added"))
        self.ops.append(replace(op, inputs=tuple(inputs), outputs=(exact,)))
        inputs[layer.weight] = self._change(op.inputs[layer.weight], weight)
        self.ops.append(replace(op, inputs=tuple(inputs), outputs=(added,)))
        by = Apply("mul", (Arg(1, F32), Arg(2, F32)), F32)
        self._each([exact, added], switch, Apply("add", (Arg(0, F32), by), F32), "", op.output)

    def _change(self, value: Value, weight: Weight) -> Value:
        """What rounding adds to a weight, as a constant."""
        change = Value(fresh_name(self.taken, "change"), value.type)
        difference = weight.rounded - load(value, self.graph.constants[value])
        self.constants[change] = Constant.of(difference.astype(np.float32), f"{weight.key}.change")
        return change


def _switched(how: Parameters) -> Scalar:
    low, high = LIMITS[how.dtype]
    x: Scalar = Arg(0, F32)

    def apply(op: str, a: Scalar, number: float) -> Scalar:
        return Apply(op, (a, Const(float(number), F32)), F32)

    whole = apply("add", Apply("round", (apply("mul", x, how.inverse),), F32), how.zero)
    whole = apply("sub", apply("min", apply("max", whole, low), high), how.zero)
    on = Apply("gt", (Arg(1, F32), Const(0.0, F32)), DType.BOOL)
    return Apply("select", (on, apply("mul", whole, how.scale), x), F32)
