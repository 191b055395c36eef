"""Paged caches: positions of a sequence lie in pages, and a table says in which.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023.
"""

from __future__ import annotations

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.decoders.layers.writer import add
from mansard.ir.graph import GraphBuilder
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Value

PAGE = 128
"""Positions of a page, a power of two."""
_SHIFT = PAGE.bit_length() - 1


def table_width(context: int) -> int:
    """Pages that hold ``context`` positions."""
    return -(-context // PAGE)


def page_of(table: int, sequence: Scalar, position: Scalar) -> tuple[Scalar, Scalar]:
    """The page of a sequence's position, and the place in it; operand ``table`` is the table of pages."""
    page = Apply("shr", (position, Const(_SHIFT, DType.I64)), DType.I64)
    place = Apply("and", (position, Const(PAGE - 1, DType.I64)), DType.I64)
    return Gather(table, (sequence, page), DType.I64), place


def page_rows(builder: GraphBuilder, table: Value, positions: Value, length: DimLike) -> Value:
    """(B * length, 2): page and place of each new token, of which the first of a sequence stands at its
    ``positions`` (B). Padding behind the table's end has page -1, which a scatter drops."""
    batch, width = table.type.shape
    assert isinstance(batch, int) and isinstance(width, int)
    position = add(Arg(0, DType.I64), Index(1))
    page, place = page_of(1, Index(0), position)
    inside = Apply("lt", (position, Const(width * PAGE, DType.I64)), DType.BOOL)
    page = Apply("select", (inside, page, Const(-1, DType.I64)), DType.I64)
    first = Apply("eq", (Index(2), Const(0, DType.I64)), DType.BOOL)
    body = Apply("select", (first, page, place), DType.I64)
    pairs = builder.generic(
        (positions, table), (IndexMap.of_dims((0,)), None), (batch, length, 2), body, name="rows"
    )
    return builder.reshape(pairs, (dims.mul(batch, length), 2))
