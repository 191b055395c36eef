"""Placement by dynamic programming over the model's order, with a bounded number of states and a bound.

After the first n dispatches all that matters for the rest is when every queue is free, and on which devices
the values still to be read are there and since when. Two placements of the first n that agree in this are one
state, and a state that is nowhere later than another makes the other one needless (dominance: `simulate`
only has maxima and sums). Between layers few values are alive, so few states remain, and the search is
exact while their number stays within the width. Beyond it the states whose lower bound is highest are
dropped; the least bound of what was dropped bounds every placement that was not looked at.

The lower bound of a state is the greatest of: what it took so far; for every live value the longest path
behind it, each dispatch where that path likes it best, handoffs and copies included, with a price on memory
that is short (`mansard.placement.search.path_bound`); and for weights w of the devices that add up to 1 the
weighted sum
of what the queues have and of what remains, each dispatch where it is cheapest so (linear programming duality
for the fullest queue; `mansard.placement.search.load_bound`). Of equal bounds in throughput those states
come first in
which the other queues have little to do, too.

A queue that is free before anything can arrive on it is as good as one free at that time, and so is a value;
without this two states of the same layer would differ by what happened layers ago.

For throughput the same runs with loads in place of times: nothing waits, and a value is there or not.
Handoffs are loads as well: of values from another device it matters whether their batch was waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mansard.placement.problem import HOST, PlacementProblem, reordered
from mansard.placement.search.branching import Case
from mansard.placement.search.clock import Clock
from mansard.placement.search.local import cost_of
from mansard.placement.search.states import States, equal_rows, undominated
from mansard.placement.search.tables import Outlook, Step

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_SLACK = 1e-9
_DIGITS = 4
"""Bounds that are equal in so many decimals, as parts of all work, count as the same."""
_POWER = 8
"""Of weighted loads in the sum by which states with the same bound are compared: nearly the greatest."""


@dataclass(frozen=True)
class Found:
    """The best placement seen (None: none better than was known, or none within the limits), and a lower
    bound of the cost of every placement, both in seconds."""

    labels: list[int] | None
    cost: float
    bound: float


class Frontier:
    """The search of one problem, prepared: `run` may be called with growing widths."""

    def __init__(self, case: PlacementProblem | Case, objective: str) -> None:
        case = case if isinstance(case, Case) else Case(case)
        problem, self.latency = case.problem, objective == "latency"
        self.problem = problem
        self.cost = cost_of(problem, objective)
        self.look = Outlook(problem, self.latency, case.paid, case.load)
        self.order = list(range(len(problem.times)))
        if not self.latency and not self.look.slots and not self.look.certain.any():
            # Nothing but loads: the order is free, and what is left to the end should be small.
            self.order.sort(key=lambda n: -min(problem.times[n][d] for d in problem.allowed[n]))
            self.problem = replace(reordered(problem, self.order), edges=())
            self.look = Outlook(self.problem, self.latency, (), self.look.load.tolist())

    def run(self, width: int, known: float, until: float, clock: Clock | None = None) -> Found:
        """The best placement among all whose first parts stay within ``width`` states.

        ``known`` is a cost that is reached already; states that cannot be below it are dropped. Stops without
        an answer at the seconds ``until`` of a clock, with a bound of 0.
        """
        clock = clock or Clock()
        states, dropped = self._first(), np.inf
        settled: set[int] = set()
        history: list[tuple[Ints, Ints]] = []
        for n, step in enumerate(self.look.steps):
            if clock.seconds() > until:
                return Found(None, known, 0.0)
            parts, parents, labels = [], [], []
            for device in step.devices:
                rows = self._able(states, n, step, device)
                if len(rows):
                    parts.append(self._placed(states.take(rows), n, step, device))
                    parents.append(rows)
                    labels.append(np.full(len(rows), device))
            if not parts:
                return Found(None, known, min(dropped, known))
            states = States.join(parts)
            settled -= {slot for _, slot in step.makes}
            step = step.without(settled)
            self._raise(states, step)
            settled |= _settle(states, step)
            bounds, promise = self._lower(states, n, step)
            kept = np.flatnonzero(bounds < known * (1 - _SLACK))
            if len(kept) < len(bounds):
                dropped = min(dropped, float(np.delete(bounds, kept).min()))
            if not len(kept):
                return Found(None, known, min(dropped, known))
            kept = kept[np.lexsort((promise[kept], np.round(bounds[kept] / self.look.total, _DIGITS)))]
            part = states.take(kept)
            kept = kept[undominated(part, step.alive, self._kinds(part, step), self.look.quantum)]
            if len(kept) > width:
                order = self._varied(states.take(kept), step)
                dropped = min(dropped, float(bounds[kept[order[width:]]].min()))
                kept = kept[np.sort(order[:width])]
            states = states.take(kept)
            history.append((np.concatenate(parents)[kept], np.concatenate(labels)[kept]))
        costs = self._ends(states)
        row = int(np.argmin(costs))
        least = float(costs[row])
        found: list[int] = []
        for before, devices in reversed(history):
            found.append(int(devices[row]))
            row = int(before[row])
        chosen: list[int] = [0] * len(found)
        for n, number in zip(reversed(self.order), found, strict=True):
            chosen[n] = number
        return Found(chosen, self.cost(chosen), min(dropped, least, known))

    @property
    def bound(self) -> float:
        """Seconds that the fullest queue has at least."""
        return self.look.bound

    def _begin(self) -> Floats:
        """What every queue has before the first dispatch, by device."""
        found = np.zeros(self.look.devices)
        for own in self.look.sharing:
            found[own] = self.look.load[own].sum()
        return found

    def _first(self) -> States:
        devices, groups = self.look.devices, len(self.problem.colocated)
        states = States(
            self._begin()[None],
            np.zeros(1),
            np.zeros((1, self.look.slots, devices)),
            np.full((1, self.look.slots), HOST),
            np.full((1, groups), -1),
            np.zeros((1, len(self.look.limited))),
            np.zeros((1, self.look.shared, devices), np.bool_),
            np.zeros((1, self.look.slots, devices), np.bool_),
            np.zeros((1, len(self.look.least))),
        )
        for number, slot in self.look.initial:
            copied, handoff = self.look.copy[HOST, :, number] > 0, self.look.handoff[HOST, :, number]
            states.there[:, slot] = np.where(copied, np.inf, handoff)
        return states

    def _able(self, states: States, n: int, step: Step, device: int) -> Ints:
        """The states that may have a dispatch on a device."""
        able = np.ones(len(states.top), np.bool_)
        if step.group is not None:
            own = states.group[:, step.group]
            able &= (own < 0) | (own == device)
        if device in self.look.limited and step.held:
            limit = self.problem.limits[device]
            assert limit is not None
            able &= (
                states.used[:, self.look.limited.index(device)] + self._more(states, step, device) <= limit
            )
        if self.look.least:
            # What other devices still lack must fit into what is left after this dispatch.
            wanted = np.array([self.problem.min_dispatches[d] for d in self.look.least], np.float64)
            lacking = np.maximum(0, wanted - states.count)
            if device in self.look.least:
                place = self.look.least.index(device)
                lacking[:, place] = np.maximum(0, lacking[:, place] - 1)
            able &= lacking.sum(axis=1) <= len(self.look.steps) - n - 1
        return np.flatnonzero(able)

    def _more(self, states: States, step: Step, device: int) -> Floats:
        """Bytes of constants that a dispatch adds to a device."""
        more = np.zeros(len(states.top))
        for size, shared in step.held:
            more += size if shared is None else size * ~states.placed[:, shared, device]
        return more

    def _placed(self, states: States, n: int, step: Step, device: int) -> States:
        """The states after a dispatch on a device: what `simulate` does, for all of them."""
        free, there, rows = states.free, states.there, np.arange(len(states.top))
        ready = np.zeros(len(rows))
        queue = next(own for own in self.look.sharing if device in own)
        if n and self.look.entry.any():
            free[:, queue] += self._entered(states, n, step, device)[:, None]
        for number, slot in step.reads:
            arrival = there[:, slot, device]
            missing = np.isinf(arrival)
            if missing.any():
                source = states.made[:, slot]
                made = np.where(source == HOST, 0.0, there[rows, slot, source])
                start = np.maximum(free[:, device], made + self.look.handoff[source, device, number])
                end = start + self.look.copy[source, device, number]
                free[:, queue] = np.where(missing, end, free[:, device])[:, None]
                states.top = np.where(missing, np.maximum(states.top, end), states.top)
                arrival = np.where(missing, end if self.latency else 0.0, arrival)
                there[:, slot, device] = arrival
            if self.latency and self.look.blocking[:, device, number].any():
                blocked = self.look.blocking[states.made[:, slot], device, number]
                waited = np.maximum(free[:, device], arrival)
                free[:, queue] = np.where(blocked, waited, free[:, device])[:, None]
            ready = np.maximum(ready, arrival)
        end = np.maximum(ready, free[:, device]) + self.look.times[n, device]
        free[:, queue] = end[:, None]
        states.top = np.maximum(states.top, end)
        if not self.latency:
            for own in self.look.sharing:
                free[:, own] += self.look.certain[n, device, own].sum()
            states.top = np.maximum(states.top, free.max(axis=1))
        value = end if self.latency else np.zeros(len(rows))
        for slot in step.ends:
            there[:, slot], states.made[:, slot], states.waiting[:, slot] = 0.0, HOST, False
        for number, slot in step.makes:
            states.waiting[:, slot] = bool(set(self.problem.edges[number].consumers) - {HOST}) & (
                self.look.entry[device] > 0
            )
            copied = self.look.copy[device, :, number] > 0
            there[:, slot] = np.where(copied, np.inf, value[:, None] + self.look.handoff[device, :, number])
            states.made[:, slot] = device
            # Whoever waits for this value has by then what the device made before.
            for old in step.covers.get(slot, ()):
                states.waiting[:, old] &= (states.made[:, old] != device)[:, None]
        if step.group is not None:
            last = n == self.problem.colocated[step.group][-1]
            states.group[:, step.group] = -1 if last else device
        if device in self.look.limited and step.held:
            states.used[:, self.look.limited.index(device)] += self._more(states, step, device)
            for _, shared in step.held:
                if shared is not None:
                    states.placed[:, shared, device] = True
        if device in self.look.least:
            place = self.look.least.index(device)
            most = self.problem.min_dispatches[device]
            states.count[:, place] = np.minimum(most, states.count[:, place] + 1)
        return states

    def _entered(self, states: States, n: int, step: Step, device: int) -> Floats:
        """Seconds of the handoffs to a dispatch; what other devices made until then counts as waited for."""
        alive, producers = self.look.steps[n - 1].alive, self.look.steps[n - 1].producers
        read = np.isin(alive, [slot for _, slot in step.reads])
        source, waiting = states.made[:, alive], states.waiting[:, alive, device]
        seconds = np.zeros(len(states.top))
        for other in range(self.look.devices):
            own = waiting & (source == other)
            newest = np.where(own & read, producers, -1).max(axis=1, initial=-1)
            seconds += np.where(newest >= 0, self.look.entry[other, device], 0.0)
            waiting = waiting & ~(own & (producers <= newest[:, None]))
        states.waiting[:, alive, device] = waiting
        return seconds

    def _raise(self, states: States, step: Step) -> None:
        """Raise times to when they matter first: before it no dispatch or copy to come can start."""
        if not self.latency or not step.needs:
            return
        there = states.there
        # When a value could be on a device by any way.
        reach = {}
        for slot in {slot for needed in step.needs for slot in needed}:
            way = (there[:, slot, :, None] + self.look.nearest).min(axis=1)
            reach[slot] = np.where((states.made[:, slot] == HOST)[:, None], 0.0, way)
        earliest = np.full(states.free.shape, np.inf)
        for needed in step.needs:
            if not needed:
                return
            earliest = np.minimum(earliest, np.maximum.reduce([reach[slot] for slot in needed]))
        if not len(step.alive):
            states.free = np.maximum(states.free, earliest)
            return
        rows = np.arange(len(states.top))[:, None]
        source, made, missing = self._values(states, step)
        handoff = self.look.handoff[source, :, step.edges]
        early = made[:, :, None] + handoff
        early = np.where(missing & step.read[:, None], early, np.inf)
        earliest = np.minimum(earliest, early.min(axis=1))
        for column in map(int, np.flatnonzero(step.down)):
            own = source[:, column]
            earliest[rows[:, 0], own] = np.minimum(earliest[rows[:, 0], own], made[:, column])
        states.free = np.maximum(states.free, earliest)
        # Copies to come start by when a value was made: that may rise only as far as none is later for it.
        late = np.where(missing, earliest[:, None, :] - handoff, np.inf).min(axis=2)
        raised = np.maximum(made, np.minimum(late, earliest[rows, source]))
        # A value that is everywhere is as good as there when the queue is free.
        lacking = np.asarray(missing.any(axis=2), np.bool_)
        begin = np.where(lacking[:, :, None], earliest[:, None, :], states.free[:, None, :])
        found = np.maximum(there[:, step.alive], begin)
        raised = np.where(lacking, raised, np.maximum(made, states.free[rows, source]))
        raised = np.where(step.down, made, raised)
        inside, place = np.nonzero(source != HOST)
        found[inside, place, source[inside, place]] = raised[inside, place]
        there[:, step.alive] = found

    def _values(self, states: States, step: Step) -> tuple[Ints, Floats, npt.NDArray[np.bool_]]:
        """For every value alive after a step who made it and when, and on which devices it is not."""
        there, source = states.there[:, step.alive], states.made[:, step.alive]
        made = np.take_along_axis(there, np.maximum(source, 0)[:, :, None], axis=2)[:, :, 0]
        return source, np.where(source == HOST, 0.0, made), np.isinf(there)

    def _lower(self, states: States, n: int, step: Step) -> tuple[Floats, Floats]:
        """A lower bound of what every state can end with, and a figure that is less for the more promising
        of states with the same bound."""
        bound = self._paths(states, n, step) if self.latency else states.top
        queues = np.stack([states.free[:, own].min(axis=1) for own in self.look.sharing], axis=1)
        if self.latency:
            # A queue that gets nothing more may be free long after the last dispatch: see `_raise`.
            queues = np.minimum(queues, bound[:, None])
        left = queues @ self.look.weights.T + self.look.rest[:, n + 1]
        for branch, slot, least in step.owed:
            # The value is made already, and on some devices.
            source = states.made[:, slot]
            paid = np.where(np.isinf(states.there[:, slot]), branch.copy[source], 0.0)
            paid += np.where(states.waiting[:, slot], branch.handoff[source], 0.0)
            own = self.look.weights[:, self.look.queue_of]
            left += (least + own * paid[:, None, :]).min(axis=2)
        bound = np.maximum(bound, left.max(axis=1))
        if self.latency:
            return bound, states.top
        # The fullest queue may be so in all states: the others are to have little to do, too.
        return bound, ((left / self.look.total) ** _POWER).sum(axis=1)

    def _paths(self, states: States, n: int, step: Step) -> Floats:
        """A lower bound by what has to come one after the other."""
        if self.look.ways is None or not len(step.waits):
            return states.top
        source, made, missing = self._values(states, step)
        coming = self.look.handoff[source, :, step.edges] + self.look.copy[source, :, step.edges]
        arrival = np.where(missing, made[:, :, None] + coming, states.there[:, step.alive])
        arrival = np.maximum(arrival, states.free[:, None, :])
        # (states, readers, prices, devices)
        ends = (arrival[:, step.waits, None] + step.tails).min(axis=3).max(axis=1)
        if self.look.limited:
            ends -= self.look.ways.room(states.used, states.placed, n) @ self.look.ways.prices.T
        return np.asarray(np.maximum(states.top, ends.max(axis=1)))

    def _varied(self, states: States, step: Step) -> Ints:
        """Rows in the order in which they are kept: the first of every kind, then the second of every kind.

        Kinds differ in which devices have a large value. A copy of one pays only over many dispatches; by
        their bounds alone, states that have made it would be dropped for those that have not.
        """
        if not len(self.look.large):
            return np.arange(len(states.top))
        slots = step.alive[np.isin(step.edges, self.look.large)]
        copied = np.isinf(states.there[:, slots]).reshape(len(states.top), -1)
        kind_of = equal_rows(copied.astype(np.int64))
        rank = np.zeros(len(states.top), np.int64)
        for kind in range(kind_of.max() + 1):
            rows = np.flatnonzero(kind_of == kind)
            rank[rows] = np.arange(len(rows))
        order: Ints = np.argsort(rank, kind="stable")
        return order

    def _kinds(self, states: States, step: Step) -> Ints:
        """What two states must agree in to be compared: where values are that may have to be copied yet, the
        devices of groups, where constants are that several dispatches read. One row a state."""
        matters: npt.NDArray[np.bool_] = np.asarray(np.isinf(states.there[:, step.alive]).any(axis=2))
        matters[:, step.down] = True
        matters |= states.waiting[:, step.alive].any(axis=2)
        made = np.where(matters, states.made[:, step.alive], HOST)
        placed = states.placed.reshape(len(states.top), self.look.shared * self.look.devices)
        return np.concatenate([made, states.group, placed], axis=1)

    def _ends(self, states: States) -> Floats:
        """What every complete state costs, with copies to the caller."""
        rows, last, free = np.arange(len(states.top)), states.top.copy(), states.free
        queues = np.array(self.problem.queues)
        for number, slot in self.look.final:
            source = states.made[:, slot]
            made = states.there[rows, slot, source]
            copy = self.look.down[number, source]
            queued = self.look.queued[number, source]
            end = np.where(queued, np.maximum(free[rows, source], made) + copy, made)
            same = (queues == queues[source][:, None]) & (copy > 0)[:, None]
            free = np.where(same, end[:, None], free)
            last = np.maximum(last, end + self.look.behind[number, source])
        return last


def _settle(states: States, step: Step) -> set[int]:
    """The slots of values that no state waits for or copies any more: they are forgotten."""
    there, slots = states.there, step.alive[~step.down]
    earliest = states.free[:, None, :]
    late = ((there[:, slots] > earliest) | states.waiting[:, slots]).any(axis=(0, 2))
    found = slots[~late]
    there[:, found], states.made[:, found] = 0.0, HOST
    return {int(slot) for slot in found}
