"""Margins, and blocks of pixels as channels or batches."""

from __future__ import annotations

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.expressions import Num, index, size
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.emission.windows import window
from mansard.frontends.linalg import dimmath
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.real import moved
from mansard.frontends.tflite.rules.convolution import convolved, window_2d
from mansard.frontends.tflite.rules.geometry import strides_of
from mansard.frontends.tflite.table import rule


def _margins(node: Node, number: int = 1) -> tuple[list[DimLike], list[DimLike]]:
    pairs = node.dims(number)
    return pairs[0::2], pairs[1::2]


@rule("PAD", "PADV2")
def pad(g: GraphImporter, node: Node) -> Tensor:
    """A margin of one number."""
    x, q = node.tensor(0), node.scaled(0)
    low, high = _margins(node)
    value = node.optional(2)
    if value is None:
        number: float | int = int(q.zero[0]) if q is not None else 0
        return moved(g, node, g.pad(x, low, high, number))
    if value.content is not None:
        return moved(g, node, g.pad(x, low, high, value.content.reshape(-1)[0].item()))
    inside = g.pad(g.full(x.shape, True, DType.BOOL), low, high, False)
    return g.map(lambda e, i, v: i.select(e, v), g.pad(x, low, high), inside, g.reshape(value, ()))


@rule("MIRROR_PAD")
def mirror_pad(g: GraphImporter, node: Node) -> Tensor:
    """A margin of the tensor's own elements, mirrored with (SYMMETRIC) or without the outermost."""
    x, symmetric = node.tensor(0), node.integer("mode") == 1
    low, high = _margins(node)
    body = g.body([dims.add(a, d, b) for a, d, b in zip(low, x.shape, high, strict=True)])
    here: list[Num] = []
    for i, extent in enumerate(x.shape):
        place = index(body.space, i)
        if low[i] != 0 or high[i] != 0:
            place = place - size(body.space, low[i])
            last = size(body.space, dims.add(extent, -1))
            shift = 1 if symmetric else 0
            place = (place < 0).select(-place - shift, place)
            place = (place > last).select(last + last - place + shift, place)
        here.append(place)
    return moved(g, node, g.finish(body, g.at(body, x, here)))


@rule("SPACE_TO_DEPTH")
def space_to_depth(g: GraphImporter, node: Node) -> Tensor:
    """Blocks of pixels to channels."""
    x, b = node.tensor(0), node.integer("block_size")
    n, h, w, c = x.shape
    rows, columns = dimmath.floordiv(h, b), dimmath.floordiv(w, b)
    split = g.reshape(x, (n, rows, b, columns, b, c))
    moved_blocks = g.transpose(split, (0, 1, 3, 2, 4, 5))
    return g.reshape(moved_blocks, (n, rows, columns, dims.mul(c, b * b)))


@rule("DEPTH_TO_SPACE")
def depth_to_space(g: GraphImporter, node: Node) -> Tensor:
    """Channels to blocks of pixels."""
    x, b = node.tensor(0), node.integer("block_size")
    n, h, w, c = x.shape
    depth = dims.exact_div(c, b * b) if b > 0 else None
    if depth is None:
        raise node.fail(f"{c} channels in blocks of {b}")
    split = g.transpose(g.reshape(x, (n, h, w, b, b, depth)), (0, 1, 3, 2, 4, 5))
    return g.reshape(split, (n, dims.mul(h, b), dims.mul(w, b), depth))


