"""Windows that slide over dims: what convolutions and pools have in common, and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mansard.dtypes import DType
from mansard.ir.ops import Generic
from mansard.ir.scalar import Arg, Cast
from mansard.ir.types import Linear, Value
from mansard.regions.named.builder import NamedBuilder, static
from mansard.regions.raising.refusal import NotRaised
from mansard.regions.raising.views import arranged, index_of, split_dim


@dataclass(frozen=True)
class Sliding:
    """An index ``stride * place + dilation * tap + offset`` of a parallel and a reduced dim."""

    place: int
    tap: int
    stride: int
    dilation: int
    offset: int


def sliding(linear: Linear, op: Generic, own: Sequence[int] | None = None) -> Sliding | None:
    """An index as one of a window. ``own`` are the dims that the window's weights have themselves: a place is
    none of them, and a tap one."""
    places = [(d, c) for d, c in linear.terms if d < op.rank and (own is None or d not in own)]
    taps = [(d, c) for d, c in linear.terms if d >= op.rank and (own is None or d in own)]
    if len(linear.terms) != 2 or len(places) != 1 or len(taps) != 1:
        return None
    ((place, stride),), ((tap, dilation),) = places, taps
    if not (isinstance(stride, int) and isinstance(dilation, int) and isinstance(linear.offset, int)):
        raise NotRaised(f"it reads at {linear}, which depends on sizes of the call")
    if stride < 1 or dilation < 1:
        raise NotRaised("it slides backwards")
    return Sliding(place, tap, stride, dilation, linear.offset)


def fitted(
    b: NamedBuilder,
    x: Value,
    labels: Sequence[int],
    spatial: Sequence[Sliding],
    fill: float | int | bool | None,
    extents: Sequence[int],
    zero: float | int,
) -> tuple[Value, list[tuple[int, int]]]:
    """The image and the padding with which windows give as many results as they have places.

    Padding that is not ``zero`` becomes an op of its own, and elements that no window reaches are cut off.
    """
    low, high = [0] * len(labels), [0] * len(labels)
    for window in spatial:
        axis = labels.index(window.place)
        size = static(x.type.shape)[axis]
        reach = window.stride * (extents[window.place] - 1) + window.dilation * (extents[window.tap] - 1) + 1
        low[axis], high[axis] = -window.offset, window.offset + reach - size
    if fill is None and any(by > 0 for by in (*low, *high)):
        raise NotRaised("its windows go beyond the image")
    cut = [max(0, -by) for by in low]
    shape = static(x.type.shape)
    # Elements behind the last window that no further window would reach do no harm.
    strides = {labels.index(w.place): w.stride for w in spatial}
    spare = [max(0, -by) if -by >= strides.get(axis, 1) else 0 for axis, by in enumerate(high)]
    kept = [size - begin - end for size, begin, end in zip(shape, cut, spare, strict=True)]
    x = b.slice(x, cut, kept)
    low, high = [max(0, by) for by in low], [max(0, by) for by in high]
    if fill is not None and fill != zero:
        x = b.pad(x, low, high, fill)
        low, high = [0] * len(low), [0] * len(high)
    axes = [labels.index(window.place) for window in spatial]
    return x, [(low[axis], high[axis]) for axis in axes]


def raise_window_reduction(b: NamedBuilder, op: Generic, inputs: Sequence[Value]) -> Value | None:
    """A maximum or sum over windows of one operand as a `Pool`; None where the op is none.

    A sum is the mean times the number of elements.
    """
    body = op.body.arg if isinstance(op.body, Cast) else op.body
    if op.combiner not in ("max", "add") or not isinstance(body, Arg):
        return None
    index_map = op.maps[body.index]
    assert index_map is not None
    windows = [sliding(linear, op) for linear in index_map.results]
    spatial = [window for window in windows if window is not None]
    if not spatial or {s.tap for s in spatial} != set(op.reduced):
        return None
    if op.combiner == "add" and not op.body.dtype.is_float:
        raise NotRaised("it sums integers over windows")
    extents, x, labels = static(op.extents), inputs[body.index], list[int]()
    for linear, window in zip(index_map.results, windows, strict=True):
        if window is not None:
            labels.append(window.place)
            continue
        x, dims = split_dim(b, x, len(labels), index_of(linear, extents), extents)
        labels += dims
    plain = [d for d in labels if d not in [s.place for s in spatial]]
    x = b.cast(x, op.body.dtype)
    fill = index_map.fill
    if op.combiner == "max" and fill is not None and fill == _lowest(x.type.dtype):
        x, pads = fitted(b, x, labels, spatial, fill, extents, zero=fill)
    else:
        unpadded = math.nan if op.combiner == "max" else 0
        x, pads = fitted(b, x, labels, spatial, fill, extents, zero=unpadded)
    return _pooled(b, op, x, labels, plain, spatial, pads)


def _pooled(
    b: NamedBuilder,
    op: Generic,
    x: Value,
    labels: Sequence[int],
    plain: Sequence[int],
    spatial: Sequence[Sliding],
    pads: Sequence[tuple[int, int]],
) -> Value:
    extents, places = static(op.extents), [s.place for s in spatial]
    batch, channels = list(plain[:-1]), list(plain[-1:])
    x = b.transpose(x, [labels.index(d) for d in (*batch, *places, *channels)])
    sizes = static(x.type.shape)[len(batch) : len(batch) + len(places)]
    x = b.reshape(x, (math.prod(extents[d] for d in batch), *sizes, math.prod(extents[d] for d in channels)))
    window = [extents[s.tap] for s in spatial]
    kind = "max" if op.combiner == "max" else "average"
    strides, dilations = [s.stride for s in spatial], [s.dilation for s in spatial]
    pooled = b.pool(x, kind, [extents[d] for d in places], window, strides, dilations, pads)
    if kind == "average":
        count = b.literal(math.prod(window), pooled.type.dtype, pooled.type.rank)
        pooled = b.elementwise("mul", pooled, count)
    order = (*batch, *places, *channels)
    pooled = b.reshape(pooled, [extents[d] for d in order])
    return b.broadcast(arranged(b, pooled, order, range(op.rank)), extents[: op.rank])


def _lowest(dtype: DType) -> float | int:
    """The number that no number of a type is below."""
    if dtype.is_float:
        return -math.inf
    return -(2 ** (dtype.bits - 1)) if dtype.is_signed else 0
