"""Register tiles of packed products, and their cost model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.parameters import Parameters
from mansard.dtypes import DType

WIDTH = 16
"""Columns of a panel: one AVX-512 vector of f32, one cache line; narrower vectors share a panel."""
WORKGROUP_CYCLES = 2000
"""The minimum work of a workgroup, whose start costs some 50 cycles."""

MAX_STREAMS = 8
"""Rows whose cache lines fit a first-level cache of eight or more ways even if they map to one set."""

PANEL_RATES = ((24 << 10, 64.0), (640 << 10, 24.0), (math.inf, 8.0))
"""(bytes, bytes per cycle): panels up to this size are read at this rate, from the first-, second- and
third-level cache."""


@dataclass(frozen=True)
class RegisterTile:
    """Schedule parameters of a packed product.

    A tile is ``rows`` by ``columns`` vectors of ``lanes``. Tiles are ordered down the rows, then by column,
    so that a column's panels stay in a near cache; a workgroup computes ``block`` of them.
    """

    rows: int
    columns: int
    lanes: int
    block: int = 1

    @staticmethod
    def of(parameters: Parameters, target: KernelTarget) -> RegisterTile:
        """The inverse of `parameters`."""
        return RegisterTile(parameters["rows"], parameters["columns"], _lanes(target), parameters["block"])

    def parameters(self) -> Parameters:
        """The tunable parameters; the number of lanes is the target's."""
        return Parameters.of(rows=self.rows, columns=self.columns, block=self.block)


def _lanes(target: KernelTarget) -> int:
    return min(target.lanes(DType.F32), WIDTH)


def tile_cycles(rows: int, columns: int, depth: int, lanes: int) -> float:
    """Cycles of a register tile on a core that issues two vector FMAs and two loads per cycle.

    The constants are measured on Zen 5: loads reach some 1.7 per cycle along with FMAs, fewer than twelve
    accumulators sometimes stall for the latency of four cycles, a tile costs some 30 cycles to start and two
    for each vector it stores. The panels of a column come from the cache that holds them, once per row tile.
    Each row is a separate stream, and more than eight evict each other's cache lines.
    """
    row_bytes, chains = columns * lanes * 4, rows * columns
    rate = next(rate for size, rate in PANEL_RATES if row_bytes * depth <= size)
    waits = 0.0 if chains >= 12 else 0.5
    step = max(chains / 2 + waits, 4.6, 0.6 * (rows + columns), row_bytes / rate)
    streams = 1 + 0.015 * max(0, rows - MAX_STREAMS)
    return streams * depth * step + 2 * chains + 30


def tiles(rows: int, columns: int, depth: int, target: KernelTarget) -> list[RegisterTile]:
    """Tiles for a product of ``rows`` x ``depth`` by ``depth`` x ``columns``, in order of predicted cost."""
    lanes = _lanes(target)
    vectors = -(-columns // lanes)
    costs: dict[tuple[int, int], float] = {}
    for r in range(1, min(rows, target.vector_registers) + 1):
        for c in range(1, min(vectors, 6) + 1):
            # Accumulators, a vector of weights per column, one broadcast.
            if r * c + c + 1 <= target.vector_registers:
                full, tail = divmod(vectors, c)
                row_cycles = full * tile_cycles(r, c, depth, lanes)
                row_cycles += tile_cycles(r, tail, depth, lanes) if tail else 0.0
                costs[r, c] = -(-rows // r) * row_cycles
    candidates = []
    for r, c in sorted(costs, key=lambda size: costs[size]):
        block = min(-(-rows // r), int(WORKGROUP_CYCLES / tile_cycles(r, c, depth, lanes)))
        candidates.append(RegisterTile(r, c, lanes, max(1, block)))
    return candidates
