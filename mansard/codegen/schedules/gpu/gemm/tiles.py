"""Tile sizes of matrix products on a GPU without cooperative matrices, and their cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common.base import estimate
from mansard.codegen.schedules.gpu.gemm.product import LANES, Product
from mansard.codegen.schedules.gpu.gemm.staging import row_vectors
from mansard.errors import CodegenError

CANDIDATES = 12
"""The most tiles offered to a search."""


@dataclass(frozen=True)
class GemmTile:
    """``rows`` x ``columns`` results of a workgroup, ``thread_rows`` x ``thread_columns`` of an invocation.

    ``split`` groups of invocations each process every ``split``-th tile of ``depth`` reduced positions, and
    add their sums at the end.
    """

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int
    split: int

    @property
    def threads(self) -> int:
        """Invocations of one group."""
        return (self.rows // self.thread_rows) * (self.columns // self.thread_columns)

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        return self.threads * self.split

    def stage_vectors(self, product: Product) -> int:
        """Vectors of shared memory that one group needs for one tile of both factors."""
        left, right = row_vectors(product.left, self.rows), row_vectors(product.right, self.columns)
        return self.depth * (left + right)

    def shared_vectors(self, product: Product) -> int:
        """Vectors of shared memory of a workgroup: two tiles of both factors, or all groups' results."""
        staged = 2 * self.split * self.stage_vectors(product)
        return max(staged, self.split * self.rows * self.columns // LANES if self.split > 1 else 0)

    def fits(self, product: Product, target: KernelTarget) -> bool:
        """Whether the target's limits of workgroup size and memory suffice."""
        shared = self.shared_vectors(product) * LANES * 4
        return self.invocations <= target.workgroup_invocations and shared <= target.shared_memory_bytes

    def parameters(self) -> Parameters:
        """The tile as schedule parameters."""
        return Parameters.of(
            rows=self.rows, columns=self.columns, depth=self.depth, thread_rows=self.thread_rows,
            thread_columns=self.thread_columns,
            split=self.split,
        )  # fmt: skip

    @classmethod
    def of(cls, parameters: Parameters) -> GemmTile:
        """The inverse of `parameters`. Raises CodegenError for sizes that the schedule cannot divide."""
        names = ("rows", "columns", "depth", "thread_rows", "thread_columns", "split")
        tile = cls(*(parameters[name] for name in names))
        sizes = (tile.rows, tile.columns, tile.depth, tile.thread_rows, tile.thread_columns, tile.split)
        powers = all(size > 0 and size & (size - 1) == 0 for size in sizes)
        nested = LANES <= tile.thread_rows <= tile.rows and LANES <= tile.thread_columns <= tile.columns
        if not powers or not nested or tile.depth < LANES:
            raise CodegenError(
                f"tile ({parameters}): sizes must be powers of two, depth, thread_rows and thread_columns "
                f"{LANES} or more, thread_rows up to rows and thread_columns up to columns"
            )
        return tile


SHAPES = (
    (128, 128, 8, 8), (64, 128, 8, 8), (64, 64, 8, 8), (64, 64, 8, 4), (64, 64, 4, 4),
    (128, 32, 8, 4), (64, 32, 8, 4), (32, 64, 8, 4), (32, 64, 4, 8), (64, 32, 4, 4), (32, 64, 4, 4),
    (32, 32, 8, 4), (32, 32, 4, 4), (64, 16, 4, 4), (16, 64, 4, 4), (32, 16, 8, 4), (16, 32, 8, 4),
    (32, 16, 4, 4), (16, 32, 4, 4), (16, 16, 4, 4),
)  # fmt: skip
"""Rows and columns of a workgroup's tile, then of an invocation's."""
WHOLE = 64 * 64
"""The number of results from which a tile is not split, and shallow: it fills a core, and there are many."""


def tiles(nest: Nest, product: Product, target: KernelTarget) -> list[GemmTile]:
    """Every tile that fits the target, in order of predicted cost."""
    depth = estimate(product.depth)
    candidates = []
    for rows, columns, thread_rows, thread_columns in SHAPES:
        whole = rows * columns >= WHOLE
        for step in (8,) if whole else (8, 16, 32):
            for split in (1,) if whole else (1, 2, 4, 8, 16):
                tile = GemmTile(rows, columns, step, thread_rows, thread_columns, split)
                if tile.fits(product, target) and (split == 1 or split * step < 2 * depth):
                    candidates.append(tile)
    batch = estimate(nest.total([loop for group in product.batch for loop in group]))
    shape = TiledGemmShape(batch, estimate(product.left.extent), estimate(product.right.extent), depth)
    return sorted(candidates, key=lambda tile: cost(tile, shape, target.compute_units))


@dataclass(frozen=True)
class TiledGemmShape:
    """The extents of a product, with representative values for dynamic ones."""

    batch: int
    rows: int
    columns: int
    depth: int


# The model of a core and its share of the second-level cache, fitted to 205 times of 21 products, some ten
# tiles each, on an H200. Among the timed tiles, the one it selects is 2 % slower than the best on average, 14
# % at most. For other GPUs it is an estimate, which tuning corrects.
CORE_INVOCATIONS = 2048
CORE_REGISTERS = 65536
CORE_SHARED = 220_000
"""Bytes of shared memory of a core, for all its resident workgroups."""
FMA, SHARED_READ, STAGED, ISSUED = 1.12, 0.26, 0.044, 4.7
"""Clocks of a core for four subgroups' multiply-add, for reading a vector, for staging an element, and for
the other instructions of a subgroup in a step."""
LATENCY, ALONE, MOVED = 415.0, 1.15, 9.1
"""Clocks of a step on an otherwise idle core: memory latency, and for each of an invocation's multiply-adds
and operand elements, and for each element that it stages."""
LAUNCH = 7800.0
"""Clocks of an empty dispatch."""
CACHE_BYTES = 10.5
"""Bytes per clock that each core gets from the second-level cache when all read concurrently."""


def cost(tile: GemmTile, shape: TiledGemmShape, cores: int) -> float:
    """The predicted clocks of a product, by the model of a core above."""
    blocks = shape.batch * -(-shape.rows // tile.rows) * -(-shape.columns // tile.columns)
    steps = -(-shape.depth // (tile.depth * tile.split))
    results, operands = tile.thread_rows * tile.thread_columns, tile.thread_rows + tile.thread_columns
    subgroups = max(tile.invocations / 32, 1.0)
    staged = tile.depth * (tile.rows + tile.columns) * tile.split
    shared = max(8 * staged, 4 * tile.split * tile.rows * tile.columns if tile.split > 1 else 0)
    registers = min(255, results + operands + staged // tile.invocations + 40)
    resident = min(CORE_INVOCATIONS, CORE_REGISTERS // registers) // tile.invocations
    resident = max(1, min(resident, CORE_SHARED // shared))
    on_core = -(-blocks // cores)
    groups = min(on_core, resident)
    work = tile.depth * subgroups * (FMA * results / 4 + SHARED_READ * operands)
    work += STAGED * staged + ISSUED * subgroups
    alone = LATENCY + tile.depth * ALONE * (results + operands) + MOVED * staged / tile.invocations
    step = _longer(groups * work, alone)
    end = groups * results * subgroups / 6
    if tile.split > 1:
        end += groups * tile.split * tile.rows * tile.columns / 32 + LATENCY / 2
    compute = on_core / groups * (steps * step + LATENCY + end)
    traffic = 4.0 * blocks * steps * staged / (cores * CACHE_BYTES)
    return LAUNCH + _longer(compute, traffic)


def _longer(a: float, b: float) -> float:
    """The longer of two overlapping times, or somewhat more if they are about equal."""
    return float((a**3 + b**3) ** (1 / 3))


def candidates(nest: Nest, product: Product, target: KernelTarget) -> Sequence[Parameters]:
    """Tiles to try, in order of predicted cost."""
    return [tile.parameters() for tile in tiles(nest, product, target)[:CANDIDATES]]
