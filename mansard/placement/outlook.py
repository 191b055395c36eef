"""What a search along the model's order has to know about the rest of the model, worked out before it."""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from mansard.placement.forest import Branch, Forest
from mansard.placement.loads import load_weights
from mansard.placement.problem import HOST, Problem

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_NEGLIGIBLE = 4e-3
"""Copies that together take no more than this part of all dispatches count as instant."""
_LARGE = 0.02
"""A value is large when a copy of it takes this part of all dispatches."""
_PARTS = 4
"""Weights of devices are worked out for what remains at so many places of the model."""


@dataclass
class Step:
    """What placing one dispatch involves, worked out before the search."""

    reads: list[tuple[int, int]] = field(default_factory=list)
    """(move, slot), in the order in which `simulate` brings them."""
    makes: list[tuple[int, int]] = field(default_factory=list)
    """(move, slot) of its values."""
    ends: list[int] = field(default_factory=list)
    """Slots whose value nobody reads afterwards."""
    devices: tuple[int, ...] = ()
    group: int | None = None
    """The group it belongs to."""
    held: tuple[tuple[int, int | None], ...] = ()
    """(bytes, number among shared constants or None) of the constants it reads."""
    needs: list[list[int]] = field(default_factory=list)
    """Of the slots alive afterwards, the least sets of which a later dispatch needs all."""
    alive: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Slots of the values that are read afterwards."""
    moves: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Their moves."""
    read: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Whether dispatches read them."""
    down: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Whether the caller does."""
    waits: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Numbers of ``alive``, with repetitions: one for each row of ``tails``."""
    tails: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """Seconds to the end from the start of a reader on each device, (readers that matter, devices)."""

    owed: list[tuple[Branch, int, Floats]] = field(default_factory=list)
    """(branch, slot, least) of the values alive that later dispatches keep (`Forest`): ``least`` is the
    weighted load of what grows from the value, (weights, devices)."""

    def without(self, slots: Container[int]) -> Step:
        """The step without the values in some slots."""
        kept = np.array([slot not in slots for slot in self.alive.tolist()], np.bool_)
        if kept.all():
            return self
        rows = kept[self.waits]
        return replace(
            self,
            alive=self.alive[kept],
            moves=self.moves[kept],
            read=self.read[kept],
            down=self.down[kept],
            waits=(np.cumsum(kept) - 1)[self.waits[rows]],
            tails=self.tails[rows],
        )


class Outlook:
    """The steps of a problem. A value that is alive between steps has a slot, which is its own meanwhile.

    ``handoff`` and ``copy`` are seconds, [source, target, move], the last row for HOST as the source;
    ``down`` of copies to the caller, [move, device]; ``entry`` what a handoff loads its reader with, [source,
    target], the last row for HOST. For throughput nothing waits, and ``handoff`` is 0; for latency ``entry``.
    """

    def __init__(self, problem: Problem, latency: bool) -> None:
        self.problem = problem
        self.devices = len(problem.profiles)
        self.times: Floats = np.array(problem.times, np.float64).reshape(-1, self.devices)
        self.quantum = 1e-12 * max(float(self.times.min(axis=1).sum()), 1e-18)
        """Seconds that make no difference."""
        self._delays(latency)
        self.nearest = _shortest(self.handoff[: self.devices, : self.devices, 0].copy())
        self.limited = [d for d, limit in enumerate(problem.limits) if limit is not None]
        self.least = [d for d, least in enumerate(problem.least) if least]
        self._steps(latency)
        self._waiting(self._tails())
        self.weights, self.rest = self._loads()
        self.savings = {d: self._savings(d) for d in self.limited} if latency else {}

    def _delays(self, latency: bool) -> None:
        moves = self.problem.moves
        shape = (self.devices + 1, self.devices, max(1, len(moves)))
        handoff, copy = np.zeros(shape), np.zeros(shape)
        for source in (*range(self.devices), HOST):
            for target in range(self.devices):
                for number, move in enumerate(moves):
                    found = self.problem.delay(move.bytes, source, target)
                    handoff[source, target, number], copy[source, target, number] = found
        self.down = np.array(
            [[self.problem.delay(move.bytes, d, HOST)[1] for d in range(self.devices)] for move in moves]
        ).reshape(-1, self.devices)
        # Copies that add up to nothing are left out: where small values are then makes no states.
        most = np.maximum(copy.max(axis=(0, 1))[: len(moves)], self.down.max(axis=1, initial=0.0))
        lives = [max((len(self.times) if u == HOST else u) - m.producer for u in m.consumers) for m in moves]
        order = np.argsort(most / np.maximum(1, lives))
        fastest = self.times.min(axis=1).sum()
        small = order[np.cumsum(most[order]) <= _NEGLIGIBLE * fastest]
        self.large: Ints = np.flatnonzero(most >= _LARGE * fastest)
        copy[:, :, small] = 0.0
        self.down[small] = 0.0
        self.handoff: Floats = handoff if latency else np.zeros_like(handoff)
        self.copy: Floats = copy
        self.entry: Floats = np.zeros((self.devices + 1, self.devices))
        if not latency:
            for source, target in itertools.product(range(self.devices), repeat=2):
                self.entry[source, target] = self.problem.entry(source, target)

    def _steps(self, latency: bool) -> None:
        problem, count = self.problem, len(self.times)
        self.steps = steps = [Step() for _ in range(count)]
        slots: list[int] = []  # the dispatch after which each slot is empty again
        self.initial: list[tuple[int, int]] = []
        self.final: list[tuple[int, int]] = []
        self.slot_of: dict[int, int] = {}
        for number, move in sorted(enumerate(problem.moves), key=lambda item: item[1].producer):
            users = [c for c in move.consumers if c != HOST]
            to_host = HOST in move.consumers and move.producer != HOST
            to_host = to_host and any(self.down[number, d] for d in problem.allowed[move.producer])
            instant = not self.copy[:, :, number].any() and not to_host
            waits = latency or (self.entry.any() and users)
            if instant and (move.producer == HOST or not waits):
                continue  # it is wherever it is read when it is read
            last = count if to_host else max(users, default=-1)
            if last < 0:
                continue
            begin = move.producer
            slot = next((s for s, end in enumerate(slots) if end <= begin and end < count), len(slots))
            if slot == len(slots):
                slots.append(0)
            slots[slot] = last
            self.slot_of[number] = slot
            if begin == HOST:
                self.initial.append((number, slot))
            else:
                steps[begin].makes.append((number, slot))
            for user in users:
                steps[user].reads.append((number, slot))
            if last < count:
                steps[last].ends.append(slot)
            else:
                self.final.append((number, slot))
        self.slots = len(slots)
        self.final.sort()
        group_of = {n: (g, group) for g, group in enumerate(problem.together) for n in group}
        shared = {h: i for i, h in enumerate(k for k, h in enumerate(problem.held) if len(h.users) > 1)}
        self.shared = len(shared) if self.limited else 0
        for n, step in enumerate(steps):
            step.reads.sort()
            step.devices = problem.allowed[n]
            if n in group_of:
                step.group, group = group_of[n]
                step.devices = tuple(d for d in step.devices if all(d in problem.allowed[m] for m in group))
        if self.limited:
            for number, held in enumerate(problem.held):
                for n in held.users:
                    steps[n].held = (*steps[n].held, (held.bytes, shared.get(number)))

    def _tails(self) -> Floats:
        """Seconds from the start of every dispatch on every device to the end, along the worst path."""
        tail = np.full(self.times.shape, np.inf)
        made: dict[int, list[int]] = {}
        for number, move in enumerate(self.problem.moves):
            made.setdefault(move.producer, []).append(number)
        for n in range(len(tail) - 1, -1, -1):
            for d in self.steps[n].devices:
                behind = 0.0
                for number in made.get(n, ()):
                    move = self.problem.moves[number]
                    arrival = self.handoff[d, :, number] + self.copy[d, :, number]
                    for user in move.consumers:
                        if user == HOST:
                            behind = max(behind, float(self.down[number, d]))
                        else:
                            behind = max(behind, float((arrival + tail[user]).min()))
                tail[n, d] = self.times[n, d] + behind
        return tail

    def _waiting(self, tail: Floats) -> None:
        """For the values alive after every step: what waits for them."""
        moves, count = self.problem.moves, len(self.times)
        final = {number for number, _ in self.final}
        for n, step in enumerate(self.steps):
            alive = [
                number
                for number in self.slot_of
                if moves[number].producer <= n
                and (number in final or any(user > n for user in moves[number].consumers))
            ]
            behind: dict[int, set[int]] = {}
            sets: set[frozenset[int]] = set()
            for later in range(n + 1, count):
                found: set[int] = set()
                for number in self.problem.inputs[later]:
                    if moves[number].producer > n:
                        found |= behind[moves[number].producer]
                    elif number in self.slot_of:
                        found.add(self.slot_of[number])
                behind[later] = found
                sets.add(frozenset(found))
            step.needs = [sorted(s) for s in sets if not any(other < s for other in sets)]
            step.alive = np.array([self.slot_of[number] for number in alive], np.int64)
            step.moves = np.array(alive, np.int64)
            step.down = np.array([number in final for number in alive], np.bool_)
            waits, kept = [], []
            for place, number in enumerate(alive):
                tails = [tail[user] for user in moves[number].consumers if user > n]
                own = [t for i, t in enumerate(tails) if not _covered(t, i, tails)]
                waits += [place] * len(own)
                kept += own
            step.waits = np.array(waits, np.int64)
            step.tails = np.array(kept).reshape(-1, self.devices)
            step.read = np.isin(np.arange(len(alive)), step.waits)

    def _loads(self) -> tuple[Floats, Floats]:
        """Weights of queues, and for each the weighted load of the dispatches from n on, at its least, that
        do not depend on where values are (the others are in `Step.owed`).

        The weights are those that bound the fullest queue best, for everything and for what is left along
        the way, and every queue alone.
        """
        count = len(self.times)
        allowed = np.full(self.times.shape, np.inf)
        for n, step in enumerate(self.steps):
            able = list(step.devices)
            allowed[n, able] = self.times[n, able]
        begins = sorted({count * part // _PARTS for part in range(_PARTS)})
        # A queue that several devices share is as good as the best of them.
        queues = sorted(set(self.problem.queues))
        shared = [[d for d in range(self.devices) if self.problem.queues[d] == queue] for queue in queues]
        branches = self._branches()
        forest = Forest(allowed, branches, [queues.index(queue) for queue in self.problem.queues])
        fastest = np.stack([allowed[:, own].min(axis=1) for own in shared], axis=1)
        found = [load_weights(fastest[begin:]) for begin in begins]
        if any(branches):
            found += [forest.best_weights(w, begin) for w, begin in zip(found, begins, strict=True)]
        matrix = np.unique(np.array([*np.eye(len(queues)), *found]), axis=0)
        values = forest.values(matrix)
        cost = np.zeros((len(matrix), count + 1))
        for n, branch in enumerate(branches):
            if branch is None:
                cost[:, : n + 1] += values[:, n].min(axis=1)[:, None]
                continue
            owed = branch, self.slot_of[branch.move], values[:, n]
            for step in self.steps[max(0, branch.parent) : n]:
                step.owed.append(owed)
        self.sharing, self.queue_of = shared, forest.queues
        return matrix, cost

    def _branches(self) -> list[Branch | None]:
        """For every dispatch the value that it keeps of those that load the reader's queue."""
        moves = self.problem.moves
        kept = [
            max((number for number, _ in step.reads), key=lambda m: moves[m].producer, default=None)
            for step in self.steps
        ]
        newest = [-1] * len(kept)
        for move in moves:
            for user in move.consumers:
                if user != HOST:
                    newest[user] = max(newest[user], move.producer)
        # Handed over for a dispatch or another reader of the value: nothing read until then was made later.
        entries = [
            parent
            if number is not None
            and moves[number].producer == parent >= max(newest[parent + 1 : n], default=-1)
            else HOST
            for n, (number, parent) in enumerate(zip(kept, newest, strict=True))
        ]
        found: list[Branch | None] = []
        for number, parent in zip(kept, entries, strict=True):
            if number is None:
                found.append(None)
                continue
            copy = self.copy[:, :, number] / kept.count(number)
            handoff = self.entry * (parent != HOST) / max(1, entries.count(parent))
            branch = Branch(number, moves[number].producer, copy, handoff)
            found.append(branch if branch.price.any() else None)
        return found

    def _savings(self, device: int) -> list[tuple[float, Floats, Floats]]:
        """For the dispatches of one path after every step: seconds without a device that has a limit, and
        what they take less with so many bytes of constants there, as a line through points.

        Of the bytes those are used first that save most, and in parts: no choice of dispatches saves more.
        """
        path = set(_longest_path(self.problem, self.times))
        alone = np.zeros(len(self.times))
        for held in self.problem.held:
            if len(held.users) == 1:
                alone[held.users[0]] += held.bytes
        found = []
        seconds, saved = 0.0, list[tuple[float, float, float]]()
        for n in range(len(self.times) - 1, -1, -1):
            order = sorted(saved, reverse=True)
            sizes, gains = ([row[place] for row in order] for place in (1, 2))
            found.append((seconds, np.cumsum([0.0, *sizes]), np.cumsum([0.0, *gains])))
            if n in path:
                others = [d for d in self.steps[n].devices if d != device]
                elsewhere = self.times[n, others].min() if others else self.times[n, device]
                seconds += float(elsewhere)
                gain = float(elsewhere - self.times[n, device])
                if device in self.steps[n].devices and gain > 0:
                    saved.append((gain / max(alone[n], 1.0), float(alone[n]), gain))
        return found[::-1]


def _longest_path(problem: Problem, times: Floats) -> list[int]:
    """The dispatches of the longest path, each where it is fastest."""
    parents: list[set[int]] = [set() for _ in times]
    for move in problem.moves:
        for user in move.consumers:
            if HOST not in (user, move.producer):
                parents[user].add(move.producer)
    ends = np.zeros(len(times))
    for n, own in enumerate(parents):
        fastest = min(times[n, d] for d in problem.allowed[n])
        ends[n] = fastest + max((ends[p] for p in own), default=0.0)
    path = [int(np.argmax(ends))]
    while parents[path[-1]]:
        path.append(max(parents[path[-1]], key=lambda p: float(ends[p])))
    return path[::-1]


def _covered(tail: Floats, place: int, tails: Sequence[Floats]) -> bool:
    """Whether another tail is everywhere at least as long, the first of equals excepted."""
    return any(
        (other >= tail).all() and (i < place or (other > tail).any())
        for i, other in enumerate(tails)
        if i != place
    )


def _shortest(delay: Floats) -> Floats:
    """Least delays between devices, by way of others."""
    for k in range(len(delay)):
        delay = np.minimum(delay, delay[:, k : k + 1] + delay[k : k + 1])
    return delay
