"""Indices that are shifted or masked by literals: the page that an index is in, and its place there."""

from __future__ import annotations

from mansard import dims
from mansard.dims import DimLike
from mansard.ir.scalar import Apply, Const, Index, Scalar


def page_split(node: Scalar) -> tuple[int, int] | None:
    """The dim and the size of pages, a power of two, of a node that is the page ``index >> shift`` of an
    index or its place in the page, ``index & (size - 1)``; else None."""
    if not (isinstance(node, Apply) and node.op in ("shr", "and")):
        return None
    index, literal = node.args
    if not (isinstance(index, Index) and isinstance(literal, Const)):
        return None
    size = 1 << int(literal.value) if node.op == "shr" else int(literal.value) + 1
    return (index.dim, size) if size > 1 and size & (size - 1) == 0 else None


def masked_within(node: Scalar, extent: DimLike) -> bool:
    """Whether an index is masked by a literal that is below an extent."""
    if not (isinstance(node, Apply) and node.op == "and" and isinstance(node.args[1], Const)):
        return False
    return 0 <= int(node.args[1].value) < dims.bounds(extent)[0]
