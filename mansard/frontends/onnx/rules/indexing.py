"""Reading and writing at computed places."""

from __future__ import annotations

from mansard import dims
from mansard.dtypes import DType
from mansard.frontends.emission import indexing
from mansard.frontends.emission.emitter import axis_of
from mansard.frontends.emission.expressions import Num, index, size
from mansard.frontends.emission.indexing import checked, gather_rows, positive
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.entries import Entry
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import rule
from mansard.ir.types import Linear

COMBINERS = {"none": None, "add": "add", "mul": "mul", "min": "min", "max": "max"}


@rule("Gather")
def gather(g: GraphImporter, node: Node) -> Tensor:
    """Rows of an axis."""
    x, places = node.tensor(0), node.tensor(1)
    axis = axis_of(node.integer("axis"), x.rank)
    if places.content is not None and places.content.size == 1 and not places.symbolic:
        place = int(places.content.reshape(-1)[0])
        start = dims.add(x.shape[axis], place) if place < 0 else place
        part = g.part(x, axis, start, 1)
        return g.reshape(part, (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]))
    return gather_rows(g, x, places, node.full_name, axis)


@rule("GatherElements")
def gather_elements(g: GraphImporter, node: Node) -> Tensor:
    """Elements of an axis, each place by itself."""
    x, places = node.tensor(0), node.tensor(1)
    axis = axis_of(node.integer("axis"), x.rank)
    checked(g, node.full_name, places, x.shape[axis])
    body = g.body(places.shape)
    here = [index(body.space, i) for i in range(x.rank)]
    here[axis] = positive(g.read(body, places, [Linear.dim(i) for i in range(places.rank)]), x.shape[axis])
    return g.finish(body, g.at(body, x, here))


@rule("GatherND")
def gather_nd(g: GraphImporter, node: Node) -> Tensor:
    """Parts at tuples of indices."""
    x, places = node.tensor(0), node.tensor(1)
    batch = node.integer("batch_dims")
    count = places.shape[-1]
    if not isinstance(count, int):
        raise node.fail("indices of a symbolic length")
    lead = places.rank - 1
    body = g.body((*places.shape[:-1], *x.shape[batch + count :]))
    here = [index(body.space, i) for i in range(batch)]
    for i in range(count):
        linear = [*(Linear.dim(d) for d in range(lead)), Linear((), i)]
        here.append(positive(g.read(body, places, linear), x.shape[batch + i]))
    here += [index(body.space, lead + i) for i in range(x.rank - batch - count)]
    return g.finish(body, g.at(body, x, here))


@rule("ScatterElements", "Scatter")
def scatter_elements(g: GraphImporter, node: Node) -> Tensor:
    """Elements written along an axis, each to its own place."""
    x, places, updates = node.tensor(0), node.tensor(1), node.tensor(2)
    axis = axis_of(node.integer("axis"), x.rank)
    checked(g, node.full_name, places, x.shape[axis])
    body = g.body((*places.shape, x.rank))
    column = index(body.space, x.rank)
    chosen = positive(g.read(body, places, [Linear.dim(i) for i in range(places.rank)]), x.shape[axis])
    result: Num = index(body.space, 0) if axis else chosen
    for i in range(1, x.rank):
        result = (column == i).select(chosen if i == axis else index(body.space, i), result)
    count = dims.product(places.shape)
    rows = g.reshape(g.finish(body, result), (count, x.rank))
    return scatter(g, node, x, rows, g.reshape(updates, (count,)))


def scatter(g: GraphImporter, node: Node, x: Tensor, rows: Tensor, updates: Tensor) -> Tensor:
    """A Scatter of rows of indices, with the node's reduction."""
    combiner = COMBINERS[node.text("reduction", "none")]
    return indexing.scatter(g, x, rows, updates, combiner)


@rule("ScatterND")
def scatter_nd(g: GraphImporter, node: Node) -> Tensor:
    """Parts written at tuples of indices."""
    x, places, updates = node.tensor(0), node.tensor(1), node.tensor(2)
    width = places.shape[-1]
    if not isinstance(width, int):
        raise node.fail("indices of a symbolic length")
    body = g.body(places.shape)
    column = index(body.space, places.rank - 1)
    chosen = g.read(body, places, [Linear.dim(i) for i in range(places.rank)]).cast(DType.I64)
    extent = size(body.space, x.shape[0])
    for i in range(1, width):
        extent = (column == i).select(size(body.space, x.shape[i]), extent)
    rows = g.finish(body, (chosen < 0).select(chosen + extent, chosen))
    count = dims.product(places.shape[:-1])
    flat = g.reshape(updates, (count, *x.shape[width:]))
    return scatter(g, node, x, g.reshape(rows, (count, width)), flat)


