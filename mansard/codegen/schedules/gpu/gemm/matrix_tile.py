"""Tile sizes of products with cooperative matrices."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.codegen.kernel_target import KernelTarget, MatrixShape
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.gpu.gemm.matrix_staging import VECTOR_BITS, StagedOperand
from mansard.dtypes import DType

RESULT_PAD = 1
"""Vectors of 16 bytes as padding between rows of results in shared memory."""


@dataclass(frozen=True)
class GemmMatrixTile:
    """``rows`` x ``columns`` results of a workgroup of ``subgroup_rows`` x ``subgroup_columns`` subgroups.

    The depth is processed in steps of ``depth``. ``split`` subgroups each compute a part of every step for
    the same results, and add their sums at the end. Tiles are ordered in bands of ``band`` row tiles. With
    ``ahead``, these subgroups stage steps of their own instead, of which so many are on their way at a time
    (`streamed`), and where a product has no more than ``few`` rows, that many.
    """

    rows: int
    columns: int
    depth: int
    subgroup_rows: int
    subgroup_columns: int
    split: int = 1
    band: int = 8
    ahead: int = 0
    few: int = 0

    @property
    def subgroups(self) -> int:
        """Subgroups of a workgroup."""
        return self.subgroup_rows * self.subgroup_columns * self.split

    @property
    def staged_rows(self) -> int:
        """Rows that are staged: ``rows``, or those that a product of fewer has."""
        return self.few or self.rows

    def stage_vectors(self, left: StagedOperand, right: StagedOperand) -> int:
        """Vectors of shared memory for one step of both factors."""
        return left.vectors(self.staged_rows, self.depth) + right.vectors(self.columns, self.depth)

    def result_line(self) -> int:
        """The stride of a subgroup's rows of results in shared memory, in vectors."""
        return self.columns // self.subgroup_columns * 32 // VECTOR_BITS + RESULT_PAD

    def shared_vectors(
        self, left: StagedOperand, right: StagedOperand, shape: MatrixShape, *others: StagedOperand
    ) -> int:
        """Vectors of shared memory of a workgroup: staged steps, or a strip of each subgroup's results;
        ``others`` are right factors of products of the same kernel."""
        strips = (1 + len(others)) * self.subgroups * shape.m * self.result_line()
        stages = self.subgroups if self.ahead else 1
        more = sum(other.vectors(self.columns, self.depth) for other in others)
        return max(stages * (self.stage_vectors(left, right) + more), strips)

    def fits(
        self,
        left: StagedOperand,
        right: StagedOperand,
        shape: MatrixShape,
        target: KernelTarget,
        *others: StagedOperand,
    ) -> bool:
        """Whether the target's limits of workgroup size and memory suffice."""
        shared = self.shared_vectors(left, right, shape, *others) * VECTOR_BITS // 8
        invocations = self.subgroups * target.subgroup[0]
        return invocations <= target.workgroup_invocations and shared <= target.shared_memory_bytes

    def parameters(self) -> Parameters:
        """The tile as schedule parameters."""
        return Parameters.of(**{name: getattr(self, name) for name in _NAMES})

    @classmethod
    def of(cls, parameters: Parameters) -> GemmMatrixTile:
        """The inverse of `parameters`."""
        return cls(*(parameters[name] for name in _NAMES))


_NAMES = ("rows", "columns", "depth", "subgroup_rows", "subgroup_columns", "split", "band", "ahead", "few")

_BLOCKS = (
    (128, 128, 2, 2), (128, 64, 2, 1), (64, 128, 1, 2), (128, 64, 2, 2), (64, 128, 2, 2), (64, 64, 2, 2),
    (64, 64, 1, 1), (64, 32, 2, 1), (32, 64, 1, 2), (32, 32, 1, 1), (128, 32, 4, 1), (32, 128, 1, 4),
    (16, 64, 1, 1), (64, 16, 1, 1), (16, 32, 1, 1), (32, 16, 1, 1), (16, 16, 1, 1), (128, 256, 2, 4),
    (256, 128, 4, 2),
)  # fmt: skip
"""Rows and columns of a workgroup's tile, then subgroups along its rows and columns."""


def shape_for(operand: DType, target: KernelTarget) -> MatrixShape | None:
    """The largest cooperative matrix shape with 32-bit sums for an operand type."""
    sums = DType.F32 if operand.is_float else DType.I32
    shapes = [s for s in target.matrices if s.operand is operand and s.accumulator is sums]
    return max(shapes, key=lambda s: s.m * s.n * s.k) if shapes else None


def tiles(
    left: StagedOperand, right: StagedOperand, shape: MatrixShape, target: KernelTarget
) -> list[GemmMatrixTile]:
    """Every tile that fits the target."""
    candidates = []
    for rows, columns, subgroup_rows, subgroup_columns in _BLOCKS:
        if rows % (subgroup_rows * shape.m) or columns % (subgroup_columns * shape.n):
            continue
        for depth in (32, 64, 128, 256):
            for split in (1, 2, 4, 8):
                tile = GemmMatrixTile(rows, columns, depth, subgroup_rows, subgroup_columns, split)
                if depth % (split * shape.k) == 0 and tile.fits(left, right, shape, target):
                    candidates.append(tile)
    return candidates
