"""The weights of a compiled model: constants that dispatches read, in the form in which kernels read them,
and initial contents of states."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from mansard.errors import CompileError
from mansard.ir.dispatch import DispatchGraph
from mansard.ir.panels import Panels
from mansard.ir.types import Value
from mansard.plan.plan import WeightSpec

Load = Callable[[], npt.NDArray[np.generic]]
Weight = tuple[WeightSpec, Load]


def collect_weights(graph: DispatchGraph, packed: Mapping[Value, Panels]) -> dict[Value, Weight]:
    """Constants that dispatches read, each under a unique entry name; those in ``packed`` in that layout.
    Initial contents of states that are not zeros, by the states' values."""
    read = dict.fromkeys(graph.whole(v) for d in graph.dispatches for v in d.inputs)
    weights: dict[Value, Weight] = {}
    for value in read:
        if value not in graph.graph.constants:
            continue
        constant = graph.graph.constants[value]
        shape, load = _static_shape(value), constant.load
        if value in packed:
            shape, load = packed[value].shape, _packing(packed[value], load)
        weights[value] = (WeightSpec(value.name, value.type.dtype, shape, constant.key), load)
    for state in graph.graph.states:
        value, initial = state.before, state.initial
        if initial is not None and _not_zeros(initial.load()):
            spec = WeightSpec(value.name, value.type.dtype, _static_shape(value), initial.key)
            weights[value] = (spec, initial.load)
    return weights


def _not_zeros(array: npt.NDArray[np.generic]) -> bool:
    """Whether any byte is set: states begin as zeros, which take no place in a file."""
    return bool(np.ascontiguousarray(array).reshape(-1).view(np.uint8).any())


def _static_shape(value: Value) -> tuple[int, ...]:
    shape = []
    for extent in value.type.shape:
        if not isinstance(extent, int):
            raise CompileError(f"constant {value.name!r} has a symbolic dim {extent}")
        shape.append(extent)
    return tuple(shape)


def _packing(panels: Panels, load: Load) -> Load:
    return lambda: panels.pack(load())
