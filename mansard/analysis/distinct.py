"""Whether the rows of an index tensor are pairwise different, by how they are computed.

Indices that models write caches at are sums of an iteration index and of a value that is the same for all
rows (a position), one column per dim of the target::

    %where: [8*S]x3xi64 = reshape (h:8, s:S, k:3) {select(k == 0, 0, select(k == 1, h, %position[] + s))}

Every dim here has a column that changes with it and with no other dim, so no two rows are equal. Where
frontends write single elements, columns are constants instead, and rows are compared by what is known of them
(`mansard.analysis.index_values`). Addition is taken not to overflow i64.
"""

from __future__ import annotations

from collections.abc import Mapping

from mansard import dims
from mansard.analysis.affine import Affine
from mansard.analysis.index_values import rows_differ
from mansard.analysis.linear import I64
from mansard.ir.ops import Generic, Op
from mansard.ir.producers import base_of
from mansard.ir.scalar import Apply, Arg, Const, DimValue, Index, Scalar, rewrite
from mansard.ir.types import Constant, Linear, Value

MAX_COLUMNS = 8
"""The most columns of an index tensor that are analysed."""


def distinct_rows(
    indices: Value, producers: Mapping[Value, Op], constants: Mapping[Value, Constant] | None = None
) -> bool:
    """Whether no two rows of an index tensor (N, K) are equal; False where that is not known."""
    rows, columns = indices.type.shape
    if dims.bounds(rows)[1] <= 1:
        return True
    if not isinstance(columns, int) or not 0 < columns <= MAX_COLUMNS:
        return False
    op = producers.get(base_of(indices, producers))
    if not isinstance(op, Generic) or op.combiner is not None or not op.rank or op.extents[-1] != columns:
        return False
    # A column that is not understood does no harm where the others tell all rows apart.
    walked = [w for column in range(columns) if (w := _dims_of(op, column, producers)) is not None]
    alone = {next(iter(w)) for w in walked if len(w) == 1}
    if all(dims.is_one(extent) or d in alone for d, extent in enumerate(op.extents[:-1])):
        return True
    return isinstance(rows, int) and rows_differ(op, rows, producers, constants or {})


def _dims_of(op: Generic, column: int, producers: Mapping[Value, Op]) -> set[int] | None:
    """The dims (but the last) that a column changes with, in equal steps each; None where it may change in
    another way."""
    last = op.rank - 1
    fixed = rewrite(op.body, lambda n: Const(column, I64) if isinstance(n, Index) and n.dim == last else n)
    linear = _steps(op, fixed, Affine(op.extents), producers)
    if linear is None:
        return None
    terms = [(d, c) for d, c in linear.terms if d != last and not dims.is_one(op.extents[d])]
    if any(not isinstance(c, int) and dims.bounds(c)[0] <= 0 for _, c in terms):
        return None
    return {d for d, _ in terms}


def _steps(op: Generic, node: Scalar, affine: Affine, producers: Mapping[Value, Op]) -> Linear | None:
    """The affine part of a number that is an affine index plus a value that no dim changes."""
    if node.dtype is not I64:
        return None
    if isinstance(node, Arg):
        return _operand_steps(op, node, producers)
    if isinstance(node, (Const, DimValue)):
        return Linear()
    if isinstance(node, Apply):
        if node.op == "select":
            chosen = _decided(node.args[0], affine)
            return None if chosen is None else _steps(op, node.args[1 if chosen else 2], affine, producers)
        if node.op in ("add", "sub"):
            a, b = (_steps(op, arg, affine, producers) for arg in node.args)
            if a is None or b is None:
                return None
            return a.plus(b.scaled(1 if node.op == "add" else -1))
    linear = affine.linear(node)
    return None if linear is None else Linear(linear.terms)


def _operand_steps(op: Generic, node: Arg, producers: Mapping[Value, Op]) -> Linear | None:
    """`_steps` of an operand: nothing where all of the op reads one element, else by how it is computed."""
    index_map = op.maps[node.index]
    if index_map is None or index_map.fill is not None:
        return None
    if all(dims.is_one(op.extents[d]) for r in index_map.results for d, _ in r.terms):
        return Linear()
    source = producers.get(op.inputs[node.index])
    if not isinstance(source, Generic) or source.combiner is not None:
        return None
    inner = _steps(source, source.body, Affine(source.extents), producers)
    return None if inner is None else Linear(inner.compose(index_map.results).terms)


def _decided(condition: Scalar, affine: Affine) -> bool | None:
    """The outcome of a condition that is the same at every point."""
    if isinstance(condition, Const):
        return bool(condition.value)
    if not isinstance(condition, Apply) or len(condition.args) != 2 or condition.args[0].dtype.is_float:
        return None
    if condition.op in ("eq", "ne", "lt", "le", "gt", "ge"):
        return affine.compare(condition.op, *condition.args)
    return None
