"""Lower bounds of what every state of a beam can end with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mansard.placement.search.states import BeamStates
from mansard.placement.search.steps import SearchStep
from mansard.placement.search.tables import SearchTables

Floats = npt.NDArray[np.float64]
_POWER = 8
"""The exponent of weighted loads in the secondary rank: their sum is nearly the greatest of them."""


def lower_bounds(states: BeamStates, n: int, step: SearchStep, tables: SearchTables) -> tuple[Floats, Floats]:
    """A lower bound for every state after dispatch ``n``, and a rank among states of equal bounds: lower is
    more promising."""
    loads = tables.loads
    bound = _path_bounds(states, n, step, tables) if tables.latency else states.last_bound
    queue_free = np.stack([states.queue_free[:, queue].min(axis=1) for queue in loads.devices_of], axis=1)
    if tables.latency:
        # `tighten` may have raised a queue that gets nothing more far beyond the last dispatch.
        queue_free = np.minimum(queue_free, bound[:, None])
    weighted = queue_free @ loads.weights.T + loads.remaining[:, n + 1]
    for edge, slot, subtree_loads in step.tree_edges:
        # Where the value was produced is known, and on which devices it is available.
        source = states.source[:, slot]
        cost = np.where(np.isinf(states.available[:, slot]), edge.copy[source], 0.0)
        cost += np.where(states.pending[:, slot], edge.handoff[source], 0.0)
        weight = loads.weights[:, loads.queue_of]
        weighted += (subtree_loads + weight * cost[:, None, :]).min(axis=2)
    bound = np.maximum(bound, weighted.max(axis=1))
    if tables.latency:
        return bound, states.last_bound
    # The bound may be that of one queue in all states: then little load on the others decides.
    return bound, ((weighted / tables.costs.total) ** _POWER).sum(axis=1)


def _path_bounds(states: BeamStates, n: int, step: SearchStep, tables: SearchTables) -> Floats:
    """The longest path by way of a live value."""
    paths, costs = tables.paths, tables.costs
    if paths is None or not len(step.tail_rows):
        return states.last_bound
    source, produced, missing = states.live_values(step.live)
    transfer = costs.handoff[source, :, step.edges] + costs.copy[source, :, step.edges]
    arrival = np.where(missing, produced[:, :, None] + transfer, states.available[:, step.live])
    arrival = np.maximum(arrival, states.queue_free[:, None, :])
    # (states, readers, prices, devices)
    ends = (arrival[:, step.tail_rows, None] + step.tails).min(axis=3).max(axis=1)
    if tables.problem.limited_devices:
        ends -= paths.available_bytes(states.used_bytes, states.resident, n) @ paths.prices.T
    return np.asarray(np.maximum(states.last_bound, ends.max(axis=1)))
