"""Tightening: times in a state are raised as far as that delays nothing to come.

A queue that is free before anything can arrive on it is as good as one that is free at that time, and so is a
value that is available before its readers can start. With raised times more states are equal or dominated;
without, states of the same layer would differ by what happened layers before.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mansard.placement.problem import HOST
from mansard.placement.search.cost_tables import CostTables
from mansard.placement.search.states import BeamStates
from mansard.placement.search.steps import SearchStep

Floats = npt.NDArray[np.float64]


def tighten(states: BeamStates, step: SearchStep, costs: CostTables) -> None:
    """Raise the times of queues and live values after a step; for throughput there are none."""
    if not costs.latency or not step.prerequisites:
        return
    earliest = _earliest_starts(states, step, costs)
    if earliest is None:
        return
    if not len(step.live):
        states.queue_free = np.maximum(states.queue_free, earliest)
        return
    available = states.available
    rows = np.arange(len(states.last_bound))[:, None]
    source, produced, missing = states.live_values(step.live)
    handoff = costs.handoff[source, :, step.edges]
    copy_start = produced[:, :, None] + handoff
    copy_start = np.where(missing & step.has_reader[:, None], copy_start, np.inf)
    earliest = np.minimum(earliest, copy_start.min(axis=1))
    for column in map(int, np.flatnonzero(step.to_host)):
        device = source[:, column]
        earliest[rows[:, 0], device] = np.minimum(earliest[rows[:, 0], device], produced[:, column])
    states.queue_free = np.maximum(states.queue_free, earliest)
    # A copy to come may start once its value is produced: no later than the queues of all its targets allow.
    latest = np.where(missing, earliest[:, None, :] - handoff, np.inf).min(axis=2)
    raised = np.maximum(produced, np.minimum(latest, earliest[rows, source]))
    # A value that is on all devices matters only once a queue is free.
    partial = np.asarray(missing.any(axis=2), np.bool_)
    start = np.where(partial[:, :, None], earliest[:, None, :], states.queue_free[:, None, :])
    tightened = np.maximum(available[:, step.live], start)
    raised = np.where(partial, raised, np.maximum(produced, states.queue_free[rows, source]))
    raised = np.where(step.to_host, produced, raised)
    on_device, row = np.nonzero(source != HOST)
    tightened[on_device, row, source[on_device, row]] = raised[on_device, row]
    available[:, step.live] = tightened


def release_settled(states: BeamStates, step: SearchStep) -> set[int]:
    """Empty the slots of values that are on all devices before their queues are free, in every state; the
    slots."""
    slots = step.live[~step.to_host]
    queue_free = states.queue_free[:, None, :]
    unsettled = ((states.available[:, slots] > queue_free) | states.pending[:, slots]).any(axis=(0, 2))
    settled = slots[~unsettled]
    states.available[:, settled], states.source[:, settled] = 0.0, HOST
    return {int(slot) for slot in settled}


def _earliest_starts(states: BeamStates, step: SearchStep, costs: CostTables) -> Floats | None:
    """When a later dispatch could start on each device if its inputs took the fastest way; None where one
    needs no input."""
    arrival = {}
    for slot in {slot for slots in step.prerequisites for slot in slots}:
        fastest = (states.available[:, slot, :, None] + costs.shortest_handoff).min(axis=1)
        arrival[slot] = np.where((states.source[:, slot] == HOST)[:, None], 0.0, fastest)
    earliest = np.full(states.queue_free.shape, np.inf)
    for slots in step.prerequisites:
        if not slots:
            return None
        earliest = np.minimum(earliest, np.maximum.reduce([arrival[slot] for slot in slots]))
    return earliest
