"""Reading and writing at computed places."""

from __future__ import annotations

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import axis_of
from mansard.frontends.emission.expressions import Num, index, size
from mansard.frontends.emission.indexing import checked, gather_rows, positive, scatter
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.real import dequantised, moved
from mansard.frontends.tflite.table import Rule, enter, refuse, rule
from mansard.ir.types import Linear

refuse("the size of its result depends on the content of its operands", "WHERE", "UNIQUE")


@rule("GATHER")
def gather(g: GraphImporter, node: Node) -> Tensor:
    """Entries of an axis."""
    x, places = node.tensor(0), node.tensor(1)
    axis = axis_of(node.integer("axis"), x.rank)
    batch = node.integer("batch_dims")
    batch = batch + places.rank if batch < 0 else batch
    if not batch:
        return moved(g, node, gather_rows(g, x, places, node.full_name, axis))
    checked(g, node.full_name, places, x.shape[axis])
    body = g.body((*x.shape[:axis], *places.shape[batch:], *x.shape[axis + 1 :]))
    count = places.rank - batch
    linear = [*(Linear.dim(i) for i in range(batch)), *(Linear.dim(axis + i) for i in range(count))]
    chosen = positive(g.read(body, places, linear), x.shape[axis])
    before = [index(body.space, i) for i in range(axis)]
    after = [index(body.space, i + count - 1) for i in range(axis + 1, x.rank)]
    return moved(g, node, g.finish(body, g.at(body, x, [*before, chosen, *after])))


@rule("EMBEDDING_LOOKUP")
def embedding_lookup(g: GraphImporter, node: Node) -> Tensor:
    """Rows of a table, as real numbers."""
    q = node.scaled(1)
    rows = gather_rows(g, node.tensor(1), node.tensor(0), node.full_name)
    if q is None or node.result_scaled() is not None:
        return moved(g, node, rows, number=1)
    if not q.per_tensor:
        raise node.fail("rows with scales of their own")
    return dequantised(g, rows, q)


@rule("GATHER_ND")
def gather_nd(g: GraphImporter, node: Node) -> Tensor:
    """Parts at tuples of indices."""
    x, places = node.tensor(0), node.tensor(1)
    count = _length(node, places)
    lead = places.rank - 1
    for i in range(count):
        column = g.take(places, lead, i)
        checked(g, node.full_name, column, x.shape[i])
    body = g.body((*places.shape[:-1], *x.shape[count:]))
    here: list[Num] = []
    for i in range(count):
        linear = [*(Linear.dim(d) for d in range(lead)), Linear((), i)]
        here.append(g.read(body, places, linear).cast(DType.I64))
    here += [index(body.space, lead + i) for i in range(x.rank - count)]
    return moved(g, node, g.finish(body, g.at(body, x, here)))


def _length(node: Node, places: Tensor) -> int:
    count = places.shape[-1]
    if not isinstance(count, int):
        raise node.fail("indices of a symbolic length")
    return count


@rule("SCATTER_ND")
def scatter_nd(g: GraphImporter, node: Node) -> Tensor:
    """Parts added up at tuples of indices of zeros."""
    places, updates = node.tensor(0), node.tensor(1)
    stated = node.stated_shape()
    shape = node.dims(2) if node.known(2) or stated is None else list(stated)
    width = _length(node, places)
    count = dims.product(places.shape[:-1])
    rows = g.cast(g.reshape(places, (count, width)), DType.I64)
    target = g.full(shape, 0, updates.dtype)
    return scatter(g, target, rows, g.reshape(updates, (count, *shape[width:])), "add")


@rule("SPARSE_TO_DENSE")
def sparse_to_dense(g: GraphImporter, node: Node) -> Tensor:
    """Numbers written at indices of a tensor that is filled with another."""
    places, values, default = node.tensor(0), node.tensor(2), node.tensor(3)
    shape = node.dims(1)
    target = g.expand(g.reshape(default, ()), shape)
    count: DimLike = places.shape[0] if places.rank else 1
    rows = g.reshape(places, (count, places.shape[1] if places.rank == 2 else 1))
    flat = g.expand(g.reshape(values, ()), (count,)) if values.rank == 0 else values
    return scatter(g, target, g.cast(rows, DType.I64), flat, None)


@rule("ONE_HOT")
def one_hot(g: GraphImporter, node: Node) -> Tensor:
    """One number where an index says, another elsewhere."""
    places, depth = node.tensor(0), node.dims(1)[0]
    axis = node.integer("axis")
    axis = places.rank if axis == -1 else axis
    body = g.body((*places.shape[:axis], depth, *places.shape[axis:]))
    linear = [Linear.dim(i if i < axis else i + 1) for i in range(places.rank)]
    here = g.read(body, places, linear).cast(DType.I64) == index(body.space, axis)
    on, off = (g.read(body, g.reshape(node.tensor(i), ()), []) for i in (2, 3))
    return g.finish(body, here.select(on, off))


