"""Sums and means over axes, and axes from back to front."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mansard import dims
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import Emitter
from mansard.frontends.emission.expressions import Num, size
from mansard.frontends.emission.tensor import Tensor
from mansard.ir.types import Linear

Function = Callable[[Num], Num]


def total(
    g: Emitter, x: Tensor, axes: Sequence[int], keepdims: bool, function: Function | None = None
) -> Tensor:
    """The sum of (a function of) elements; of narrow floats in f32."""
    if x.dtype.is_float and x.dtype.bits < 32:
        wide = g.reduce(
            x,
            axes,
            "add",
            keepdims=keepdims,
            function=lambda e: function(e.cast(DType.F32)) if function else e.cast(DType.F32),
        )
        return g.cast(wide, x.dtype)
    return g.reduce(x, axes, "add", keepdims=keepdims, function=function)


def mean(
    g: Emitter, x: Tensor, axes: Sequence[int], keepdims: bool, function: Function | None = None
) -> Tensor:
    """The mean of (a function of) elements: their sum divided by their number."""
    count = dims.product(x.shape[a] for a in axes)
    sums = g.reduce(x, axes, "add", keepdims=keepdims, function=function)
    return g.map(
        lambda e: e / (count if isinstance(count, int) else size(e.space, count).cast(e.dtype)), sums
    )


def reversed_along(g: Emitter, x: Tensor, axis: int) -> Tensor:
    """The elements of an axis from last to first."""
    body = g.body(x.shape)
    linear = [Linear.dim(i) for i in range(x.rank)]
    linear[axis] = Linear.dim(axis, -1, dims.add(x.shape[axis], -1))
    return g.finish(body, g.read(body, x, linear))
