"""Tiles of a matrix product on a GPU: what there is to choose, and a model of what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.codegen.backend import KernelTarget
from mansard.codegen.nest import Nest
from mansard.codegen.schedules.base import estimate
from mansard.codegen.schedules.gpu.product import LANES, Product
from mansard.codegen.schedules.gpu.staging import row_vectors
from mansard.codegen.schedules.parameters import Parameters

CANDIDATES = 12
"""Tiles offered to a search."""


@dataclass(frozen=True)
class Tile:
    """``rows`` x ``columns`` results of a workgroup, ``down`` x ``across`` of an invocation.

    ``split`` groups of invocations each take every ``split``-th tile of ``depth`` reduced positions, and
    add up what they found at the end.
    """

    rows: int
    columns: int
    depth: int
    down: int
    across: int
    split: int

    @property
    def threads(self) -> int:
        """Invocations of one group."""
        return (self.rows // self.down) * (self.columns // self.across)

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
        """Whether the target's workgroups and their memory are large enough."""
        shared = self.shared_vectors(product) * LANES * 4
        return self.invocations <= target.workgroup_invocations and shared <= target.shared_memory_bytes

    def parameters(self) -> Parameters:
        """The tile as schedule parameters."""
        return Parameters.of(
            rows=self.rows, columns=self.columns, depth=self.depth, down=self.down, across=self.across,
            split=self.split,
        )  # fmt: skip

    @classmethod
    def of(cls, parameters: Parameters) -> Tile:
        """The opposite of `parameters`."""
        names = ("rows", "columns", "depth", "down", "across", "split")
        return cls(*(parameters[name] for name in names))


SHAPES = (
    (128, 128, 8, 8), (128, 64, 8, 8), (64, 128, 8, 8), (64, 64, 8, 8), (64, 64, 8, 4), (64, 64, 4, 4),
    (128, 32, 8, 4), (32, 128, 4, 8), (64, 32, 8, 4), (32, 64, 4, 8), (64, 32, 4, 4), (32, 64, 4, 4),
    (32, 32, 4, 4), (64, 16, 4, 4), (16, 64, 4, 4), (32, 16, 4, 4), (16, 32, 4, 4), (16, 16, 4, 4),
)  # fmt: skip
"""Rows and columns of a workgroup's tile, then of an invocation's."""


def tiles(nest: Nest, product: Product, target: KernelTarget) -> list[Tile]:
    """Every tile the target can hold, the cheapest first."""
    depth = estimate(product.depth)
    found = []
    for rows, columns, down, across in SHAPES:
        for step in (8, 16, 32):
            for split in (1, 2, 4, 8, 16):
                tile = Tile(rows, columns, step, down, across, split)
                if tile.fits(product, target) and (split == 1 or split * step <= depth):
                    found.append(tile)
    problem = _problem(nest, product)
    return sorted(found, key=lambda tile: cost(tile, *problem, target))


def _problem(nest: Nest, product: Product) -> tuple[int, int, int, int]:
    batch = estimate(nest.total([loop for group in product.batch for loop in group]))
    return batch, estimate(product.left.extent), estimate(product.right.extent), estimate(product.depth)


def cost(tile: Tile, batch: int, rows: int, columns: int, depth: int, target: KernelTarget) -> float:
    """Clocks the product takes, roughly."""
    blocks = batch * -(-rows // tile.rows) * -(-columns // tile.columns)
    steps = -(-depth // (tile.depth * tile.split))
    results = tile.down * tile.across
    issue = tile.depth * (results + (tile.down + tile.across) / 2) + 40
    warps = max(1.0, tile.invocations / 32)
    resident = max(1, min(16, 768 // tile.invocations))
    per_core = -(-blocks // target.compute_units)
    waves = -(-per_core // resident)
    together = min(per_core, resident)
    step = max(issue * warps * together / 4, 700.0 + issue)
    end = 800.0 + (200.0 + results * tile.split if tile.split > 1 else results)
    return waves * (steps * step + end)


def candidates(nest: Nest, product: Product, target: KernelTarget) -> Sequence[Parameters]:
    """Tiles to try, the cheapest by the cost model first."""
    return [tile.parameters() for tile in tiles(nest, product, target)[:CANDIDATES]]
