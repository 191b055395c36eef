"""The steps of the beam search, one per dispatch, and the slots that hold live values between them."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from mansard.placement.problem import HOST, DataEdge
from mansard.placement.search.cost_tables import CostTables
from mansard.placement.search.load_bound import TreeEdge

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass
class SearchStep:
    """What placing one dispatch involves. ``live`` and the arrays after it have one row for every value
    that is read after the dispatch."""

    devices: tuple[int, ...] = ()
    group: int | None = None
    """The co-located group of the dispatch."""
    reads: list[tuple[int, int]] = field(default_factory=list)
    """(edge, slot), in the order in which `simulate` transfers them."""
    writes: list[tuple[int, int]] = field(default_factory=list)
    """(edge, slot) of its results."""
    released: list[int] = field(default_factory=list)
    """Slots whose value is dead afterwards."""
    constants: tuple[tuple[int, int | None], ...] = ()
    """(bytes, number among shared constants or None) of the constants it reads."""
    covered: dict[int, list[int]] = field(default_factory=dict)
    """For slots of its results the live slots that nothing reads later without reading this result, too."""
    prerequisites: list[list[int]] = field(default_factory=list)
    """The minimal sets of live slots such that every later dispatch needs all of one set."""
    live: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Slots of the live values."""
    edges: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    producers: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    has_reader: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Whether dispatches read the value."""
    to_host: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Whether the host reads the value."""
    tail_rows: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """The row of ``live`` for each row of ``tails``."""
    tails: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))
    """Seconds from the start of a reader to the end of the model, (readers, prices, devices): `PathBound`."""
    tree_edges: list[tuple[TreeEdge, int, Floats]] = field(default_factory=list)
    """(edge, slot, subtree loads) of the dependences that the load bound keeps across this step; the loads
    are weighted, (weights, devices)."""

    def without(self, slots: Container[int]) -> SearchStep:
        """The step without the live values in some slots."""
        kept = np.array([slot not in slots for slot in self.live.tolist()], np.bool_)
        if kept.all():
            return self
        rows = kept[self.tail_rows]
        return replace(
            self,
            live=self.live[kept],
            edges=self.edges[kept],
            producers=self.producers[kept],
            has_reader=self.has_reader[kept],
            to_host=self.to_host[kept],
            tail_rows=(np.cumsum(kept) - 1)[self.tail_rows[rows]],
            tails=self.tails[rows],
        )


class StepTable:
    """The steps, and a slot for every value whose place or time can matter; slots are reused."""

    def __init__(self, costs: CostTables) -> None:
        self.costs, self.problem = costs, costs.problem
        self.steps = [SearchStep() for _ in costs.times]
        self.initial: list[tuple[int, int]] = []
        """(edge, slot) of the inputs."""
        self.final: list[tuple[int, int]] = []
        """(edge, slot) of what the host reads."""
        self.slot_of: dict[int, int] = {}
        """Slots by edge."""
        self.slot_count = self._assign_slots()
        for step in self.steps:
            step.reads.sort()
        self.final.sort()
        self._set_devices()
        self.shared_count = self._set_constants()
        """Constants that several dispatches read, if any device's are limited."""

    def _assign_slots(self) -> int:
        count = len(self.steps)
        last_uses: list[int] = []  # by slot: the dispatch after which it is free
        edges = sorted(enumerate(self.problem.edges), key=lambda item: item[1].producer)
        for number, edge in edges:
            readers = [c for c in edge.consumers if c != HOST]
            last_use = self._last_use(number, edge, readers)
            if last_use < 0:
                continue
            begin = edge.producer
            slot = next(
                (s for s, end in enumerate(last_uses) if end <= begin and end < count), len(last_uses)
            )
            if slot == len(last_uses):
                last_uses.append(0)
            last_uses[slot] = last_use
            self.slot_of[number] = slot
            if begin == HOST:
                self.initial.append((number, slot))
            else:
                self.steps[begin].writes.append((number, slot))
            for reader in readers:
                self.steps[reader].reads.append((number, slot))
            if last_use < count:
                self.steps[last_use].released.append(slot)
            else:
                self.final.append((number, slot))
        return len(last_uses)

    def _last_use(self, number: int, edge: DataEdge, readers: list[int]) -> int:
        """The last dispatch that reads a value, the number of dispatches for the host; -1 for a value that
        needs no slot, as it is available wherever it is read when it is read."""
        costs = self.costs
        to_host = HOST in edge.consumers and edge.producer != HOST
        host_delay = costs.host_copy[number] + costs.host_handoff[number]
        to_host = to_host and any(host_delay[d] for d in self.problem.allowed[edge.producer])
        instant = not costs.copy[:, :, number].any() and not to_host
        waits = costs.latency or (costs.handoff_load.any() and readers)
        if edge.producer == HOST:
            waits = costs.handoff[HOST, :, number].any()
        if instant and not waits:
            return -1
        return len(self.steps) if to_host else max(readers, default=-1)

    def _set_devices(self) -> None:
        allowed = self.problem.allowed
        group_of = {n: (g, group) for g, group in enumerate(self.problem.colocated) for n in group}
        for n, step in enumerate(self.steps):
            step.devices = allowed[n]
            if n in group_of:
                step.group, group = group_of[n]
                step.devices = tuple(d for d in step.devices if all(d in allowed[m] for m in group))

    def _set_constants(self) -> int:
        if not self.problem.limited_devices:
            return 0
        shared = [n for n, constant in enumerate(self.problem.constants) if len(constant.readers) > 1]
        shared_number = {n: number for number, n in enumerate(shared)}
        for n, constant in enumerate(self.problem.constants):
            for reader in constant.readers:
                step = self.steps[reader]
                step.constants = (*step.constants, (constant.bytes, shared_number.get(n)))
        return len(shared)