@rule("OneHot")
def one_hot(g: GraphImporter, node: Node) -> Tensor:
    """A new dim that is on at one index."""
    places, values = node.tensor(0), node.tensor(2)
    stated = g.stated_shape(node)
    rank = places.rank + 1
    axis = axis_of(node.integer("axis", -1), rank)
    if node.tensor(1).content is None and stated is not None:
        depth = stated[axis]
    else:
        (depth,) = (int(d) for d in node.numbers(1).reshape(-1))
    body = g.body((*places.shape[:axis], depth, *places.shape[axis:]))
    linear = [Linear.dim(i if i < axis else i + 1) for i in range(places.rank)]
    chosen = positive(g.read(body, places, linear).cast(DType.I64), depth)
    on, off = (g.read(body, values, [Linear((), i)]) for i in (1, 0))
    return g.finish(body, (index(body.space, axis) == chosen).select(on, off))


@rule("TopK")
def top_k(g: GraphImporter, node: Node) -> list[Entry | None]:
    """The largest (or smallest) entries and where they are."""
    x = node.tensor(0)
    axis = axis_of(node.integer("axis", -1), x.rank)
    stated = g.stated_shape(node)
    if node.version >= 10 and node.tensor(1).content is None and stated is not None:
        limit = stated[axis]
    else:
        limit = int(node.numbers(1).reshape(-1)[0]) if node.version >= 10 else node.integer("k")
    assert isinstance(limit, int)
    values, order = g.builder.sort(g.value(x), axis, bool(node.integer("largest", 1)), limit)
    return [g.tensor(values), g.tensor(order)]


@rule("ReverseSequence")
def reverse_sequence(g: GraphImporter, node: Node) -> Tensor:
    """The first elements of each row, as many as its length says, in reverse."""
    x, lengths = node.tensor(0), node.tensor(1)
    batch, time = node.integer("batch_axis", 1), node.integer("time_axis", 0)
    body = g.body(x.shape)
    here = [index(body.space, i) for i in range(x.rank)]
    length = g.read(body, lengths, [Linear.dim(batch)]).cast(DType.I64)
    here[time] = (here[time] < length).select(length - 1 - here[time], here[time])
    return g.finish(body, g.at(body, x, here))


@rule("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(g: GraphImporter, node: Node) -> Tensor:
    """Columns of the last axis."""
    x, places = node.tensor(0), node.tensor(1)
    flat = g.reshape(places, (dims.product(places.shape),))
    body = g.body((*x.shape[:-1], *flat.shape) if x.rank > 1 else (1, *flat.shape))
    chosen = g.read(body, flat, [Linear.dim(max(x.rank, 2) - 1)]).cast(DType.I64)
    return g.finish(body, g.at(body, x, [*(index(body.space, i) for i in range(x.rank - 1)), chosen]))


@rule("TensorScatter")
def tensor_scatter(g: GraphImporter, node: Node) -> Tensor:
    """A part of a cache's axis replaced, from an index for each batch on."""
    cache, update = node.tensor(0), node.tensor(1)
    axis = axis_of(node.integer("axis", -2), cache.rank)
    starts = node.optional(2)
    extent, length = cache.shape[axis], update.shape[axis]
    circular = node.text("mode", "linear") == "circular"
    body = g.body(cache.shape)
    here = [index(body.space, i) for i in range(cache.rank)]
    start = g.read(body, starts, [Linear.dim(0)]).cast(DType.I64) if starts is not None else here[0].number(0)
    offset = here[axis] - start
    if circular:
        offset = (offset < 0).select(offset + size(body.space, extent), offset)
    inside = (offset >= 0) & (offset < size(body.space, length))
    old = g.read(body, cache, [Linear.dim(i) for i in range(cache.rank)])
    return g.finish(body, inside.select(g.at(body, update, [*here[:axis], offset, *here[axis + 1 :]]), old))
