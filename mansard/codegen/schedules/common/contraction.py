"""Classification of contractions by the memory layout of their operands.

Two forms:

* *outer* (outer products): vectors run along a parallel dim along which operands are contiguous or constant;
  other operands are broadcast. Matmul with (K, N) weights, 1x1 and depthwise convolution on NCHW.
* *dot* (inner products): vectors run along the innermost reduced dim; each accumulator is one output, whose
  lanes are summed at the end. Matmul with (N, K) weights, matrix-vector products, attention scores.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import estimate
from mansard.dims import DimLike
from mansard.ir.dispatch import is_contraction

Group = list[int]


@dataclass(frozen=True)
class Shape:
    """The form of a contraction and the roles of its loops."""

    form: str  # outer, dot
    column: Group | None
    row: Group | None
    rest: list[Group]
    reduced: list[Group]


def applies(nest: Nest) -> bool:
    """Whether a nest is one reduction other than argmin or argmax, with all other roots stored per domain
    point."""
    reductions = [r for r in nest.roots if r.reduces]
    if len(reductions) != 1 or reductions[0].op.combiner in reduce.ARG:
        return False
    return all(not r.inner for r in nest.roots if not r.reduces)


def analyse(nest: Nest, root: Root) -> Shape:
    """Choose the form and the loops of the register tile from the operands' strides."""
    outer = nest.collapsed(range(nest.domain), [p for r in nest.roots for p in nest.positions(r)])
    reduced = nest.collapsed(root.inner, nest.positions(root))
    reads = [dict(r.strides.terms) for r in nest.reads(root) if r.strides is not None]

    def stride(read: dict[int, DimLike], group: Group) -> DimLike:
        return read.get(group[-1], 0)

    def contiguous(group: Group) -> bool:
        return all(stride(read, group) in (0, 1) for read in reads)

    store = nest.result_strides()
    columns = [g for g in outer if contiguous(g) and store.get(g[-1], 0) == 1]
    dot = bool(reduced) and contiguous(reduced[-1]) and sum(stride(r, reduced[-1]) == 1 for r in reads) >= 2
    vectorizes = bool(columns) and estimate(nest.total(columns[-1])) >= 4
    if vectorizes or not dot or estimate(nest.total(reduced[-1])) < 8:
        column = columns[-1] if columns else (outer[-1] if outer else None)
        row = _row(nest, [g for g in outer if g is not column], reads, column)
        form = "outer"
    else:
        # Operands that the same loops index are parts of one, such as a weight stored in two.
        walks = {frozenset(read) for read in reads}
        ranked = sorted(outer, key=lambda g: (-_reuse(walks, g), -estimate(nest.total(g))))
        column = ranked[0] if ranked else None
        row = next((g for g in ranked[1:] if _complementary(reads, g, column)), None)
        form = "dot"
    rest = [g for g in outer if g is not column and g is not row]
    return Shape(form, column, row, rest, reduced)


def _reuse(reads: Iterable[Container[int]], group: Group) -> int:
    """The number of operands that are invariant in a loop."""
    return sum(group[-1] not in read for read in reads)


def _complementary(reads: Sequence[dict[int, DimLike]], a: Group, b: Group | None) -> bool:
    """Whether each of two loops reuses an operand that the other indexes."""
    if b is None:
        return False
    walks_a = {i for i, read in enumerate(reads) if a[-1] in read}
    walks_b = {i for i, read in enumerate(reads) if b[-1] in read}
    return bool(walks_a - walks_b) and bool(walks_b - walks_a)


def _row(
    nest: Nest, groups: list[Group], reads: Sequence[dict[int, DimLike]], column: Group | None
) -> Group | None:
    """The loop whose unrolling reuses the most vectors loaded along ``column``."""
    best, score = None, (0, 0)
    for group in groups:
        shared = sum(column is not None and column[-1] in read and group[-1] not in read for read in reads)
        if not shared:
            shared = _reuse(reads, group)
        candidate = (shared, min(estimate(nest.total(group)), 64))
        if shared and candidate > score:
            best, score = group, candidate
    return best


def fit_tile(total: int, limit: int) -> int:
    """The tile size up to ``limit`` that wastes the least of ``total``, preferring larger ones."""
    if total <= limit:
        return max(1, total)
    return min(range(limit, max(1, limit // 2) - 1, -1), key=lambda t: (-total % t) / total)


def is_tiled(nest: Nest) -> bool:
    """Whether a nest is best computed in tiles of outputs: a contraction, or a reduction with strided
    operands."""
    if not applies(nest):
        return False
    (root,) = (r for r in nest.roots if r.reduces)
    return is_contraction(root.op) or not _rows_contiguous(nest, root)


def _rows_contiguous(nest: Nest, root: Root) -> bool:
    """Whether the reduction's innermost loop indexes its operands with unit stride."""
    groups = nest.collapsed(root.inner, nest.positions(root))
    if not groups:
        return True
    loop = groups[-1][-1]
    strides = [dict(r.address.terms).get(loop, 0) for r in nest.reads(root) if r.address is not None]
    return all(s in (0, 1) for s in strides) and 1 in strides
