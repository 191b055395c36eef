"""What a search along the model's order has to know about the rest of the model, worked out before it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from mansard.placement.problem import HOST, PlacementProblem
from mansard.placement.search.load_bound import Branch, Forest
from mansard.placement.search.loads import load_weights
from mansard.placement.search.path_bound import Ways

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
    covers: dict[int, list[int]] = field(default_factory=dict)
    """For slots of its values those of older ones that nobody reads afterwards without this one."""
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
    edges: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Their moves."""
    producers: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """And who makes them."""
    read: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Whether dispatches read them."""
    down: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Whether the caller does."""
    waits: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Numbers of ``alive``, with repetitions: one for each row of ``tails``."""
    tails: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))
    """Seconds to the end from the start of a reader on each device, (readers that matter, prices, devices),
    see `Ways`."""

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
            edges=self.edges[kept],
            producers=self.producers[kept],
            read=self.read[kept],
            down=self.down[kept],
            waits=(np.cumsum(kept) - 1)[self.waits[rows]],
            tails=self.tails[rows],
        )


class Outlook:
    """The steps of a problem. A value that is alive between steps has a slot, which is its own meanwhile.

    ``handoff`` and ``copy`` are seconds, [source, target, move], the last row for HOST as the source;
    ``down`` of copies to the caller, ``queued`` whether there are any, however short, and ``behind`` seconds
    of what follows them, [move, device]; ``entry`` what a handoff loads its reader with, [source, target],
    the last row for HOST. For throughput nothing waits, and ``handoff`` and ``behind`` are 0; for latency
    ``entry``.
    Copies that take nothing worth mentioning are none, but ``blocking`` where a queue waits for the value
    before it does anything else, [source, target, move]. Copies that are ``paid`` cost nothing; ``load`` is
    what each device has to do besides, in seconds, and ``certain`` what a dispatch brings others to do, by
    its device and theirs, [dispatch, device, device].
    """

    def __init__(
        self,
        problem: PlacementProblem,
        latency: bool,
        paid: Collection[tuple[int, int]] = (),
        load: Sequence[float] | None = None,
    ) -> None:
        self.problem = problem
        self.load: Floats = np.zeros(len(problem.profiles)) if load is None else np.array(load, np.float64)
        self.devices = len(problem.profiles)
        self.times: Floats = np.array(problem.times, np.float64).reshape(-1, self.devices)
        self.total = max(float(self.times.min(axis=1).sum()), 1e-18)
        """Seconds of all dispatches, each where it is fastest."""
        self.quantum = 1e-12 * self.total
        """Seconds that make no difference."""
        self._delays(latency, paid)
        self.nearest = _shortest(self.handoff[: self.devices, : self.devices, 0].copy())
        self.limited = [d for d, limit in enumerate(problem.limits) if limit is not None]
        self.least = [d for d, least in enumerate(problem.min_dispatches) if least]
        self._steps(latency)
        self.ways = Ways(self) if latency else None
        self._waiting()
        self.weights, self.rest = self._loads()

    def _delays(self, latency: bool, paid: Collection[tuple[int, int]]) -> None:
        edges = self.problem.edges
        shape = (self.devices + 1, self.devices, max(1, len(edges)))
        handoff, copy = np.zeros(shape), np.zeros(shape)
        for source in (*range(self.devices), HOST):
            for target in range(self.devices):
                for number, edge in enumerate(edges):
                    found = self.problem.transfer_delay(edge.bytes, source, target)
                    handoff[source, target, number], copy[source, target, number] = found
        for number, target in paid:
            copy[:, target, number] = 0.0
        for number, edge in enumerate(edges):
            readers = {d for n in edge.consumers if n != HOST for d in self.problem.allowed[n]}
            copy[:, [d for d in range(self.devices) if d not in readers], number] = 0.0
        to_host = [
            [self.problem.transfer_delay(edge.bytes, d, HOST) for d in range(self.devices)] for edge in edges
        ]
        behind, self.down = np.moveaxis(np.array(to_host).reshape(-1, self.devices, 2), 2, 0).copy()
        self.queued: npt.NDArray[np.bool_] = self.down > 0
        # Copies that add up to nothing are left out: where small values are then makes no states.
        most = np.maximum(copy.max(axis=(0, 1))[: len(edges)], self.down.max(axis=1, initial=0.0))
        lives = [max((len(self.times) if u == HOST else u) - m.producer for u in m.consumers) for m in edges]
        order = np.argsort(most / np.maximum(1, lives))
        fastest = self.times.min(axis=1).sum()
        small = order[np.cumsum(most[order]) <= _NEGLIGIBLE * fastest]
        self.large: Ints = np.flatnonzero(most >= _LARGE * fastest)
        self.blocking: npt.NDArray[np.bool_] = np.zeros(shape, np.bool_)
        self.blocking[:, :, small] = copy[:, :, small] > 0
        copy[:, :, small] = 0.0
        self.down[small] = 0.0
        self.certain: Floats = np.zeros((len(self.times), self.devices, self.devices))
        if not latency:
            self._certain(copy)
        self.handoff: Floats = handoff if latency else np.zeros_like(handoff)
        self.behind: Floats = behind if latency else np.zeros_like(behind)
        self.copy: Floats = copy
        self.entry: Floats = np.zeros((self.devices + 1, self.devices))
        if not latency:
            for source, target in itertools.product(range(self.devices), repeat=2):
                self.entry[source, target] = self.problem.handoff_load(source, target)

    def _certain(self, copy: Floats) -> None:
        """Copies to readers that can only be on one device are made wherever the value is: loads of its own
        dispatch, or in any event. They are no copies of the search then."""
        for number, edge in enumerate(self.problem.edges):
            able = [self.problem.allowed[n] for n in edge.consumers if n != HOST]
            for target in {own[0] for own in able if len(own) == 1}:
                if edge.producer == HOST:
                    self.load[target] += copy[HOST, target, number]
                else:
                    self.certain[edge.producer, :, target] += copy[:-1, target, number]
                copy[:, target, number] = 0.0

    def _steps(self, latency: bool) -> None:
        problem, count = self.problem, len(self.times)
        self.steps = steps = [Step() for _ in range(count)]
        slots: list[int] = []  # the dispatch after which each slot is empty again
        self.initial: list[tuple[int, int]] = []
        self.final: list[tuple[int, int]] = []
        self.slot_of: dict[int, int] = {}
        for number, edge in sorted(enumerate(problem.edges), key=lambda item: item[1].producer):
            users = [c for c in edge.consumers if c != HOST]
            to_host = HOST in edge.consumers and edge.producer != HOST
            late = self.down[number] + self.behind[number]
            to_host = to_host and any(late[d] for d in problem.allowed[edge.producer])
            instant = not self.copy[:, :, number].any() and not to_host
            waits = latency or (self.entry.any() and users)
            if edge.producer == HOST:
                waits = self.handoff[HOST, :, number].any()
            if instant and not waits:
                continue  # it is wherever it is read when it is read
            last = count if to_host else max(users, default=-1)
            if last < 0:
                continue
            begin = edge.producer
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
        group_of = {n: (g, group) for g, group in enumerate(problem.colocated) for n in group}
        shared = {h: i for i, h in enumerate(k for k, h in enumerate(problem.constants) if len(h.users) > 1)}
        self.shared = len(shared) if self.limited else 0
        for n, step in enumerate(steps):
            step.reads.sort()
            step.devices = problem.allowed[n]
            if n in group_of:
                step.group, group = group_of[n]
                step.devices = tuple(d for d in step.devices if all(d in problem.allowed[m] for m in group))
        if self.limited:
            for number, held in enumerate(problem.constants):
                for n in held.users:
                    steps[n].held = (*steps[n].held, (held.bytes, shared.get(number)))

    def _waiting(self) -> None:
        """For the values alive after every step: what waits for them."""
        count = len(self.times)
        final = {number for number, _ in self.final}
        readers = {n: {*self.problem.edges[n].consumers} - {HOST} for n in self.slot_of}
        last = {n: max(own, default=HOST) for n, own in readers.items()}
        # What reads only what is made already by then can be next; all others wait for one of those.
        able: list[set[int]] = [set() for _ in range(count)]
        for later, producers in enumerate(self.problem.producers):
            for n in range(max(producers, default=0), later):
                able[n].add(later)
        alive = [number for number, _ in self.initial]
        for n, step in enumerate(self.steps):
            alive = [number for number in alive if number in final or last[number] > n]
            if self.entry.any():
                step.covers = {
                    slot: [
                        self.slot_of[old]
                        for old in alive
                        if last[old] <= last[number]
                        and all(user <= n or user in readers[number] for user in readers[old])
                    ]
                    for number, slot in step.makes
                }
            alive += [number for number, _ in step.makes]
            sets = {
                frozenset(self.slot_of[m] for m in self.problem.input_edges[later] if m in self.slot_of)
                for later in able[n]
            }
            step.needs = [sorted(s) for s in sets if not any(other < s for other in sets)]
            step.alive = np.array([self.slot_of[number] for number in alive], np.int64)
            step.edges = np.array(alive, np.int64)
            step.producers = np.array([self.problem.edges[number].producer for number in alive], np.int64)
            step.down = np.array([number in final for number in alive], np.bool_)
            if self.ways is not None:
                tails = [self.ways.behind(number, n) for number in alive]
                step.waits = np.repeat(np.arange(len(alive)), [len(own) for own in tails])
                step.tails = np.concatenate([np.zeros((0, *self.ways.tail.shape[1:])), *tails])
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
        forest = Forest(
            allowed, branches, [queues.index(queue) for queue in self.problem.queues], self.certain
        )
        fastest = np.stack([allowed[:, own].min(axis=1) for own in shared], axis=1)
        load = np.array([self.load[own].sum() for own in shared])
        found = [load_weights(fastest[begin:], load * (begin == 0)) for begin in begins]
        if any(branches):
            found += [*forest.best_weights(np.array(found), begins, load)]
        matrix = np.unique(np.array([*np.eye(len(queues)), *found]), axis=0)
        values = forest.values(matrix)
        cost = np.zeros((len(matrix), count + 1))
        for n, branch in enumerate(branches):
            if branch is None:
                cost[:, : n + 1] += values[:, n].min(axis=1)[:, None]
                continue
            owed = branch, self.slot_of[branch.edge], values[:, n]
            for step in self.steps[max(0, branch.parent) : n]:
                step.owed.append(owed)
        self.sharing, self.queue_of = shared, forest.queues
        begin = matrix @ load + cost[:, 0]
        for n, branch in enumerate(branches):
            if branch is not None and branch.parent == HOST:
                paid = values[:, n] + matrix[:, forest.queues] * branch.price[HOST]
                begin = begin + paid.min(axis=1)
        self.bound = float(begin.max())
        return matrix, cost

    def _branches(self) -> list[Branch | None]:
        """For every dispatch the value that it keeps of those that load the reader's queue."""
        edges = self.problem.edges
        kept = [
            max((number for number, _ in step.reads), key=lambda m: edges[m].producer, default=None)
            for step in self.steps
        ]
        newest = [-1] * len(kept)
        for edge in edges:
            for user in edge.consumers:
                if user != HOST:
                    newest[user] = max(newest[user], edge.producer)
        # Handed over for a dispatch or another reader of the value: nothing read until then was made later.
        entries = [
            parent
            if number is not None
            and edges[number].producer == parent >= max(newest[parent + 1 : n], default=-1)
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
            branch = Branch(number, edges[number].producer, copy, handoff)
            found.append(branch if branch.price.any() else None)
        return found


def _shortest(delay: Floats) -> Floats:
    """Least delays between devices, by way of others."""
    for k in range(len(delay)):
        delay = np.minimum(delay, delay[:, k : k + 1] + delay[k : k + 1])
    return delay
