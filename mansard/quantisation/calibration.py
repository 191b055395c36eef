"""Calibration data, and a Graph that runs on it on this machine's CPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mansard.api.arguments import call_arguments
from mansard.api.compilation import model_of
from mansard.arguments import shown
from mansard.compiler import CompileOptions, compile_graph
from mansard.errors import InputError
from mansard.ir.graph import Graph
from mansard.ir.types import Value
from mansard.quantisation.parameters import Array

STEP = 8
"""Rows of one call, of data that is given in one piece, where the model takes any number."""


def calls(data: Any) -> Iterator[Any]:
    """The calls of calibration data: its items. Raises InputError for what has none."""
    if data is None:
        raise InputError(
            "calibration data is needed: an iterable of calls (a tensor, a tuple of inputs, or a dict by "
            "name), or arrays by input name with all samples along the first axis"
        )
    if hasattr(data, "shape") or isinstance(data, (str, bytes)) or not isinstance(data, Iterable):
        raise InputError(
            f"calibration data is an iterable of calls, not a {type(data).__name__}: [x], or {{name: x}} for "
            "samples along the first axis"
        )
    return iter(data)


class Calls:
    """Calibration data as the flat inputs of a graph's calls."""

    def __init__(self, graph: Graph, data: Any) -> None:
        self.graph = graph
        names = [v.name for v in graph.inputs]
        interface = graph.interface
        self.arguments = call_arguments(interface, names)
        self.items = (
            self._stacked(data) if isinstance(data, Mapping) else [self._flat(c) for c in calls(data)]
        )
        if not self.items:
            raise InputError("calibration data is empty: it takes at least one call")

    def __len__(self) -> int:
        return len(self.items)

    def _flat(self, call: Any) -> list[Array]:
        named: Mapping[str, Any] = call if isinstance(call, Mapping) else {}
        args = (
            () if isinstance(call, Mapping) else tuple(call) if isinstance(call, (tuple, list)) else (call,)
        )
        if self.arguments is not None:
            flat, named = self.arguments.flatten(args, named)
            args = tuple(flat)
        names = [v.name for v in self.graph.inputs]
        unknown = sorted(named.keys() - set(names))
        given = dict(zip(names, args, strict=False)) | dict(named)
        if unknown or len(args) > len(names) or given.keys() != set(names):
            what = f"{unknown[0]!r}" if unknown else f"{len(given)} inputs"
            raise InputError(f"a call of the calibration data has {what}; the model takes {', '.join(names)}")
        return [_array(given[v.name], v) for v in self.graph.inputs]

    def _stacked(self, data: Mapping[str, Any]) -> list[list[Array]]:
        """Calls of arrays with samples along the first axis: as many rows as the model takes."""
        names = [v.name for v in self.graph.inputs]
        if len(data) == len(names) and (len(names) == 1 or set(data) == set(_unnamed(len(names)))):
            data = dict(zip(names, (data[k] for k in sorted(data)), strict=True))
        if set(data) != set(names):
            raise InputError(f"calibration data has {', '.join(data)}; the model takes {', '.join(names)}")
        arrays = [_array(data[v.name], v) for v in self.graph.inputs]
        counts = {a.shape[0] if a.ndim else 0 for a in arrays}
        sizes = {v.type.shape[0] if v.type.rank else 0 for v in self.graph.inputs}
        fixed = {d for d in sizes if isinstance(d, int)}
        if len(counts) != 1 or len(fixed) > 1 or 0 in counts:
            raise InputError(
                "calibration data by name needs equally many samples along the first axis of every input; "
                "give an iterable of calls instead"
            )
        (count,), step = counts, min(fixed, default=STEP)
        if fixed and count % step:
            raise InputError(
                f"calibration data has {count} samples; the model takes {step} of them in a call"
            )
        return [[a[i : i + step] for a in arrays] for i in range(0, count, step)]


def _unnamed(count: int) -> list[str]:
    """What NumPy calls arrays that were saved without names."""
    return [f"arr_{i}" for i in range(count)]


def rows(call: Sequence[Array]) -> int:
    """Samples of a call."""
    return int(call[0].shape[0]) if call and call[0].ndim else 1


def _array(value: Any, spec: Value) -> Array:
    """A tensor of any framework as an array of the input's type."""
    detach = getattr(value, "detach", None)
    array = np.asarray(detach().cpu() if detach is not None else value)
    if array.dtype.kind not in "biufV" or array.ndim != spec.type.rank:
        raise InputError(
            f"calibration data for {spec.name!r} is {shown(value)[:60]} of shape {list(array.shape)}; "
            f"the model takes {spec.type}"
        )
    return array


class Runner:
    """A graph, compiled for the CPU, that gives some of its values beside its outputs."""

    def __init__(self, graph: Graph, values: Sequence[Value]) -> None:
        self.graph = graph
        outputs = tuple(dict.fromkeys((*graph.outputs, *(v for v in values if v not in graph.inputs))))
        names = tuple(f"output.{i}" for i in range(len(outputs)))
        watched = replace(graph, outputs=outputs, output_names=names, interface=None)
        self.outputs = outputs
        self.model = model_of(compile_graph(watched, CompileOptions(targets=("cpu",))))

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.model.close()

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], dict[Value, Array]]:
        """Outputs, and all values, of one call, which begins with initial states."""
        if self.graph.states:
            self.model.reset_states()
        results = self.model(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        values = dict(zip((*self.outputs, *self.graph.inputs), (*results, *inputs), strict=True))
        return [values[v] for v in self.graph.outputs], values