@rule("SPACE_TO_BATCH_ND")
def space_to_batch(g: GraphImporter, node: Node) -> Tensor:
    """Blocks of a padded tensor to batches."""
    x, blocks, q = node.tensor(0), node.ints(1), node.scaled(0)
    low, high = _margins(node, 2)
    rank, rest = len(blocks), x.rank - 1 - len(blocks)
    before, after = ([0, *side, *[0] * rest] for side in (low, high))
    padded = g.pad(x, before, after, int(q.zero[0]) if q is not None else 0)
    batch, spatial = padded.shape[0], padded.shape[1 : 1 + rank]
    each = [dims.exact_div(d, b) for d, b in zip(spatial, blocks, strict=True)]
    if any(d is None for d in each):
        raise node.fail(f"{list(spatial)} in blocks of {blocks}")
    sizes = [d for d in each if d is not None]
    split = g.reshape(
        padded, [batch, *(d for pair in zip(sizes, blocks, strict=True) for d in pair), *x.shape[1 + rank :]]
    )
    order = [
        *(2 + 2 * i for i in range(rank)),
        0,
        *(1 + 2 * i for i in range(rank)),
        *range(1 + 2 * rank, split.rank),
    ]
    total = dims.mul(batch, dims.product(blocks))
    return g.reshape(g.transpose(split, order), [total, *sizes, *x.shape[1 + rank :]])


@rule("BATCH_TO_SPACE_ND")
def batch_to_space(g: GraphImporter, node: Node) -> Tensor:
    """Batches to blocks of a tensor, which is then cropped."""
    dilated = _dilated(g, node)
    if dilated is not None:
        return dilated
    x, blocks = node.tensor(0), node.ints(1)
    low, high = _margins(node, 2)
    rank = len(blocks)
    batch = dims.exact_div(x.shape[0], dims.product(blocks))
    if batch is None:
        raise node.fail(f"a batch of {x.shape[0]} in blocks of {blocks}")
    split = g.reshape(x, [*blocks, batch, *x.shape[1:]])
    order = [rank, *(d for i in range(rank) for d in (rank + 1 + i, i)), *range(2 * rank + 1, split.rank)]
    spatial = [dims.mul(d, b) for d, b in zip(x.shape[1 : 1 + rank], blocks, strict=True)]
    whole = g.reshape(g.transpose(split, order), [batch, *spatial, *x.shape[1 + rank :]])
    starts = [0, *low, *[0] * (whole.rank - 1 - rank)]
    sizes = [batch, *(dimmath.sub(dimmath.sub(d, a), b) for d, a, b in zip(spatial, low, high, strict=True))]
    return g.slice(whole, starts, [*sizes, *x.shape[1 + rank :]], [1] * whole.rank)


def _dilated(g: GraphImporter, node: Node) -> Tensor | None:
    """A convolution of the images that every so many pixels make, which is one with dilation, where the node
    puts these together again; None for any other node. TensorFlow's converter writes it for an open batch."""
    inner = g.computed_by(node, 0)
    if inner is None or inner.op not in ("CONV_2D", "DEPTHWISE_CONV_2D"):
        return None
    split = g.computed_by(inner, 0)
    if (
        split is None
        or split.op != "SPACE_TO_BATCH_ND"
        or not all(n.known(i) for n in (node, split) for i in (1, 2))
    ):
        return None
    blocks, x = node.ints(1), split.tensor(0)
    real, quantised = inner.scaled(1) is None, inner.scaled(0) is not None
    if not (real or quantised):  # images are then rounded one by one
        return None
    if split.ints(1) != blocks or len(blocks) != 2 or x.rank != 4 or strides_of(inner) != [1, 1]:
        return None
    own = window_2d(inner)
    sides = [*zip(_margins(split, 2), _margins(node, 2), (own.low, own.high), strict=True)]
    pads = [
        [
            dimmath.sub(dims.add(pad, dims.mul(margin, block)), crop)
            for pad, crop, margin, block in zip(*side, blocks, strict=True)
        ]
        for side in sides
    ]
    if any(dims.bounds(d)[0] < 0 for side in pads for d in side):
        return None
    dilations = [d * block for d, block in zip(own.dilations, blocks, strict=True)]
    whole = window(x.shape[1:3], own.kernel, (1, 1), dilations, list(zip(*pads, strict=True)))
    operands = [x, *inner.inputs[1:]]
    return convolved(g, Node(inner.operator, inner.subgraph, operands), whole)
