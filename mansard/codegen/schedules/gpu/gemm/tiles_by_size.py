"""Tiles of products whose size varies from call to call: one for typical sizes, another for large ones.

A kernel has the code of both, and its invocations agree on the one to run by a parameter of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.schedules.common.base import estimate
from mansard.codegen.schedules.gpu.gemm.matrix_tile import GemmMatrixTile
from mansard.dims import Dim, DimLike

WORTHWHILE = 0.9
"""The cost of large sizes with a tile of their own, as a part of that with the other tile, from which a
kernel has both."""
Cost = Callable[[GemmMatrixTile, Sequence[int]], float]
"""Of a tile at the sizes of a product."""


@dataclass(frozen=True)
class TilesBySize:
    """``small``, and ``large`` from ``symbol`` = ``at`` on; both are of equal workgroups."""

    small: GemmMatrixTile
    large: GemmMatrixTile | None = None
    symbol: Dim | None = None
    at: int = 0

    @property
    def tiles(self) -> list[GemmMatrixTile]:
        """All of them."""
        return [self.small] if self.large is None else [self.small, self.large]

    def conditions(self) -> list[tuple[GemmMatrixTile, DimLike]]:
        """Each tile with an expression that is 1 in calls that it is for, and 0 in others."""
        if self.large is None or self.symbol is None:
            return [(self.small, 1)]
        is_large = dims.floordiv(dims.minimum(dims.symbol(self.symbol), self.at), self.at)
        return [(self.small, dims.add(1, dims.mul(-1, is_large))), (self.large, is_large)]


def symbols_of(extents: Sequence[DimLike]) -> set[Dim]:
    """The dims that the size of a product varies with."""
    return {symbol for extent in extents for symbol in dims.to_expr(extent).symbols()}


def sizes_at(extents: Sequence[DimLike], symbol: Dim, value: int) -> list[int]:
    """The size of a product for a value of the one dim that it varies with."""
    return [dims.evaluate(extent, {symbol.name: value}) for extent in extents]


def tiles_by_size(extents: Sequence[DimLike], tiles: Sequence[GemmMatrixTile], cost: Cost) -> TilesBySize:
    """The choice for a product of ``extents`` among ``tiles``, the best one for typical sizes first."""
    symbols = symbols_of(extents)
    if len(symbols) != 1:
        return TilesBySize(tiles[0])
    (symbol,) = symbols

    def sizes(value: int) -> list[int]:
        return sizes_at(extents, symbol, value)

    typical = estimate(dims.symbol(symbol))
    lengths = [typical]
    while 2 * lengths[-1] < symbol.max:
        lengths.append(2 * lengths[-1])
    lengths.append(symbol.max)
    usual, largest = sizes(typical), sizes(symbol.max)
    groups: dict[int, list[GemmMatrixTile]] = {}
    for tile in tiles:
        groups.setdefault(tile.subgroups, []).append(tile)
    pairs = [
        (min(group, key=lambda t: cost(t, usual)), min(group, key=lambda t: cost(t, largest)))
        for group in groups.values()
    ]
    best = cost(tiles[0], usual), min(cost(t, largest) for t in tiles)
    small, large = min(pairs, key=lambda p: cost(p[0], usual) / best[0] + cost(p[1], largest) / best[1])
    if cost(large, largest) > WORTHWHILE * cost(tiles[0], largest):
        return TilesBySize(tiles[0])
    if small == large:
        return TilesBySize(small)
    at = symbol.max
    for length in reversed(lengths):
        if cost(large, sizes(length)) >= cost(small, sizes(length)):
            break
        at = length
    return TilesBySize(small, large, symbol, at)
