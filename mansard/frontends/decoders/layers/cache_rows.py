"""Where a call writes the keys and values of its new tokens: the rows of the caches, for a scatter."""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.decoders.layers.pages import PAGE, page_of
from mansard.frontends.decoders.layers.writer import add
from mansard.ir.graph import GraphBuilder
from mansard.ir.scalar import Apply, Arg, Const, Index, Scalar
from mansard.ir.types import IndexMap, Value


def cache_rows(
    builder: GraphBuilder,
    length: DimLike,
    positions: Value,
    slot: Value | None,
    table: Value | None,
    heads: int | None,
) -> Value:
    """(B * length, 2): the sequence and the position of each new token, of which the first of a sequence
    stands at its ``positions`` (B); with ``heads`` (B * length * heads, 3), each head between these.

    ``slot`` (B) says which sequences of the caches these are, None: all, in order. With a ``table`` of pages
    (B, W) it is the page and the place in it, and padding behind the table's end has page -1, which a scatter
    drops.
    """
    (batch,) = positions.type.shape
    assert isinstance(batch, int)
    position: Scalar = add(Arg(0, DType.I64), Index(1))
    inputs, maps = [positions], list[IndexMap | None]([IndexMap.of_dims((0,))])
    whose: Scalar = Index(0)
    if table is not None:
        width = table.type.shape[1]
        assert isinstance(width, int)
        inside = Apply("lt", (position, Const(width * PAGE, DType.I64)), DType.BOOL)
        page, position = page_of(1, Index(0), position)
        whose = Apply("select", (inside, page, Const(-1, DType.I64)), DType.I64)
        inputs.append(table)
        maps.append(None)
    elif slot is not None:
        whose = Arg(1, DType.I64)
        inputs.append(slot)
        maps.append(IndexMap.of_dims((0,)))
    rows: tuple[DimLike, ...] = (batch, length)
    columns = [whose, position]
    if heads is not None:
        rows, columns = (*rows, heads), [whose, Index(2), position]
    return index_rows(builder, inputs, maps, rows, columns)


def index_rows(
    builder: GraphBuilder,
    inputs: Sequence[Value],
    maps: Sequence[IndexMap | None],
    rows: Sequence[DimLike],
    columns: Sequence[Scalar],
) -> Value:
    """Indices for a scatter, (product of ``rows``, K): the K ``columns`` are i64, over ``rows`` as loops."""
    body = columns[-1]
    for number in reversed(range(len(columns) - 1)):
        here = Apply("eq", (Index(len(rows)), Const(number, DType.I64)), DType.BOOL)
        body = Apply("select", (here, columns[number], body), DType.I64)
    indices = builder.generic(inputs, maps, (*rows, len(columns)), body, name="rows")
    return builder.reshape(indices, (dims.product(rows), len(columns)))
