"""Paged caches: positions of a sequence lie in pages, and a table says in which.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023.
"""

from __future__ import annotations

from mansard.dtypes import DType
from mansard.ir.scalar import Apply, Const, Gather, Scalar

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
