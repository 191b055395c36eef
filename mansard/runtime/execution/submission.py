"""Which commands of a call go to which queue in one batch, and what each batch waits for.

Every device slot has up to three lanes, in each of which batches run in order: `COMPUTE` for kernels and
small copies, and on the device's transfer queue `FETCH` for what it copies before its kernels and `SEND`
for what it copies after them. Kernels of a segment wait for its fetches alone, a fetch for whoever makes
what it copies and for the segment beside which it may run (its target's memory is free from there on),
a send for the kernel that makes what it copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mansard.errors import ArtifactError
from mansard.plan.layout import CopyPlan, Layout
from mansard.plan.plan import BarrierStep, DispatchStep, Plan, Step, TransferStep
from mansard.plan.segments import Place, named, written

COMPUTE, FETCH, SEND = range(3)
LANES = 3


@dataclass(frozen=True)
class Piece:
    """A part of an upload: ``size`` bytes from byte ``begin`` on."""

    copy: CopyPlan
    begin: int
    size: int


Item = DispatchStep | BarrierStep | CopyPlan | Piece
Pieces = Callable[[CopyPlan], Sequence[CopyPlan | Piece]]
"""How an upload that goes to the transfer queue is cut."""
Apart = Callable[[int, CopyPlan], bool]
"""Whether a slot's copy goes to the transfer queue."""


