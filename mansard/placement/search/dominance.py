"""Dominance between states: one that is nowhere better than another needs no further search."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mansard.placement.problem import HOST
from mansard.placement.search.states import BeamStates
from mansard.placement.search.steps import SearchStep

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_MAX_ALL_PAIRS = 400
"""Up to so many states each is compared with each; beyond, each with its neighbours in order."""
_NEIGHBOURS = 24


def nondominated(states: BeamStates, step: SearchStep, quantum: float) -> Ints:
    """Rows, in their order, that no other row with the same key dominates.

    Differences below ``quantum`` seconds do not count. Of many rows not all pairs are compared, and some
    dominated ones may stay.
    """
    slots, count = step.live, len(states.last_bound)
    available = states.available[:, slots].reshape(count, -1)
    available = np.where(np.isinf(available), 1e30, available)
    pending = states.pending[:, slots].reshape(count, -1) * 1e30
    columns = [
        states.queue_free,
        states.last_bound[:, None],
        available,
        pending,
        states.used_bytes,
        -states.dispatch_counts,
    ]
    criteria = np.concatenate(columns, axis=1)
    keys = row_classes(_keys(states, step))
    # Rounding makes equal times equal in whichever order they were added up.
    criteria = _distinct_columns(np.round(criteria / quantum))
    rows: Ints = np.arange(count)
    if count > _MAX_ALL_PAIRS:
        rows = _by_neighbours(keys, criteria)
    if len(rows) <= _MAX_ALL_PAIRS:
        kept, key = criteria[rows], keys[rows]
        dominates = key[:, None] == key
        for column in kept.T:
            dominates &= column[:, None] <= column
        # Of equal rows the first stays.
        dominates &= ~np.tril(dominates & dominates.T)
        np.fill_diagonal(dominates, False)
        rows = rows[~dominates.any(axis=0)]
    return rows


def row_classes(table: Ints) -> Ints:
    """A number for every row, the same for equal rows."""
    if not table.shape[1]:
        return np.zeros(len(table), np.int64)
    factors = np.random.default_rng(0).integers(1, 1 << 62, table.shape[1])
    classes: Ints = np.unique(table @ factors, return_inverse=True)[1].reshape(-1)
    return classes


def _keys(states: BeamStates, step: SearchStep) -> Ints:
    """What comparable states agree in, one row a state: the sources of values that may yet be transferred,
    the devices of groups, where shared constants are."""
    relevant: npt.NDArray[np.bool_] = np.asarray(np.isinf(states.available[:, step.live]).any(axis=2))
    relevant[:, step.to_host] = True
    relevant |= states.pending[:, step.live].any(axis=2)
    source = np.where(relevant, states.source[:, step.live], HOST)
    resident = states.resident.reshape(len(states.last_bound), -1)
    return np.concatenate([source, states.group_device, resident], axis=1)


def _by_neighbours(keys: Ints, criteria: Floats) -> Ints:
    """Rows that none of the rows just before them, of the same key in order of their sums, dominates."""
    order = np.lexsort((criteria.sum(axis=1), keys))
    while True:
        key, rows = keys[order], criteria[order]
        dominated = np.zeros(len(order), np.bool_)
        for step in range(1, min(_NEIGHBOURS, len(order) - 1) + 1):
            dominated[step:] |= (rows[:-step] <= rows[step:]).all(axis=1) & (key[:-step] == key[step:])
        removed = int(dominated.sum())
        order = order[~dominated]
        if removed < 0.05 * len(dominated):
            return np.asarray(np.sort(order), np.int64)


def _distinct_columns(table: Floats) -> Floats:
    """The columns that differ between rows, each once."""
    table = table[:, (table != table[:1]).any(axis=0)]
    mark = np.random.default_rng(0).uniform(1, 2, len(table)) @ table
    _, first, same = np.unique(mark, return_index=True, return_inverse=True)
    kept = table[:, first]
    return kept if (kept[:, same.reshape(-1)] == table).all() else table
