"""Sums of products over windows: convolutions in one and two spatial dims, grouped and depthwise ones too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mansard.ir.ops import Generic
from mansard.ir.types import IndexMap, Value
from mansard.regions.named.builder import NamedBuilder, static
from mansard.regions.raising.products import factors, plain
from mansard.regions.raising.refusal import NotRaised
from mansard.regions.raising.views import Index, aligned, arranged, index_of, split_dim
from mansard.regions.raising.windows import Sliding, fitted, sliding

MAX_SPATIAL = 2


@dataclass(frozen=True)
class _Roles:
    """Which iteration dims a convolution's are. ``groups`` index image, weights and result, ``outputs``
    weights and result, ``summed`` channels image and weights."""

    batch: tuple[int, ...]
    spatial: tuple[Sliding, ...]
    groups: tuple[int, ...]
    outputs: tuple[int, ...]
    summed: tuple[int, ...]


def is_convolution(op: Generic) -> bool:
    """Whether a sum of products slides a window over one factor."""
    return _operands(op) is not None


def _operands(op: Generic) -> tuple[int, int] | None:
    """The operands that are image and weights: the weights have the window's dims as dims of their own."""
    both = factors(op)
    if both is None:
        return None
    read = [plain(op, factor) for factor in both]
    if read[0] is None or read[1] is None:
        return None
    for image, weights in ((read[0].index, read[1].index), (read[1].index, read[0].index)):
        image_map, weight_map = op.maps[image], op.maps[weights]
        assert image_map is not None and weight_map is not None
        own = weight_map.plain_dims
        if own is None or weight_map.fill is not None:
            continue
        if any(_is_window(op, r.terms, own) for r in image_map.results):
            return image, weights
    return None


def _is_window(op: Generic, terms: Sequence[tuple[int, object]], own: Sequence[int | None]) -> bool:
    """Whether an index of an image is of a place, which the weights do not know, and of a dim of theirs."""
    places = [d for d, _ in terms if d < op.rank and d not in own]
    taps = [d for d, _ in terms if d >= op.rank and d in own]
    return len(terms) == 2 and len(places) == len(taps) == 1


def raise_convolution(b: NamedBuilder, op: Generic, inputs: Sequence[Value]) -> Value:
    """A convolution as a `Conv` of channels-last images, whose sums are i32 for integer factors."""
    operands = _operands(op)
    assert operands is not None
    image, weights = (inputs[operand] for operand in operands)
    image_map, weight_map = (op.maps[operand] for operand in operands)
    assert image_map is not None and weight_map is not None
    own = [d for d in weight_map.plain_dims or () if d is not None]
    extents = static(op.extents)
    roles, labels, x = _image(b, op, image, image_map, own)
    spatial = roles.spatial
    if len(spatial) > MAX_SPATIAL:
        raise NotRaised(f"it is a convolution of {len(spatial)} spatial dims, more than {MAX_SPATIAL}")
    x, pads = fitted(b, x, labels, spatial, image_map.fill, extents, zero=0)
    x = _merged(b, x, labels, [roles.batch, *([s.place] for s in spatial), (*roles.groups, *roles.summed)])
    taps = [s.tap for s in spatial]
    filters = [(*roles.groups, *roles.outputs), *([tap] for tap in taps), roles.summed]
    w = aligned(b, weights, weight_map, extents)
    w = _merged(b, w, range(len(extents)), filters)
    result = b.conv(
        x,
        w,
        [extents[s.place] for s in spatial],
        op.body.dtype,
        [s.stride for s in spatial],
        [s.dilation for s in spatial],
        pads,
        math.prod(extents[d] for d in roles.groups),
    )
    order = [*roles.batch, *(s.place for s in spatial), *roles.groups, *roles.outputs]
    result = b.reshape(result, [extents[d] for d in order])
    return b.broadcast(arranged(b, result, order, range(op.rank)), extents[: op.rank])


def _image(
    b: NamedBuilder, op: Generic, image: Value, index_map: IndexMap, own: Sequence[int]
) -> tuple[_Roles, list[int], Value]:
    """The roles of the dims, and the image with a dim for each of them: labelled with them, sliding dims with
    the places."""
    extents = static(op.extents)
    batch: list[int] = []
    spatial: list[Sliding] = []
    groups: list[int] = []
    summed: list[int] = []
    labels: list[int] = []
    x = image
    for linear in index_map.results:
        axis = len(labels)
        window = sliding(linear, op, own)
        if window is not None:
            spatial.append(window)
            labels.append(window.place)
            continue
        index = index_of(linear, extents, keep=own)
        x, dims = _channels(b, x, axis, index, extents, index_map)
        for d in dims:
            if d >= op.rank:
                summed.append(d)
            else:
                (groups if d in own else batch).append(d)
        labels += dims
    taps = {s.tap for s in spatial}
    unread = [d for d in own if d >= op.rank and extents[d] != 1 and d not in (*taps, *summed)]
    if unread or len(set(labels)) < len(labels):
        raise NotRaised("its window is of no known form")
    outputs = [d for d in own if d < op.rank and d not in groups]
    roles = _Roles(tuple(batch), tuple(spatial), tuple(groups), tuple(outputs), tuple(summed))
    return roles, labels, x


def _channels(
    b: NamedBuilder, x: Value, axis: int, index: Index, extents: Sequence[int], index_map: IndexMap
) -> tuple[Value, list[int]]:
    """A dim that is not slid over, as the dims that index it: one, or groups and channels of them."""
    if index.low(extents) < 0 or index.high(extents) >= static(x.type.shape)[axis]:
        raise NotRaised("it pads dims that are not slid over")
    return split_dim(b, x, axis, index, extents)


def _merged(b: NamedBuilder, x: Value, labels: Sequence[int], wanted: Sequence[Sequence[int]]) -> Value:
    """A labelled value with dims in order, those of one group merged; missing ones have extent 1."""
    order = [labels.index(d) for dims in wanted for d in dims if d in labels]
    rest = [place for place in range(len(labels)) if place not in order]
    shape = static(x.type.shape)
    sizes = [math.prod(shape[labels.index(d)] for d in dims if d in labels) for dims in wanted]
    return b.reshape(b.transpose(x, [*order, *rest]), sizes)
