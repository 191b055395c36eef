"""Partial placements of a search, and which of them are needless."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_ALL_PAIRS = 400
"""Up to so many states each is compared with each; beyond, each with its neighbours in order."""
_NEIGHBOURS = 24


@dataclass
class States:
    """Partial placements, one a row. Shapes: (states, devices) and (states, slots[, devices])."""

    free: Floats
    """When every queue is free."""
    top: Floats
    """When the last dispatch so far has ended."""
    there: Floats
    """When the value of a slot is on a device; inf: it was not copied there."""
    made: Ints
    """The device that made the value of a slot; HOST for inputs and empty slots."""
    group: Ints
    """The device of a group that stays together, -1 before its first dispatch."""
    used: Floats
    """Bytes of constants on each device with a limit."""
    placed: npt.NDArray[np.bool_]
    """Whether a constant that several dispatches read is on a device. (states, shared constants, devices)"""
    waiting: npt.NDArray[np.bool_]
    """Whether the value of a slot is from a batch that a device has not waited for, where that is a load."""
    count: Floats
    """Dispatches on each device that must have some, as far as they count."""

    def take(self, rows: Any) -> States:
        """Some of the rows, copied."""
        return States(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    @staticmethod
    def join(parts: Sequence[States]) -> States:
        """The rows of all."""
        names = States.__dataclass_fields__
        return States(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def undominated(states: States, slots: Ints, kinds: Ints, quantum: float) -> Ints:
    """Rows, in their order, without those that another of the same kind is nowhere worse than.

    They may differ in ``slots``. Times count in units of ``quantum`` seconds. Beyond some hundred rows not
    all pairs are compared: some needless ones may then stay.
    """
    count = len(states.top)
    there = states.there[:, slots].reshape(count, -1)
    there = np.where(np.isinf(there), 1e30, there)
    waiting = states.waiting[:, slots].reshape(count, -1) * 1e30
    times = [states.free, states.top[:, None], there, waiting, states.used, -states.count]
    figures = np.concatenate(times, axis=1)
    kind_of = equal_rows(kinds)
    # Rounded, equal times are equal in whichever order their parts were added.
    figures = _distinct_columns(np.round(figures / quantum))
    alive: Ints = np.arange(count)
    if count > _ALL_PAIRS:
        alive = _by_neighbours(kind_of, figures)
    if len(alive) <= _ALL_PAIRS:
        own, group = figures[alive], kind_of[alive]
        worse = group[:, None] == group
        for column in own.T:
            worse &= column[:, None] <= column
        # Of equals the first stays.
        worse &= ~np.tril(worse & worse.T)
        np.fill_diagonal(worse, False)
        alive = alive[~worse.any(axis=0)]
    return alive


def _by_neighbours(kind_of: Ints, figures: Floats) -> Ints:
    """Rows not dominated by one of the rows of their kind that are just before them by sum, in order."""
    order = np.lexsort((figures.sum(axis=1), kind_of))
    while True:
        kinds, rows = kind_of[order], figures[order]
        out = np.zeros(len(order), np.bool_)
        for step in range(1, min(_NEIGHBOURS, len(order) - 1) + 1):
            out[step:] |= (rows[:-step] <= rows[step:]).all(axis=1) & (kinds[:-step] == kinds[step:])
        removed = int(out.sum())
        order = order[~out]
        if removed < 0.05 * len(out):
            return np.asarray(np.sort(order), np.int64)


def equal_rows(table: Ints) -> Ints:
    """A number for every row, the same for equal rows."""
    if not table.shape[1]:
        return np.zeros(len(table), np.int64)
    factors = np.random.default_rng(0).integers(1, 1 << 62, table.shape[1])
    found: Ints = np.unique(table @ factors, return_inverse=True)[1].reshape(-1)
    return found


def _distinct_columns(table: Floats) -> Floats:
    """The columns that differ between rows, each once."""
    table = table[:, (table != table[:1]).any(axis=0)]
    mark = np.random.default_rng(0).uniform(1, 2, len(table)) @ table
    _, first, same = np.unique(mark, return_index=True, return_inverse=True)
    kept = table[:, first]
    return kept if (kept[:, same.reshape(-1)] == table).all() else table
