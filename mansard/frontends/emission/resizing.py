"""Resizing of an axis by a table of source indices and weights."""

from __future__ import annotations

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


def resized(g: Emitter, x: Tensor, axis: int, taps: Taps, outside_value: float) -> Tensor:
    """One axis resized."""
    size, count = taps.indices.shape
    single = count == 1
    if single and taps.outside is None:
        shortcut = _repeated(g, x, axis, taps.indices[:, 0])
        if shortcut is not None:
            return shortcut
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


def _repeated(g: Emitter, x: Tensor, axis: int, places: Content) -> Tensor | None:
    """Each element as often as the next, or None where the table is another."""
    extent = x.shape[axis]
    if not isinstance(extent, int) or not extent or len(places) % extent:
        return None
    factor = len(places) // extent
    if not np.array_equal(places, np.arange(len(places)) // factor):
        return None
    return repeated(g, x, axis, factor)


def repeated(g: Emitter, x: Tensor, axis: int, factor: int) -> Tensor:
    """Each element of an axis several times."""
    unit = g.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    wide = g.expand(unit, (*x.shape[: axis + 1], factor, *x.shape[axis + 1 :]))
    return g.reshape(wide, (*x.shape[:axis], dims.mul(x.shape[axis], factor), *x.shape[axis + 1 :]))
