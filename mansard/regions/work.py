"""How long a region takes on a device: a roofline over its named ops."""

from __future__ import annotations

import math

from mansard.dtypes import DType
from mansard.ir.types import Value
from mansard.regions.named.graph import NamedGraph
from mansard.regions.named.ops import Conv, MatMul, NamedOp
from mansard.targets.profile import DeviceProfile


def multiply_adds(op: NamedOp) -> int:
    """Products that an op adds up; 0 for one that is neither a convolution nor a matrix product."""
    match op:
        case Conv():
            return _elements(op.output) * _elements(op.inputs[1]) // _extents(op.inputs[1])[0]
        case MatMul():
            return _elements(op.output) * _extents(op.inputs[0])[-1]
        case _:
            return 0


def region_seconds(graph: NamedGraph, profile: DeviceProfile, floats: str = "") -> float:
    """Predicted seconds of a run: products by the rate of their factors' type and other ops by that of
    vectors, or the bytes that cross the region's border with those of its constants, whichever takes longer,
    and a launch. ``floats`` is the type in which the device computes what is f32, if that is another."""
    vector = profile.vector or profile.rate("f32")
    computing = 0.0
    for op in graph.ops:
        if products := multiply_adds(op):
            wider = max((value.type.dtype for value in op.inputs[:2]), key=lambda dtype: dtype.bits)
            dtype = floats if floats and wider is DType.F32 else wider.value
            computing += 2 * products / profile.rate(dtype)
        else:
            computing += _elements(op.output) / vector
    values = (*graph.inputs, *graph.outputs, *graph.constants)
    moved = sum(_elements(value) * value.type.dtype.bits / 8 for value in values)
    return profile.launch + max(computing, moved / profile.bandwidth)


def _extents(value: Value) -> tuple[int, ...]:
    return value.type.concrete({})


def _elements(value: Value) -> int:
    return math.prod(_extents(value))
