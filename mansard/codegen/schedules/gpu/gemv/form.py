"""Analysis of contractions that read one large operand once: their loops, and the layout of that operand.

A product of a matrix with one vector, or a few, takes as long as reading the matrix. Its loads must be wide,
in order, and enough of them in flight; the arithmetic is hidden behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.loop_nest import Nest, Read, Root
from mansard.codegen.schedules.common import contraction
from mansard.codegen.schedules.common.base import divides, estimate
from mansard.codegen.schedules.common.contraction import Group
from mansard.codegen.schedules.gpu.elementwise.vector_loads import WORD_BITS
from mansard.dtypes import DType
from mansard.ir.dispatch import is_contraction
from mansard.ir.types import Linear

MAX_ROWS = 8
"""The most rows that share each read of the large operand: with more, the arithmetic is no longer hidden."""
MIN_DEPTH = 32
"""The minimum number of reduced positions, which are distributed over invocations."""
MAX_LOAD_BYTES = 16
"""The widest load of one invocation."""
VECTOR_LOAD_TYPES = frozenset(
    {DType.F32, DType.I32, DType.F16, DType.BF16, DType.I8, DType.U8, DType.I4, DType.U4}
)
"""Element types that are loaded as words."""


@dataclass(frozen=True)
class Form:
    """The loops of a product that reads its large operand once."""

    root: Root
    large: Read
    address: Linear
    """The address at which the large operand is read; of a matrix at a computed place, its strides."""
    column: Group
    """The loop over outputs in which the other operands are reused."""
    rows: tuple[Group, ...]
    """Loops over outputs that read the same elements of the large operand."""
    rest: tuple[Group, ...]
    reduced: tuple[Group, ...]
    along: bool
    """Whether the large operand is contiguous along the innermost reduced loop; otherwise along `column`."""

    @property
    def tiled(self) -> Group:
        """The loop along which the large operand is contiguous."""
        return self.inner if self.along else self.column

    @property
    def inner(self) -> Group:
        """The innermost reduced loop."""
        return self.reduced[-1]


def analyse(nest: Nest) -> Form | None:
    """The form of a contraction with at most `MAX_ROWS` rows; None for anything else."""
    if not contraction.applies(nest):
        return None
    (root,) = (r for r in nest.roots if r.reduces)
    return analyse_root(nest, root)


def analyse_root(nest: Nest, root: Root) -> Form | None:
    """`analyse` for one of the reductions of a nest."""
    if not is_contraction(root.op):
        return None
    outer = nest.collapsed(range(nest.domain), [p for r in nest.roots for p in nest.positions(r)])
    reduced = nest.collapsed(root.inner, nest.positions(root))
    reads = [(read, read.strides) for read in nest.reads(root) if read.strides is not None]
    if not reduced or not outer or estimate(nest.total(root.inner)) < MIN_DEPTH:
        return None
    groups = [*outer, *reduced]
    large, address = max(reads, key=lambda pair: _bytes(nest, pair[0], _indexing_loops(groups, pair[1])))
    walked = _indexing_loops(groups, address)
    if large.guards or not _read_once(nest, large, walked):
        return None
    rows = [g for g in outer if g not in walked]
    count = nest.total([loop for g in rows for loop in g])
    if not isinstance(count, int) or count > MAX_ROWS:
        return None
    columns = [g for g in outer if g in walked]
    if any(g not in walked for g in reduced) or not columns:
        return None
    others = [a for read, a in reads if read is not large]
    column, along = _column(nest, columns, reduced[-1], address, others)
    if column is None or (large.address is None and not along):
        return None
    if large.address is None and large.value.type.dtype.bits < 8:
        size = max_load_elements(large.value.type.dtype)
        if large.computed is None or computed_chunk(nest, large, reduced[-1], size) * 4 < WORD_BITS:
            return None
    rest = tuple(g for g in columns if g is not column)
    return Form(root, large, address, column, tuple(rows), rest, tuple(reduced), along)


def _indexing_loops(groups: Sequence[Group], address: Linear) -> list[Group]:
    loops = {loop for loop, _ in address.terms}
    return [g for g in groups if g[-1] in loops]


def _bytes(nest: Nest, read: Read, walked: Sequence[Group]) -> int:
    """The bits of an operand that the loops read."""
    return estimate(nest.total([loop for g in walked for loop in g])) * read.value.type.dtype.bits


def _read_once(nest: Nest, read: Read, walked: Sequence[Group]) -> bool:
    """Whether every element is read at one point only (unlike in windows)."""
    points = estimate(nest.total([loop for g in walked for loop in g]))
    return points <= estimate(read.value.type.elements)


def _column(
    nest: Nest, columns: Sequence[Group], inner: Group, address: Linear, others: Sequence[Linear]
) -> tuple[Group | None, bool]:
    """The loop to tile, and whether the large operand is contiguous along the reduced loop."""
    strides = dict(address.terms)

    def shared(group: Group) -> int:
        return sum(group[-1] not in dict(other.terms) for other in others)

    if dims.is_one(strides[inner[-1]]):
        return max(columns, key=lambda g: (shared(g), estimate(nest.total(g)))), True
    dense = [g for g in columns if dims.is_one(strides[g[-1]])]
    return (dense[0], False) if dense else (None, False)


def chunk(nest: Nest, address: Linear, group: Group, dtype: DType, max_elements: int) -> int:
    """The number of elements of an aligned load along a loop, at most ``max_elements``. A power of two that
    divides the loop's extent and every stride of the other loops; 1 if the operand is not contiguous along
    the loop.
    """
    terms = dict(address.terms)
    if not dims.is_one(terms.get(group[-1], 0)) or dtype not in VECTOR_LOAD_TYPES:
        return 1
    strides = [c for at, c in terms.items() if at not in group and not dims.is_one(nest.extents[at])]
    size, known = max_elements, (nest.total(group), address.offset, *strides)
    while size > 1 and not all(divides(d, size) for d in known):
        size //= 2
    return size


def computed_chunk(nest: Nest, read: Read, group: Group, max_elements: int) -> int:
    """`chunk` of a read at a computed place; 1 where that is computed from the loop."""
    at = read.computed
    assert at is not None
    if any(loop in group for position in at.positions for loop, _ in position.terms):
        return 1
    size = chunk(nest, at.affine, group, read.value.type.dtype, max_elements)
    while size > 1 and not divides(at.step, size):
        size //= 2
    return size


def max_load_elements(dtype: DType, load: int = MAX_LOAD_BYTES) -> int:
    """Elements of a load of ``load`` bytes, by default the widest."""
    return load * 8 // dtype.bits


def rows_of(nest: Nest, form: Form) -> int:
    """The number of rows that share each read of the large operand."""
    count = nest.total([loop for g in form.rows for loop in g])
    assert isinstance(count, int)
    return count


def chunk_of(nest: Nest, form: Form, load: int = MAX_LOAD_BYTES) -> int:
    """Elements of the large operand in an invocation's load of at most ``load`` bytes."""
    dtype = form.large.value.type.dtype
    return chunk(nest, form.address, form.tiled, dtype, max_load_elements(dtype, load))