@dataclass(eq=False)
class Work:
    """What becomes one batch of a slot."""

    slot: int
    lane: int
    items: list[Item] = field(default_factory=list)
    after: list[Work] = field(default_factory=list)
    """What it waits for."""

    @property
    def computes(self) -> bool:
        """Whether there is a kernel in it."""
        return any(isinstance(item, DispatchStep) for item in self.items)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to run."""
        return all(isinstance(item, BarrierStep) for item in self.items)


def whole(copy: CopyPlan) -> list[CopyPlan]:
    """An upload in one piece."""
    return [copy]


def make_batches(plan: Plan, layout: Layout, apart: Apart, cut: Pieces = whole) -> list[list[Work]]:
    """The batches of every slot, each behind those of its slot that it waits for.

    Uploads that are apart are ``cut`` into batches of one piece each.
    Segments without commands have none; who waits for one waits for what it waits for.
    """
    return _Batching(plan, layout, apart, cut).run()


class _Batching:
    def __init__(self, plan: Plan, layout: Layout, apart: Apart, cut: Pieces) -> None:
        self.plan, self.layout, self.apart, self.cut = plan, layout, apart, cut
        self.work: list[list[Work]] = [[] for _ in plan.devices]
        self.last: list[list[Work | None]] = [[None] * LANES for _ in plan.devices]
        self.end: dict[Place, Work] = {}
        """The last batch of a segment's kernels."""
        self.moved: dict[CopyPlan, Work] = {}
        """The batches of copies that are apart."""
        self.reading: list[list[CopyPlan]] = [[] for _ in plan.devices]
        """Copies apart that may still read what the slot's kernels have made."""
        self.seen: list[set[int]] = [set() for _ in plan.devices]

    def run(self) -> list[list[Work]]:
        reached = [0] * len(self.plan.devices)
        while any(self._advance(slot, reached) for slot in range(len(reached))):
            pass
        if any(n < len(d.segments) for n, d in zip(reached, self.plan.devices, strict=True)):
            raise ArtifactError("segments of the plan wait for each other in a circle")
        return [_without_empty(own) for own in self.work]

    def _advance(self, slot: int, reached: list[int]) -> bool:
        """Make the batches of a slot's next segments, as far as what they wait for is made."""
        begin, segments = reached[slot], self.plan.devices[slot].segments
        while reached[slot] < len(segments):
            if any(s != slot and n >= reached[s] for s, n in segments[reached[slot]].wait):
                break
            self._segment(slot, reached[slot])
            reached[slot] += 1
        return reached[slot] > begin

    def _segment(self, slot: int, number: int) -> None:
        segment = self.plan.devices[slot].segments[number]
        uploads = self.layout.before.get((slot, number), [])
        downloads = self.layout.after.get((slot, number), [])
        early = self._first_uses(segment.steps, [copy for copy in uploads if self.apart(slot, copy)])
        late = [copy for copy in downloads if self.apart(slot, copy)]
        cuts = self._cuts(slot, segment.steps, late)
        needed = [self.end[place] for place in segment.wait if place[0] != slot]
        work = Work(slot, COMPUTE, [copy for copy in uploads if not self.apart(slot, copy)])
        if work.items:
            work.items.append(BarrierStep())
        for position, step in enumerate(segment.steps):
            waits = self._overwritten(slot, step)
            if position in early:
                fetched = [piece for copy in early[position] for piece in self.cut(copy)]
                waits.append([self._lane(Work(slot, FETCH, [piece])) for piece in fetched][-1])
            items: list[Item] = []
            if isinstance(step, TransferStep):
                items, sent = self._transfer(slot, number, step)
                waits += sent
            else:
                items.append(step)
            if waits and work.computes:  # what came before need not wait
                self._kernels(work, needed, slot, number)
                work, needed = Work(slot, COMPUTE), []
            needed += waits
            work.items += items
            self.seen[slot].update(named(step))
            if copies := cuts.get(position):
                self._kernels(work, needed, slot, number)
                self._send(copies, work)
                work, needed = Work(slot, COMPUTE), []
        if len(late) < len(downloads):
            work.items += [BarrierStep(), *(copy for copy in downloads if copy not in late)]
        self._kernels(work, needed, slot, number)
        self._send(cuts.get(len(segment.steps), []), work)

    def _kernels(self, work: Work, needed: Sequence[Work], slot: int, number: int) -> None:
        work.after += needed
        self.end[slot, number] = self._lane(work)

    def _lane(self, work: Work) -> Work:
        """Put a batch at the end of its lane."""
        before = self.last[work.slot][work.lane]
        if before is not None:
            work.after.append(before)
        self.last[work.slot][work.lane] = work
        self.work[work.slot].append(work)
        self.moved |= {
            item: work for item in work.items if isinstance(item, CopyPlan) and work.lane != COMPUTE
        }
        return work

    def _transfer(self, slot: int, number: int, step: TransferStep) -> tuple[list[Item], list[Work]]:
        """What a step adds to its segment's work, and what the segment waits for from there on."""
        key = step.source, step.target
        copy, send = self.layout.transfers[key], self.layout.sends.get(key)
        sends = [self.moved[send]] if send in self.moved else []
        if copy is None:
            return [], sends
        if copy.beside is None or not self.apart(slot, copy):
            return [BarrierStep(), copy, BarrierStep()], sends
        beside = copy.beside
        # The target's memory is free when the segment may run beside which it is filled.
        before = list(self.plan.devices[slot].segments[beside].wait)
        before += [(slot, beside - 1)] if beside else []
        before += [copy.made] if copy.made is not None and not sends else []
        after = [self.end[place] for place in dict.fromkeys(before)]
        return [], [self._lane(Work(slot, FETCH, [copy], after + sends))]

    def _send(self, copies: Sequence[CopyPlan], work: Work) -> None:
        for copy in copies:  # one by one: whoever waits for the first need not wait for the others
            self._lane(Work(work.slot, SEND, [copy], [work]))
            self.reading[work.slot].append(copy)

    def _overwritten(self, slot: int, step: Step) -> list[Work]:
        """The copies apart that have to end before a step, which writes what they read."""
        if not self.reading[slot]:
            return []
        values = written(step, self.seen[slot])
        stores = [self.layout.of_value[value] for value in values if value in self.layout.of_value]
        found = [copy for copy in self.reading[slot] if copy.source in stores]
        self.reading[slot] = [copy for copy in self.reading[slot] if copy not in found]
        return [self.moved[copy] for copy in found]

    def _first_uses(self, steps: Sequence[Step], copies: Sequence[CopyPlan]) -> dict[int, list[CopyPlan]]:
        """Copies by the position of the first step that uses what they bring."""
        found: dict[int, list[CopyPlan]] = {}
        for copy in copies:
            uses = (
                position
                for position, step in enumerate(steps)
                if any(self.layout.of_value.get(value) is copy.target for value in named(step))
            )
            found.setdefault(next(uses), []).append(copy)
        return dict(sorted(found.items()))

    def _cuts(
        self, slot: int, steps: Sequence[Step], copies: Sequence[CopyPlan]
    ) -> dict[int, list[CopyPlan]]:
        """Behind which step copies may start, by its position; those for the end have that of no step."""
        cuts: dict[int, list[CopyPlan]] = {}
        kernels = [p for p, step in enumerate(steps) if isinstance(step, DispatchStep)]
        for copy in copies:
            seen, made = set(self.seen[slot]), -1
            for position, step in enumerate(steps):
                stores = [self.layout.of_value.get(value) for value in written(step, seen)]
                made = position if copy.source in stores else made
                seen.update(named(step))
            at_end = not kernels or made >= kernels[-1] or made < 0
            cuts.setdefault(len(steps) if at_end else made, []).append(copy)
        return cuts


def _without_empty(own: Sequence[Work]) -> list[Work]:
    for work in own:
        work.after = _full(work.after)
    return [work for work in own if not work.empty]


def _full(after: Iterable[Work]) -> list[Work]:
    """Batches with, in place of empty ones, what those wait for."""
    found: dict[Work, None] = {}
    pending = list(after)[::-1]
    seen: set[Work] = set()
    while pending:
        work = pending.pop()
        if work in seen:
            continue
        seen.add(work)
        if work.empty:
            pending += work.after
        else:
            found[work] = None
    return list(found)
