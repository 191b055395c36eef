"""Padding that stands before a window becomes the window's: a `Pad` of real zeros in front of a `Conv`.

Views between the two (a transpose, the split of channels into groups) are put before the padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mansard.ir.types import Value
from mansard.regions.named.builder import static
from mansard.regions.named.editor import Editor, sources
from mansard.regions.named.ops import Conv, NamedOp, Pad, Reshape, Slice, Transpose


def fold_pads(e: Editor) -> None:
    """Let convolutions pad."""
    for op in e.listed():
        if isinstance(op, Conv):
            _fold(e, op)


def _fold(e: Editor, op: Conv) -> None:
    pad = _pad_before(e, op.inputs[0])
    if pad is None or not stands_for_zero(e, pad):
        return
    if any((pad.low[0], pad.high[0], pad.low[-1], pad.high[-1])):
        return
    pads = [
        (low + before, high + behind)
        for (low, high), before, behind in zip(op.pads, pad.low[1:-1], pad.high[1:-1], strict=True)
    ]
    x = pad.inputs[0]
    e.put(replace(op, inputs=(x, *op.inputs[1:]), pads=tuple(pads), sources=sources((op, pad))))


def stands_for_zero(e: Editor, pad: Pad) -> bool:
    """Whether padding is with real zeros, or with integers 0 that encode nothing."""
    return pad.value == 0


def _pad_before(e: Editor, value: Value) -> Pad | None:
    """The padding that makes a value, put behind the views of it."""
    op = e.producer(value)
    if isinstance(op, Pad):
        return op
    if not isinstance(op, (Transpose, Reshape, Slice)):
        return None
    before = _pad_before(e, op.inputs[0])
    return None if before is None else _sunk(e, before, op)


def _sunk(e: Editor, pad: Pad, view: NamedOp) -> Pad | None:
    """The padding of a view, in place of the view of the padding."""
    x, e.sources = pad.inputs[0], sources((pad, view))
    if isinstance(view, Slice):
        cut = _cut(pad, view)
        if cut is None:
            return None
        low, high = cut
        seen = x
    elif isinstance(view, Transpose):
        low, high = ([by[d] for d in view.permutation] for by in (pad.low, pad.high))
        seen = e.transpose(x, view.permutation)
    else:
        moved = _moved(pad, static(view.output.type.shape))
        if moved is None:
            return None
        low, high = moved
        shape = [n - a - b for n, a, b in zip(static(view.output.type.shape), low, high, strict=True)]
        seen = e.reshape(x, shape)
    if x in e.encodings:
        e.encodings[seen] = e.encodings[x]
    sunk = Pad((seen,), view.output, tuple(low), tuple(high), pad.value, sources=e.sources)
    e.put(sunk)
    return sunk


def _cut(pad: Pad, part: Slice) -> tuple[list[int], list[int]] | None:
    """The padding of a slice that cuts off padding alone."""
    if any(stride != 1 for stride in part.strides):
        return None
    sizes = zip(static(pad.output.type.shape), part.starts, static(part.output.type.shape), strict=True)
    behind = [size - start - kept for size, start, kept in sizes]
    low = [by - start for by, start in zip(pad.low, part.starts, strict=True)]
    high = [by - cut for by, cut in zip(pad.high, behind, strict=True)]
    return (low, high) if min(*low, *high) >= 0 else None


def _moved(pad: Pad, shape: Sequence[int]) -> tuple[list[int], list[int]] | None:
    """The padding in a shape that keeps the padded dims, or divides them: 12 elements of a row are 4 pixels
    of 3 channels."""
    low, high = [0] * len(shape), [0] * len(shape)
    given = static(pad.output.type.shape)
    ends = {math.prod(shape[:d]) for d in range(len(shape) + 1)}
    for d, size in enumerate(given):
        if not pad.low[d] and not pad.high[d]:
            continue
        before = math.prod(given[:d])
        places = [
            p for p, n in enumerate(shape) if n != 1 and math.prod(shape[:p]) == before and size % n == 0
        ]
        if not places or before * size not in ends:
            return None
        inner = size // shape[places[0]]
        if pad.low[d] % inner or pad.high[d] % inner:
            return None
        low[places[0]], high[places[0]] = pad.low[d] // inner, pad.high[d] // inner
    return low, high
