"""Applicability and tile sizes of attention with cooperative matrices."""

from __future__ import annotations

from dataclasses import dataclass

from mansard import dims
from mansard.codegen.kernel_target import KernelTarget, MatrixShape
from mansard.codegen.loop_nest import Guard, Root
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common.attention_nest import (
    AttentionLoops,
    AttentionNest,
    Group,
    classify,
    distribute,
)
from mansard.codegen.schedules.common.base import estimate
from mansard.codegen.schedules.gpu.attention.exchange import can_exchange, scratch_vectors
from mansard.dtypes import DType
from mansard.ir.scalar import Arg, Cast, Scalar
from mansard.ir.types import Linear, Value

FEW_ROWS = 32
"""With fewer rows per head most of a matrix is empty, and the time is that of reading keys."""
MIN_KEYS = 64
"""The number of keys from which few rows are worth a matrix."""
_BLOCKS = ((64, 4), (64, 8), (128, 4), (128, 8), (32, 4), (32, 2), (64, 2), (32, 1))
"""(keys per block, subgroups per workgroup) for many rows, the default first."""
MAX_ELEMENTS = 128
"""The most elements of a key or a value: with more, the results do not fit the registers."""
MAX_PIECES = 16
"""The most pieces of keys or values whose loads an invocation has in flight."""
PIECE = 8
"""16-bit elements per load."""


@dataclass(frozen=True)
class AttentionMatrixTile:
    """Rows and keys of a block are multiples of the shape's; ``threads`` are whole subgroups, each with as
    many rows as the shape."""

    shape: MatrixShape
    keys: int
    threads: int
    subgroups: int

    @property
    def rows(self) -> int:
        """Rows of a workgroup."""
        return self.subgroups * self.shape.m

    def shared_pieces(self, depth: int, columns: int) -> int:
        """16-byte pieces in workgroup memory: keys and values of a block, or a tile's results in f32."""
        tiles = self.keys * (depth // PIECE + 1 + columns // PIECE + 1)
        queries = self.rows * (depth // PIECE + 1)
        return max(tiles, queries, self.rows * (columns // 4 + 1))

    def shared_bytes(self, depth: int, columns: int) -> int:
        """Bytes of workgroup memory, including the matrix of element numbers."""
        return 16 * self.shared_pieces(depth, columns) + 4 * self.shape.m * self.shape.n


@dataclass(frozen=True)
class AttentionOperand:
    """A factor that is read directly from a buffer: contiguous along ``group``, each row at a multiple of 16
    bytes. Rows outside the ``guards`` are zeros."""

    value: Value
    address: Linear
    group: Group
    guards: tuple[Guard, ...]


def tiles_for(nest: AttentionNest, target: KernelTarget) -> list[AttentionMatrixTile]:
    """All candidate tiles, the default first; none if the target has no cooperative matrices for the
    attention, or if its layout is unsuitable."""
    target = target.with_one_subgroup_size()
    smallest, largest = target.subgroup
    loops = classify(nest)
    depth, columns = nest.depth_and_columns()
    operand_triple = operands(nest, loops)
    if smallest != largest or operand_triple is None:
        return []
    work = distribute(nest, loops)
    rows = estimate(nest.total([d for g in work.rows for d in g]))
    length = nest.extents[nest.key_loop]
    if len(nest.parts()) > 1 or (rows < FEW_ROWS and dims.bounds(length)[1] < MIN_KEYS):
        return []
    dtype = operand_triple[0].value.type.dtype
    shapes = [s for s in target.matrices if s.operand is dtype and s.accumulator is DType.F32 and s.n == s.k]
    if max(depth, columns) > MAX_ELEMENTS:
        return []
    tiles = []
    for shape in shapes:
        if depth % shape.k or columns % shape.n or shape.k % PIECE or not can_exchange(shape, target):
            continue
        few = [(keys, -(-rows // shape.m)) for keys in (32, 64)]  # every subgroup has some of the rows
        for keys, subgroups in few if rows < FEW_ROWS else _BLOCKS:
            tile = AttentionMatrixTile(shape, keys, subgroups * smallest, subgroups)
            used = tile.shared_bytes(depth, columns) + 16 * sum(
                scratch_vectors(shape, keys, subgroups, target)
            )
            pieces = keys * max(depth, columns) // PIECE // tile.threads
            fits = used <= target.shared_memory_bytes and keys % shape.n == 0 and pieces <= MAX_PIECES
            if fits and tile.threads <= target.workgroup_invocations:
                tiles.append(tile)
    heads = estimate(nest.total([d for g in work.rest for d in g]))
    # Where half of the cores would be idle, tiles of fewer rows come first. Of rows whose number varies, many
    # count: few take little time with any tile.
    many = max(rows, dims.bounds(nest.total([d for g in work.rows for d in g]))[1] // 2)
    busy = [t for t in tiles if 2 * heads * -(-many // t.rows) >= target.compute_units]
    return [*busy, *sorted((t for t in tiles if t not in busy), key=lambda t: t.rows)]


def parameters_of(tile: AttentionMatrixTile) -> Parameters:
    """The schedule parameters of a tile."""
    return Parameters.of(matrix=tile.shape.m, keys=tile.keys, threads=tile.threads)


def operands(
    nest: AttentionNest, loops: AttentionLoops
) -> tuple[AttentionOperand, AttentionOperand, AttentionOperand] | None:
    """Query, key and value, if matrices can be loaded from their layout: 16-bit floats of one type."""
    form, column = nest.form, loops.column
    if column is None:
        return None
    sides: tuple[tuple[Root, Scalar, Group], ...] = (
        (nest.scores, form.query, [nest.depth_loop]),
        (nest.scores, form.key, [nest.depth_loop]),
        (nest.weighted, form.value, column),
    )
    operand_triple = [_operand(nest, *side) for side in sides]
    query, key, value = operand_triple
    if query is None or key is None or value is None:
        return None
    return (query, key, value) if len({o.value.type.dtype for o in (query, key, value)}) == 1 else None


def _operand(nest: AttentionNest, root: Root, factor: Scalar, group: Group) -> AttentionOperand | None:
    if not isinstance(factor, Cast) or not isinstance(factor.arg, Arg):
        return None
    op, operand = root.op, factor.arg.index
    guards = nest.guards(op, operand, root.index)
    if any(loop in group for at, _ in guards for loop, _ in at.terms):
        return None
    value, address = nest.locate(op.inputs[operand], nest.operand_index(op, operand, root.index))
    if not isinstance(address, Linear) or value.type.dtype not in (DType.F16, DType.BF16):
        return None
    terms = {loop: c for loop, c in address.terms if not dims.is_one(nest.extents[loop])}
    apart = [c for loop, c in terms.items() if loop not in group]
    if terms.get(group[-1]) != 1 or any(dims.exact_div(c, PIECE) is None for c in (*apart, address.offset)):
        return None
    return AttentionOperand(value, address, group, guards)
