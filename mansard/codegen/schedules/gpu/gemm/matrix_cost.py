"""Cost model of tiles for products with cooperative matrices, fitted to measurements on an NVIDIA H200.

Of 210 kernels (products of 16x3072x1024 to 8192x8192x8192 in bf16 and f16, each with up to 24 tiles) its root
mean square error is 8 %, and the tile with the lowest predicted cost is within 5 % of the fastest measured.
Other GPUs have other rates in similar proportions.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.codegen.kernel_target import KernelTarget, MatrixShape
from mansard.codegen.schedules.gpu.gemm.matrix_staging import StagedOperand
from mansard.codegen.schedules.gpu.gemm.matrix_tile import GemmMatrixTile

LINE = 128
"""Bytes per clock that a core moves to and from shared memory, or out of its cache."""
REGISTERS, MAX_REGISTERS = 65536, 255
"""32-bit registers of a core, and the most of an invocation."""
INVOCATIONS = 2048
"""Resident invocations of a core."""
SHARED = 220_000
"""Bytes of shared memory of a core, for all its workgroups."""
FETCH = 1.86
"""Clocks to load a cache line from memory into registers."""
OVERLAP, OVERLAP_ALONE = 6.6, 2.3
"""The overlap of products and memory traffic between several workgroups of a core, and within one, as the
order of a norm: 1 is none, larger is better."""
LATENCY, LATENCY_VECTOR = 320.0, 20.2
"""The minimum clocks of a step, and the clocks for each vector that an invocation moves, with nothing to hide
them."""
EXPOSED = 0.25
"""The share of its own work that a workgroup waits for in addition."""
START, PER_RESULT = 956.0, 0.5
"""Clocks before and after the steps, and for each result of a subgroup."""
SPILL = 0.76 / 64
"""The increase of a step's time for each register over the limit, as a share of it."""


@dataclass(frozen=True)
class MatrixGemmShape:
    """Sizes of a product."""

    batch: int
    rows: int
    columns: int
    depth: int


def cost(
    tile: GemmMatrixTile,
    gemm: MatrixGemmShape,
    left: StagedOperand,
    right: StagedOperand,
    shape: MatrixShape,
    target: KernelTarget,
) -> float:
    """The predicted clocks of the product."""
    size, bits = target.subgroup[0], left.dtype.bits
    blocks = gemm.batch * -(-gemm.rows // tile.rows) * -(-gemm.columns // tile.columns)
    steps = -(-gemm.depth // tile.depth)
    subgroup_rows, subgroup_columns = tile.rows // tile.subgroup_rows, tile.columns // tile.subgroup_columns
    products = tile.rows * tile.columns * tile.depth * bits / (16 * 1024)
    moved = (tile.rows + tile.columns) * tile.depth * bits // 8
    read = (
        tile.subgroup_rows
        * tile.subgroup_columns
        * (subgroup_rows + subgroup_columns)
        * tile.depth
        * bits
        // 8
    )
    lines = _lines(left, tile.rows, tile.depth) + _lines(right, tile.columns, tile.depth)
    path = FETCH * lines + (moved + read) / LINE
    threads = tile.subgroups * size
    registers = (
        subgroup_rows * subgroup_columns // size
        + moved // 4 // threads
        + (subgroup_rows + subgroup_columns) // 2
    )
    resident = max(1, min(
        16, INVOCATIONS // threads, REGISTERS // (threads * min(MAX_REGISTERS, registers)),
        SHARED // (tile.shared_vectors(left, right, shape) * 16),
    ))  # fmt: skip
    spilled = 1 + SPILL * max(0, registers - MAX_REGISTERS)
    alone = products / min(1.0, tile.subgroups / 4)
    waits = LATENCY + LATENCY_VECTOR * moved / 16 / threads + EXPOSED * (alone + path)

    def wave(concurrent: int) -> float:
        """Clocks for all steps of ``concurrent`` workgroups on one core."""
        work = products * concurrent / min(1.0, tile.subgroups * concurrent / 4)
        order = OVERLAP if concurrent > 1 else OVERLAP_ALONE
        busy: float = (work**order + (path * concurrent) ** order) ** (1 / order)
        return steps * max(busy, waits) * spilled + START + PER_RESULT * subgroup_rows * subgroup_columns

    full, rest = divmod(blocks, target.compute_units * resident)
    return full * wave(resident) + (wave(-(-rest // target.compute_units)) if rest else 0.0)


def _lines(operand: StagedOperand, side: int, depth: int) -> float:
    """Cache lines that a tile of a factor touches; a line read in pieces counts once for each piece."""
    along, lines = (depth, side) if operand.along == "depth" else (side, depth)
    per_line = -(-along * operand.dtype.bits // (8 * LINE))
    return lines * per_line * operand.per_vector / operand.lanes
