"""`Unique`: the distinct elements of a tensor, or the distinct slices along an axis."""

from __future__ import annotations

import math

from mansard import dims
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import axis_of
from mansard.frontends.emission.expressions import Num, index
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.entries import Entry
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.rules.selection import bound_of, first_places, number_of
from mansard.frontends.onnx.table import rule
from mansard.ir.types import Linear

MAX_COLUMNS = 64
"""Elements of a slice: each is a sort."""
I64 = DType.I64


@rule("Unique")
def unique(g: GraphImporter, node: Node) -> list[Entry | None]:
    """Values, the first place of each, the value of every place, and how often each occurs.

    Beyond the number of values there are zeros, -1 as places, and 0 occurrences.
    """
    x = node.tensor(0)
    if not all(isinstance(d, int) for d in x.shape):
        raise node.fail(f"an operand of {list(x.shape)}")
    shape = [int(str(d)) for d in x.shape]
    axis = axis_of(node.integer("axis"), x.rank) if node.has("axis") else None
    rest = [] if axis is None else [d for k, d in enumerate(shape) if k != axis]
    count, width = (math.prod(shape), 1) if axis is None else (shape[axis], math.prod(rest))
    if count == 0 or width == 0 or width > MAX_COLUMNS:
        raise node.fail(f"{count} slices of {width} elements; up to {MAX_COLUMNS} elements are compared")
    outer = x if axis is None else g.transpose(x, [axis, *(k for k in range(x.rank) if k != axis)])
    rows = g.reshape(outer, (count, width))
    rows = g.cast(rows, DType.I32) if x.dtype is DType.BOOL else rows
    order = _order(g, rows)
    lines = _rows_at(g, rows, order)
    first = _begins(g, lines)
    number = g.map(lambda n: n - 1, g.tensor(g.builder.scan(g.value(g.cast(first, I64)), 0)))
    bound = bound_of(g, node, 0 if axis is None else axis, count, [k for k in (0, 1, 3) if _given(node, k)])
    if bound.derived:
        for output, along in ((0, axis or 0), (1, 0), (3, 0)):
            if _given(node, output):
                g.sizes[node.outputs[output]] = (along, number_of(g, first))
    begins = first_places(g, first, bound.size)
    places = _at(g, order, begins, count)
    lengths = _lengths(g, begins, count)
    inverse = _at(g, number, _inverse(g, order), 0)
    if not node.integer("sorted", 1):
        sequence = _sorted_order(g, places)
        begins, places, lengths = (
            _at(g, t, sequence, fill) for t, fill in ((begins, -1), (places, count), (lengths, 0))
        )
        inverse = _at(g, _inverse(g, sequence), inverse, 0)
    values = _rows_at(g, lines, begins)
    values = g.map(lambda v: v != 0, values) if x.dtype is DType.BOOL else values
    values = g.reshape(values, (bound.size, *rest)) if axis is not None else g.reshape(values, (bound.size,))
    if axis:
        values = g.transpose(values, [*range(1, axis + 1), 0, *range(axis + 1, x.rank)])
    places = g.map(lambda p: (p >= count).select(-1, p), places)
    results: list[Entry | None] = [values, places, inverse, lengths]
    return results[: len(node.outputs)]


def _given(node: Node, output: int) -> bool:
    return output < len(node.outputs) and bool(node.outputs[output])


def _order(g: GraphImporter, rows: Tensor) -> Tensor:
    """The places of rows in ascending order, by their first elements, then the second, and so on."""
    width = int(str(rows.shape[1]))
    order: Tensor | None = None
    for column in reversed(range(width)):
        keys = g.take(rows, 1, column)
        keys = keys if order is None else _at(g, keys, order, 0)
        places = _sorted_order(g, keys)
        order = places if order is None else _at(g, order, places, 0)
    assert order is not None
    return order


def _sorted_order(g: GraphImporter, keys: Tensor) -> Tensor:
    return g.tensor(g.builder.sort(g.value(keys), 0)[1])


def _inverse(g: GraphImporter, order: Tensor) -> Tensor:
    """The place of each number in a permutation."""
    return _sorted_order(g, order)


def _at(g: GraphImporter, t: Tensor, places: Tensor, fill: int) -> Tensor:
    """Elements of a vector; ``fill`` where a place is negative."""
    body = g.body(places.shape)
    place = g.read(body, places, [Linear.dim(0)])
    return g.finish(body, (place < 0).select(fill, g.at(body, t, [place.max(0)])))


def _rows_at(g: GraphImporter, rows: Tensor, places: Tensor) -> Tensor:
    """Rows at places; zeros where one is negative."""
    body = g.body((places.shape[0], rows.shape[1]))
    place = g.read(body, places, [Linear.dim(0)])
    element = g.at(body, rows, [place.max(0), index(body.space, 1)])
    return g.finish(body, (place < 0).select(element.number(0), element))


def _begins(g: GraphImporter, lines: Tensor) -> Tensor:
    """Whether each row differs from the one before; NaNs do not differ."""
    body = g.body(lines.shape)
    here, column = index(body.space, 0), index(body.space, 1)
    a, b = g.read(body, lines, [Linear.dim(0), Linear.dim(1)]), g.at(body, lines, [(here - 1).max(0), column])
    differs: Num = a != b
    if lines.dtype.is_float:
        differs = differs & (a.compare("eq", a) | b.compare("eq", b))
    flags = (here == 0) | differs
    return g.map(lambda f: f != 0, g.finish(body, flags.cast(DType.I32), 1, "max"))


def _lengths(g: GraphImporter, begins: Tensor, count: int) -> Tensor:
    """The distances from one begin to the next, or to the end; 0 for those beyond the last."""
    size = dims.product(begins.shape)
    body = g.body(begins.shape)
    here = index(body.space, 0)
    begin = g.read(body, begins, [Linear.dim(0)])
    following = g.at(body, begins, [(here + 1).min(size - 1 if isinstance(size, int) else 0)])
    last = (here == int(str(size)) - 1) | (following < 0)
    end = last.select(count, following)
    return g.finish(body, (begin < 0).select(0, end - begin))
