"""Resizing of an axis by a table of source indices and weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mansard import dims
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import Emitter
from mansard.frontends.emission.expressions import Num, index
from mansard.frontends.emission.tensor import Content, Tensor
from mansard.ir.types import Linear


@dataclass(frozen=True)
class Taps:
    """Source indices and weights, for each place of the result; places outside have no source."""

    indices: Content
    weights: Content
    outside: Content | None = None


def resized(g: Emitter, x: Tensor, axes: Mapping[int, Taps], outside_value: float = 0.0) -> Tensor:
    """Axes resized: at once those whose elements are only repeated, then one after another."""
    factors = {axis: _factor(x, axis, taps) for axis, taps in axes.items()}
    x = repeated(g, x, {axis: factor for axis, factor in factors.items() if factor is not None})
    for axis, taps in axes.items():
        if factors[axis] is None:
            x = _resized(g, x, axis, taps, outside_value)
    return x


def _resized(g: Emitter, x: Tensor, axis: int, taps: Taps, outside_value: float) -> Tensor:
    size, count = taps.indices.shape
    single = count == 1
    shape = [*x.shape[:axis], size, *x.shape[axis + 1 :]]
    table = g.literal(taps.indices.astype(np.int64))
    body = g.body(shape)
    here = [index(body.space, i) for i in range(x.rank)]
    dtype = x.dtype if x.dtype.is_float else DType.F32
    total: Num | None = None
    weights = g.literal(taps.weights.astype(np.float64).astype(dtype.numpy), dtype)
    for tap in range(count):
        place = g.read(body, table, [Linear.dim(axis), Linear((), tap)])
        element = g.at(body, x, [*here[:axis], place, *here[axis + 1 :]])
        if not single:
            element = element.cast(dtype) * g.read(body, weights, [Linear.dim(axis), Linear((), tap)])
        total = element if total is None else total + element
    assert total is not None
    if taps.outside is not None:
        flags = g.literal(taps.outside.astype(np.bool_))
        total = g.read(body, flags, [Linear.dim(axis)]).select(outside_value, total)
    if total.dtype is not x.dtype:
        total = total.unary("round").cast(x.dtype) if dtype is DType.F32 else total.cast(x.dtype)
    return g.finish(body, total)


def _factor(x: Tensor, axis: int, taps: Taps) -> int | None:
    """How often each element occurs, if as often as the next; None where the table is another."""
    extent, (size, count) = x.shape[axis], taps.indices.shape
    if count != 1 or taps.outside is not None or not isinstance(extent, int) or not extent or size % extent:
        return None
    factor = int(size // extent)
    return factor if np.array_equal(taps.indices[:, 0], np.arange(size) // factor) else None


def repeated(g: Emitter, x: Tensor, factors: Mapping[int, int]) -> Tensor:
    """Each element several times along axes, by axis.

    Read at quotients of the place: views that split and merge axes would be in the way of layouts.
    """
    if all(factor == 1 for factor in factors.values()):
        return x
    body = g.body(tuple(dims.mul(d, factors.get(i, 1)) for i, d in enumerate(x.shape)))
    here = (index(body.space, i) for i in range(x.rank))
    return g.finish(body, g.at(body, x, [n // factors[i] if i in factors else n for i, n in enumerate(here)]))
