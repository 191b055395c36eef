"""Ops that select by content, whose results have as many entries as the model or the user states.

Results are filled up with -1 where fewer are selected, and end where more are. Without a stated size, a
result that the model returns has room for all, and is returned with the size that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.dtypes import DType
from mansard.frontends.emission.expressions import index
from mansard.frontends.emission.suppression import NEVER, select
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import rule
from mansard.ir.types import Linear

MAX_ROUNDS = 512
I64 = DType.I64


@dataclass(frozen=True)
class Bound:
    """The size of a result: stated, or ``derived`` as the largest that it may have."""

    size: int
    derived: bool


def bound_of(g: GraphImporter, node: Node, axis: int, largest: int, outputs: Sequence[int] = (0,)) -> Bound:
    """The bound of an axis of a node's first result.

    One that nobody states is ``largest`` for results that the model returns and no node reads: they are
    returned with the size that they have. Raises UnsupportedOpError.
    """
    shape = g.stated_shape(node)
    if shape is not None:
        return Bound(int(str(shape[axis])), False)
    if all(node.outputs[k] in g.only_returned for k in outputs) and len(g.scopes) == 1:
        return Bound(largest, True)
    raise node.fail(
        "the size of its result depends on the content of its operands, and other nodes read it; state the "
        "largest: in the shape that the model gives for the result, or for the name of its dim, as in "
        "dims={'selected': 100}"
    )


def number_of(g: GraphImporter, wanted: Tensor) -> Tensor:
    """The number of true entries of a flag vector, of rank 0."""
    body = g.body((int(str(wanted.shape[0])),))
    return g.finish(body, g.read(body, wanted, [Linear.dim(0)]).cast(I64), 1, "add")


def first_places(g: GraphImporter, wanted: Tensor, bound: int) -> Tensor:
    """The places of the first ``bound`` true entries of a flag vector, in order; -1 where there are fewer."""
    count = int(str(wanted.shape[0]))
    body = g.body((count,))
    here = index(body.space, 0)
    key = g.finish(body, g.read(body, wanted, [Linear.dim(0)]).select(here, here + count))
    short = bound - count
    values, _ = g.builder.sort(g.value(key), 0, False, bound - max(short, 0))
    places = g.map(lambda p: (p < count).select(p, -1), g.tensor(values))
    return g.pad(places, [0], [short], -1) if short > 0 else places


@rule("NonZero")
def non_zero(g: GraphImporter, node: Node) -> Tensor:
    """The indices of the elements that are not zero, by dim: (rank, bound)."""
    x = node.tensor(0)
    shape = x.shape or (1,)
    if not all(isinstance(d, int) for d in shape):
        raise node.fail(f"an operand of {list(shape)}")
    flat = g.reshape(g.map(lambda e: e != 0, x) if x.dtype is not DType.BOOL else x, (dims.product(shape),))
    bound = bound_of(g, node, 1, int(str(flat.shape[0])))
    if bound.derived:
        g.sizes[node.outputs[0]] = (1, number_of(g, flat))
    places = first_places(g, flat, bound.size)
    rows = []
    inner = 1
    for extent in reversed(tuple(int(str(d)) for d in x.shape)):
        rows.append(g.map(lambda p, n=inner, e=extent: (p < 0).select(-1, p // n % e), places))
        inner *= extent
    return g.stack(rows[::-1], 0)


@rule("NonMaxSuppression")
def non_max_suppression(g: GraphImporter, node: Node) -> Tensor:
    """(batch, class, box) of the boxes kept: (bound, 3)."""
    boxes, scores = node.tensor(0), node.tensor(1)
    batch, classes, count = scores.shape
    limit = int(node.numbers(2).reshape(-1)[0]) if node.optional(2) is not None else 0
    overlap = float(node.numbers(3).reshape(-1)[0]) if node.optional(3) is not None else 0.0
    if not (isinstance(batch, int) and isinstance(classes, int) and isinstance(count, int)):
        raise node.fail(f"scores of {list(scores.shape)}")
    bound = bound_of(g, node, 0, batch * classes * min(limit, count))
    rounds = min(limit, count, bound.size)
    if rounds > MAX_ROUNDS:
        raise node.fail(f"{rounds} boxes; up to {MAX_ROUNDS} are supported")
    if rounds == 0:
        return g.full((bound.size, 3), -1, I64)
    if node.optional(4) is not None:
        least = float(node.numbers(4).reshape(-1)[0])
        scores = g.map(lambda s: (s > least).select(s, NEVER), scores)
    if node.integer("center_point_box"):
        boxes = _corners(g, boxes)
    chosen = [select(g, g.take(boxes, 0, b), g.take(scores, 0, b), rounds, overlap) for b in range(batch)]
    total = batch * classes * rounds
    numbers = g.reshape(g.stack([c.indices for c in chosen], 0), (total,))
    kept = g.map(lambda s: s > NEVER, g.reshape(g.stack([c.scores for c in chosen], 0), (total,)))
    if bound.derived:
        g.sizes[node.outputs[0]] = (0, number_of(g, kept))
    places = first_places(g, kept, bound.size)
    body = g.body((bound.size, 3))
    place, column = g.read(body, places, [Linear.dim(0)]), index(body.space, 1)
    box = g.at(body, numbers, [place.max(0)])
    row = (column == 0).select(place // (classes * rounds), place // rounds % classes)
    return g.finish(body, (place < 0).select(-1, (column == 2).select(box, row)))


def _corners(g: GraphImporter, boxes: Tensor) -> Tensor:
    """Boxes of centre, width and height, as two corners."""
    body = g.body(boxes.shape)
    here = [Linear.dim(0), Linear.dim(1)]
    x, y, width, height = (g.read(body, boxes, [*here, Linear((), k)]) for k in range(4))
    corners = (y - height * 0.5, x - width * 0.5, y + height * 0.5, x + width * 0.5)
    column = index(body.space, 2)
    result = corners[3]
    for k in (2, 1, 0):
        result = (column == k).select(corners[k], result)
    return g.finish(body, result)