@rule("REVERSE_SEQUENCE")
def reverse_sequence(g: GraphImporter, node: Node) -> Tensor:
    """The first so many entries of an axis from last to first, for each batch."""
    x, lengths = node.tensor(0), node.tensor(1)
    axis, batch = axis_of(node.integer("seq_dim"), x.rank), axis_of(node.integer("batch_dim"), x.rank)
    body = g.body(x.shape)
    here = [index(body.space, i) for i in range(x.rank)]
    length = g.read(body, lengths, [Linear.dim(batch)]).cast(DType.I64)
    here[axis] = (here[axis] < length).select(length - here[axis] - 1, here[axis])
    return g.finish(body, g.at(body, x, here))


@rule("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(g: GraphImporter, node: Node) -> Tensor:
    """A part replaced by another tensor, from indices on that leave it inside."""
    x, update, starts = node.tensor(0), node.tensor(1), node.tensor(2)
    body = g.body(x.shape)
    inside: Num | None = None
    there: list[Num] = []
    for i in range(x.rank):
        last = size(body.space, dims.add(x.shape[i], dims.mul(update.shape[i], -1)))
        start = g.read(body, starts, [Linear((), i)]).cast(DType.I64).max(0).min(last)
        place = index(body.space, i) - start
        within = (place >= 0) & (place < size(body.space, update.shape[i]))
        inside = within if inside is None else inside & within
        there.append(place)
    old = g.read(body, x, [Linear.dim(i) for i in range(x.rank)])
    return g.finish(body, old if inside is None else inside.select(g.at(body, update, there), old))


@rule("MATRIX_DIAG")
def matrix_diag(g: GraphImporter, node: Node) -> Tensor:
    """The last axis as the diagonal of matrices of zeros."""
    x = node.tensor(0)
    body = g.body((*x.shape, x.shape[-1]))
    element = g.read(body, x, [Linear.dim(i) for i in range(x.rank)])
    on = index(body.space, x.rank) == index(body.space, x.rank - 1)
    return g.finish(body, on.select(element, 0))


@rule("MATRIX_SET_DIAG")
def matrix_set_diag(g: GraphImporter, node: Node) -> Tensor:
    """Matrices with another diagonal."""
    x, diagonal = node.tensor(0), node.tensor(1)
    body = g.body(x.shape)
    old = g.read(body, x, [Linear.dim(i) for i in range(x.rank)])
    row, column = index(body.space, x.rank - 2), index(body.space, x.rank - 1)
    new = g.at(body, diagonal, [*(index(body.space, i) for i in range(x.rank - 2)), row.min(column)])
    return g.finish(body, (row == column).select(new, old))


@rule("BUCKETIZE")
def bucketize(g: GraphImporter, node: Node) -> Tensor:
    """How many boundaries each element has reached."""
    options = node.operator.options
    boundaries = [float(b) for b in options.numbers("boundaries")] if options is not None else []

    def count(e: Num) -> Num:
        wide = e.cast(DType.F32)
        total = e.cast(DType.I32) * 0
        for b in boundaries:
            total = total + (wide >= b).cast(DType.I32)
        return total

    return g.map(count, node.tensor(0))


def _segments(combiner: str) -> Rule:
    def apply(g: GraphImporter, node: Node) -> Tensor:
        x, ids = node.tensor(0), node.tensor(1)
        if node.op == "SEGMENT_SUM":
            stated = node.stated_shape()
            if node.known(1):
                number: DimLike = int(node.numbers(1).max()) + 1
            elif stated is not None:
                number = stated[0]
            else:
                raise node.fail("a number of segments that is computed")
        else:
            number = node.dims(2)[0]
        from mansard.ir.combiners import neutral

        count = dims.product(ids.shape)
        rows = g.cast(g.reshape(ids, (count, 1)), DType.I64)
        rest = x.shape[ids.rank :]
        target = g.full((number, *rest), neutral(combiner, x.dtype), x.dtype)
        return scatter(g, target, rows, g.reshape(x, (count, *rest)), combiner)

    return apply


for _name, _combiner in {
    "SEGMENT_SUM": "add", "UNSORTED_SEGMENT_SUM": "add", "UNSORTED_SEGMENT_PROD": "mul",
    "UNSORTED_SEGMENT_MAX": "max", "UNSORTED_SEGMENT_MIN": "min",
}.items():  # fmt: skip
    enter(_name, _segments(_combiner))
