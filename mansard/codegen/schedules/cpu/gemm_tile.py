"""Register tiles of packed products: which there are, and which is best by a cost model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.parameters import Parameters
from mansard.dtypes import DType

WIDTH = 16
"""Columns of a panel: one AVX-512 vector of f32, one cache line; narrower vectors share a panel."""
WORKGROUP_CYCLES = 2000
"""Least work of a workgroup, against some 50 cycles to begin one."""

MAX_STREAMS = 8
"""Rows that a first-level cache of eight or more ways holds lines of, also where they map to one set."""

PANEL_RATES = ((24 << 10, 64.0), (640 << 10, 24.0), (math.inf, 8.0))
"""Panels up to so many bytes are read at so many bytes a cycle: from the first-, second- and third-level
cache."""


@dataclass(frozen=True)
class RegisterTile:
    """Schedule parameters of a packed product.

    A tile is ``rows`` by ``columns`` vectors of ``lanes``. Tiles follow each other down the rows, then
    in the next column, so that a column's panels stay in a near cache; a workgroup computes ``block``.
    """

    rows: int
    columns: int
    lanes: int
    block: int = 1

    @staticmethod
    def of(parameters: Parameters, target: KernelTarget) -> RegisterTile:
        """The opposite of `parameters`."""
        return RegisterTile(parameters["rows"], parameters["columns"], _lanes(target), parameters["block"])

    def parameters(self) -> Parameters:
        """What a search may choose; the lanes are the target's."""
        return Parameters.of(rows=self.rows, columns=self.columns, block=self.block)


def _lanes(target: KernelTarget) -> int:
    return min(target.lanes(DType.F32), WIDTH)


def tile_cycles(rows: int, columns: int, depth: int, lanes: int) -> float:
    """Cycles of a register tile on a core that issues two vector FMAs and two loads at a time.

    The constants are measured on Zen 5: loads reach some 1.7 a cycle beside FMAs, fewer than twelve
    accumulators wait for the latency of four cycles now and then, a tile costs some 30 cycles to start
    and two for each vector it stores. The panels of a column come from the cache that holds them, once
    for each row tile. Each row is a stream of its own, and beyond eight they cost each other's lines.
    """
    row_bytes, chains = columns * lanes * 4, rows * columns
    rate = next(rate for size, rate in PANEL_RATES if row_bytes * depth <= size)
    waits = 0.0 if chains >= 12 else 0.5
    step = max(chains / 2 + waits, 4.6, 0.6 * (rows + columns), row_bytes / rate)
    streams = 1 + 0.015 * max(0, rows - MAX_STREAMS)
    return streams * depth * step + 2 * chains + 30


def tiles(rows: int, columns: int, depth: int, target: KernelTarget) -> list[RegisterTile]:
    """Tiles for a product of ``rows`` x ``depth`` by ``depth`` x ``columns``, the cheapest first."""
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
