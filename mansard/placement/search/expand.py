"""The transitions of the beam search: what `simulate` does with one dispatch, for all states at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mansard.placement.problem import HOST, PlacementProblem
from mansard.placement.search.states import BeamStates
from mansard.placement.search.steps import SearchStep
from mansard.placement.search.tables import SearchTables

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Expansion:
    """Initial states, their successors, and the costs of complete ones."""

    def __init__(self, problem: PlacementProblem, tables: SearchTables) -> None:
        self.problem, self.tables, self.latency = problem, tables, tables.latency
        self.costs, self.devices_of = tables.costs, tables.loads.devices_of
        self.limited, self.counted = problem.limited_devices, problem.counted_devices

    def initial(self) -> BeamStates:
        """The state before the first dispatch."""
        devices, slots = self.costs.device_count, self.tables.table.slot_count
        queue_free = np.zeros(devices)
        for queue in self.devices_of:
            queue_free[queue] = self.costs.load[queue].sum()
        states = BeamStates(
            queue_free=queue_free[None],
            last_bound=np.zeros(1),
            available=np.zeros((1, slots, devices)),
            source=np.full((1, slots), HOST),
            group_device=np.full((1, len(self.problem.colocated)), -1),
            used_bytes=np.zeros((1, len(self.limited))),
            resident=np.zeros((1, self.tables.table.shared_count, devices), np.bool_),
            pending=np.zeros((1, slots, devices), np.bool_),
            dispatch_counts=np.zeros((1, len(self.counted))),
        )
        for number, slot in self.tables.table.initial:
            copied, handoff = self.costs.copy[HOST, :, number] > 0, self.costs.handoff[HOST, :, number]
            states.available[:, slot] = np.where(copied, np.inf, handoff)
        return states

    def feasible(self, states: BeamStates, n: int, step: SearchStep, device: int) -> Ints:
        """The states that may have a dispatch on a device."""
        feasible = np.ones(len(states.last_bound), np.bool_)
        if step.group is not None:
            group_device = states.group_device[:, step.group]
            feasible &= (group_device < 0) | (group_device == device)
        if device in self.limited and step.constants:
            limit = self.problem.limits[device]
            assert limit is not None
            used = states.used_bytes[:, self.limited.index(device)]
            feasible &= used + self._added_bytes(states, step, device) <= limit
        if self.counted:
            # What other devices still lack must fit into the dispatches left after this one.
            minima = np.array([self.problem.min_dispatches[d] for d in self.counted], np.float64)
            lacking = np.maximum(0, minima - states.dispatch_counts)
            if device in self.counted:
                column = self.counted.index(device)
                lacking[:, column] = np.maximum(0, lacking[:, column] - 1)
            feasible &= lacking.sum(axis=1) <= len(self.tables.steps) - n - 1
        return np.flatnonzero(feasible)

    def expand(self, states: BeamStates, n: int, step: SearchStep, device: int) -> BeamStates:
        """The states after a dispatch on a device, in place."""
        free = states.queue_free
        queue = next(devices for devices in self.devices_of if device in devices)
        if n and self.costs.handoff_load.any():
            free[:, queue] += self._handoff_seconds(states, n, step, device)[:, None]
        ready = self._read(states, step, device, queue)
        end = np.maximum(ready, free[:, device]) + self.costs.times[n, device]
        free[:, queue] = end[:, None]
        states.last_bound = np.maximum(states.last_bound, end)
        if not self.latency:
            for others in self.devices_of:
                free[:, others] += self.costs.forced_copies[n, device, others].sum()
            states.last_bound = np.maximum(states.last_bound, free.max(axis=1))
        self._write(states, step, device, end if self.latency else np.zeros(len(end)))
        self._constrain(states, n, step, device)
        return states

    def final_costs(self, states: BeamStates) -> Floats:
        """The cost of every complete state, copies to the host included."""
        rows, end_of_call = np.arange(len(states.last_bound)), states.last_bound.copy()
        free, queues = states.queue_free, np.array(self.problem.queues)
        for number, slot in self.tables.table.final:
            source = states.source[:, slot]
            produced = states.available[rows, slot, source]
            copy = self.costs.host_copy[number, source]
            queued = self.costs.host_queued[number, source]
            end = np.where(queued, np.maximum(free[rows, source], produced) + copy, produced)
            same_queue = (queues == queues[source][:, None]) & (copy > 0)[:, None]
            free = np.where(same_queue, end[:, None], free)
            end_of_call = np.maximum(end_of_call, end + self.costs.host_handoff[number, source])
        return end_of_call

    def _read(self, states: BeamStates, step: SearchStep, device: int, queue: list[int]) -> Floats:
        """Transfer the inputs of a dispatch; when the last of them is available."""
        free, available, rows = states.queue_free, states.available, np.arange(len(states.last_bound))
        ready = np.zeros(len(rows))
        for number, slot in step.reads:
            arrival = available[:, slot, device]
            missing = np.isinf(arrival)
            if missing.any():
                source = states.source[:, slot]
                produced = np.where(source == HOST, 0.0, available[rows, slot, source])
                start = np.maximum(free[:, device], produced + self.costs.handoff[source, device, number])
                end = start + self.costs.copy[source, device, number]
                free[:, queue] = np.where(missing, end, free[:, device])[:, None]
                states.last_bound = np.where(missing, np.maximum(states.last_bound, end), states.last_bound)
                arrival = np.where(missing, end if self.latency else 0.0, arrival)
                available[:, slot, device] = arrival
            if self.latency and self.costs.blocking[:, device, number].any():
                blocked = self.costs.blocking[states.source[:, slot], device, number]
                waited = np.maximum(free[:, device], arrival)
                free[:, queue] = np.where(blocked, waited, free[:, device])[:, None]
            ready = np.maximum(ready, arrival)
        return ready

    def _write(self, states: BeamStates, step: SearchStep, device: int, end: Floats) -> None:
        """Release dead slots and fill those of the results, which are available at ``end``."""
        available = states.available
        for slot in step.released:
            available[:, slot], states.source[:, slot], states.pending[:, slot] = 0.0, HOST, False
        for number, slot in step.writes:
            states.pending[:, slot] = bool(set(self.problem.edges[number].consumers) - {HOST}) & (
                self.costs.handoff_load[device] > 0
            )
            copied = self.costs.copy[device, :, number] > 0
            handed_over = end[:, None] + self.costs.handoff[device, :, number]
            available[:, slot] = np.where(copied, np.inf, handed_over)
            states.source[:, slot] = device
            # Waiting for this value covers what the device produced before.
            for older in step.covered.get(slot, ()):
                states.pending[:, older] &= (states.source[:, older] != device)[:, None]

    def _constrain(self, states: BeamStates, n: int, step: SearchStep, device: int) -> None:
        """Update groups, constants and counts of dispatches."""
        if step.group is not None:
            last = n == self.problem.colocated[step.group][-1]
            states.group_device[:, step.group] = -1 if last else device
        if device in self.limited and step.constants:
            states.used_bytes[:, self.limited.index(device)] += self._added_bytes(states, step, device)
            for _, shared in step.constants:
                if shared is not None:
                    states.resident[:, shared, device] = True
        if device in self.counted:
            column, minimum = self.counted.index(device), self.problem.min_dispatches[device]
            counts = states.dispatch_counts
            counts[:, column] = np.minimum(minimum, counts[:, column] + 1)

    def _added_bytes(self, states: BeamStates, step: SearchStep, device: int) -> Floats:
        """Bytes of constants that a dispatch adds to a device."""
        added = np.zeros(len(states.last_bound))
        for size, shared in step.constants:
            added += size if shared is None else size * ~states.resident[:, shared, device]
        return added

    def _handoff_seconds(self, states: BeamStates, n: int, step: SearchStep, device: int) -> Floats:
        """Seconds of the handoffs to a dispatch, which cover all that their sources produced before."""
        live, producers = self.tables.steps[n - 1].live, self.tables.steps[n - 1].producers
        read = np.isin(live, [slot for _, slot in step.reads])
        source, pending = states.source[:, live], states.pending[:, live, device]
        seconds = np.zeros(len(states.last_bound))
        for other in range(self.costs.device_count):
            from_other = pending & (source == other)
            newest = np.where(from_other & read, producers, -1).max(axis=1, initial=-1)
            seconds += np.where(newest >= 0, self.costs.handoff_load[other, device], 0.0)
            pending = pending & ~(from_other & (producers <= newest[:, None]))
        states.pending[:, live, device] = pending
        return seconds
