"""GPU schedule of products of a few rows with matrix units: the other factor's elements are each read once.

A batch of texts or the rows of a verification take as long as reading the weights, if enough of them are on
their way at any time. A workgroup computes ``rows x columns`` results; its subgroups take turns in the steps
of the depth, and each stages its own in a part of shared memory, so that none waits for another until their
sums are added::

    read my first steps of both factors into registers
    for each of my steps:
        write it to my shared memory
        read the step that is ``ahead`` turns further
        results += left matrices @ right matrices
    add the sums of all subgroups, through shared memory: epilogue, stores

The number of rows may vary from call to call. Those of a matrix beyond the most that there can be are
whatever lies there: their results are not stored.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel import matrix as matrices
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.schedules.common.base import estimate
from mansard.codegen.schedules.gpu.gemm.matrix_product import GemmShape, MatrixProduct
from mansard.codegen.schedules.gpu.gemm.matrix_tile import GemmMatrixTile
from mansard.codegen.schedules.gpu.gemm.product import Product

MAX_ROWS = 32
"""The most rows for which reading the other factor takes longer than everything else."""
MIN_COLUMNS, MIN_DEPTH = 64, 128
"""The minimum size of that factor."""
MIN_STAGED = 4
"""The minimum number of rows that are staged."""
TILES = (
    (16, 64, 8, 1), (16, 128, 4, 2), (32, 64, 4, 2), (16, 64, 4, 2), (32, 32, 4, 2), (16, 32, 2, 2),
)  # fmt: skip
"""Columns, depth, split and steps ahead, in order of preference (H200, up to 8 rows of bf16: 34 MB of weights
in 13.3 us, 50 MB in 16.1; one row without matrix units takes 11.5 and 16.1)."""
WIDE_TILES = ((32, 64, 4, 2), *TILES)
"""The same where there are `MANY_COLUMNS` (101 MB in 28.0 us; with the first of the others 29.4)."""
WIDEST_TILES = ((64, 64, 2, 1), *WIDE_TILES)
"""And where there are `MOST_COLUMNS` (311 MB for 4 rows in 76 us, for 32 rows in 90; with one row in 78)."""
MANY_COLUMNS, MOST_COLUMNS = 8192, 32768


def few_rows(product: Product) -> bool:
    """Whether a product has so few rows, at most, that it should stream its other factor."""
    rows, columns = dims.bounds(product.left.extent)[1], estimate(product.right.extent)
    return 1 < rows <= MAX_ROWS and columns >= MIN_COLUMNS and estimate(product.depth) >= MIN_DEPTH


def streamed_tiles(
    gemm: GemmShape, target: KernelTarget, others: Sequence[GemmShape] = ()
) -> list[GemmMatrixTile]:
    """The tiles for a product with `few_rows`, in order of preference; none for others. ``others`` are
    products of the same rows in its kernel."""
    product, shape = gemm.product, gemm.shape
    if not few_rows(product):
        return []
    most = dims.bounds(product.left.extent)[1]
    rows, few = -(-most // shape.m) * shape.m, max(MIN_STAGED, 1 << (most - 1).bit_length())
    few = few if few < rows and gemm.left.along == "depth" else 0
    total = estimate(product.right.extent)
    choices = WIDEST_TILES if total >= MOST_COLUMNS else WIDE_TILES if total >= MANY_COLUMNS else TILES
    tiles = []
    for columns, depth, split, ahead in dict.fromkeys(choices):
        turns = -(-estimate(product.depth) // (depth * split))
        tile = GemmMatrixTile(rows, columns, depth, 1, 1, split, ahead=min(ahead, turns), few=few)
        whole = depth % shape.k == 0 and columns % shape.n == 0
        if whole and tile.fits(gemm.left, gemm.right, shape, target, *(other.right for other in others)):
            tiles.append(tile)
    return tiles


class StreamedProduct(MatrixProduct):
    """The kernel of a product whose tile has steps ``ahead``."""

    def _stagers(self) -> tuple[int, KValue]:
        return self.size, self.lane

    def _group_depth(self) -> int:
        return self.tile.depth

    def _first_depth(self) -> KValue:
        return self.b.idx(0)

    @functools.cached_property
    def _origins(self) -> Sequence[KValue]:
        b = self.b
        stage = self.offsets[-1] + self.rights[-1].operand.vectors(self.tile.columns, self.tile.depth)
        first = b.mul(self.subgroup, b.idx(stage))
        return [b.add(first, b.idx(offset)) for offset in self.offsets]

    def _stage(self) -> Sequence[KValue]:
        return self._origins

    def _accumulate(self) -> Sequence[KValue]:
        b, tile = self.b, self.tile
        zero = matrices.fill(b, matrices.c_type(self.shape.accumulator, self.shape.m, self.shape.n))
        zeros = [zero] * (len(self.rights) * self.row_matrices * self.column_matrices)
        self._stage()  # before the loop
        loaded: list[KValue] = []
        for turn in range(tile.ahead):
            loaded += self._following(self.group, turn)
        count, each = len(loaded), len(loaded) // tile.ahead
        end = dims.add(self.steps, -tile.ahead * tile.split) if self._even else self.steps
        stride, inits = b.idx(tile.split), [*loaded, *zeros]
        with b.for_(self.group, self.ev.dim(end), stride, inits=inits) as loop, self.ev.scope():
            sums, following = self._step(loop.carried[:each], loop.carried[count:], loop.index)
            loop.yield_(*loop.carried[each:count], *following, *sums)
        results = list(loop.results)
        sums = results[count:]
        for turn in range(tile.ahead if self._even else 0):
            sums, _ = self._step(results[turn * each : (turn + 1) * each], sums, None)
        return sums

    @functools.cached_property
    def _even(self) -> bool:
        """Whether all subgroups have as many steps; the last ones then read nothing any more."""
        steps, split = self.steps, self.tile.split
        return isinstance(steps, int) and steps % split == 0 and steps // split >= self.tile.ahead

    def _following(self, step: KValue, turn: int) -> list[KValue]:
        """This subgroup's step so many turns after one. Beyond the last, that is read again."""
        at = self.b.add(step, self.b.idx(turn * self.tile.split))
        if not self._even:
            at = self.frame.minimum(at, self.ev.dim(dims.add(self.steps, -1)))
        return self._load(at)

    def _step(
        self, values: Sequence[KValue], sums: Sequence[KValue], step: KValue | None
    ) -> tuple[list[KValue], list[KValue]]:
        """The sums with a step added that has been read, and what is read meanwhile."""
        b = self.b
        self._write(values)
        b.barrier("subgroup")
        following = [] if step is None else self._following(step, self.tile.ahead)
        results = self._multiply(sums, iter(()))
        b.barrier("subgroup")
        return results, following
