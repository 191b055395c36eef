"""Groups the commands of a call into submissions, with the submissions that each waits for.

Every device slot has up to four lanes, in each of which submissions run in order: `COMPUTE` for kernels and
small copies, and on the device's transfer queue `FETCH` for the copies before its kernels and `SEND` for
those after them; `LOAD` brings in programs of the device's area. The kernels of a segment wait only for its
fetches; a fetch waits for the producer of what it copies, and for the segment that it may overlap with (from
whose start on its target is free); a send waits for the kernel that produces what it copies. A load waits for
the kernels before it in the plan, in whose memory the program will be, and dispatches of the program wait for
the load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mansard.errors import ArtifactError
from mansard.plan.plan import BarrierStep, DispatchStep, EvictStep, LoadStep, Plan, Step, TransferStep
from mansard.plan.segments import SegmentId, named, written
from mansard.plan.stores import Layout, StoreCopy

COMPUTE, FETCH, SEND, LOAD = range(4)
LANES = 4


@dataclass(frozen=True)
class CopyPiece:
    """A part of an upload: ``size`` bytes from byte ``begin`` on."""

    copy: StoreCopy
    begin: int
    size: int


Item = DispatchStep | BarrierStep | StoreCopy | CopyPiece | LoadStep | EvictStep
SplitUpload = Callable[[StoreCopy], Sequence[StoreCopy | CopyPiece]]
"""How an upload on the transfer queue is split."""
IsSeparate = Callable[[int, StoreCopy], bool]
"""Whether a slot's copy is a submission of its own, for the transfer queue."""


@dataclass(eq=False)
class SubmissionSpec:
    """The contents of one submission of a slot, before it is recorded."""

    slot: int
    lane: int
    items: list[Item] = field(default_factory=list)
    after: list[SubmissionSpec] = field(default_factory=list)
    """The submissions it waits for."""

    @property
    def computes(self) -> bool:
        """Whether it contains a kernel."""
        return any(isinstance(item, DispatchStep) for item in self.items)

    @property
    def empty(self) -> bool:
        """Whether it contains nothing to run."""
        return all(isinstance(item, BarrierStep) for item in self.items)


def unsplit(copy: StoreCopy) -> list[StoreCopy]:
    """An upload in one piece."""
    return [copy]


def plan_submissions(
    plan: Plan, layout: Layout, is_separate: IsSeparate, split: SplitUpload = unsplit
) -> list[list[SubmissionSpec]]:
    """The submissions of every slot, each after those of its slot that it waits for.

    Separate uploads are ``split`` into submissions of one piece each. Segments without commands have no
    submission; what waits for one waits for its predecessors instead.
    """
    return _SubmissionPlanner(plan, layout, is_separate, split).run()


class _SubmissionPlanner:
    def __init__(self, plan: Plan, layout: Layout, is_separate: IsSeparate, split: SplitUpload) -> None:
        self.plan, self.layout, self.is_separate, self.split = plan, layout, is_separate, split
        self.submissions: list[list[SubmissionSpec]] = [[] for _ in plan.devices]
        self.last: list[list[SubmissionSpec | None]] = [[None] * LANES for _ in plan.devices]
        """By slot and lane."""
        self.end: dict[SegmentId, SubmissionSpec] = {}
        """The last submission of a segment's kernels."""
        self.copied_by: dict[StoreCopy, SubmissionSpec] = {}
        """The submissions of separate copies."""
        self.reading: list[list[StoreCopy]] = [[] for _ in plan.devices]
        """Separate copies that may still read what the slot's kernels have written."""
        self.seen: list[set[int]] = [set() for _ in plan.devices]
        self.loading: dict[tuple[int, int], SubmissionSpec] = {}
        """By slot and executable, the load that no dispatch has waited for."""

    def run(self) -> list[list[SubmissionSpec]]:
        reached = [0] * len(self.plan.devices)
        while any(self._advance(slot, reached) for slot in range(len(reached))):
            pass
        if any(n < len(d.segments) for n, d in zip(reached, self.plan.devices, strict=True)):
            raise ArtifactError("segments of the plan wait for each other in a circle")
        return [_without_empty(submissions) for submissions in self.submissions]

    def _advance(self, slot: int, reached: list[int]) -> bool:
        """Plan a slot's next segments, as far as those that they wait for are planned."""
        begin, segments = reached[slot], self.plan.devices[slot].segments
        while reached[slot] < len(segments):
            if any(s != slot and n >= reached[s] for s, n in segments[reached[slot]].wait):
                break
            self._segment(slot, reached[slot])
            reached[slot] += 1
        return reached[slot] > begin

    def _segment(self, slot: int, number: int) -> None:
        segment = self.plan.devices[slot].segments[number]
        uploads = self.layout.copies_before.get((slot, number), [])
        downloads = self.layout.copies_after.get((slot, number), [])
        fetches = self._by_first_use(
            segment.steps, [copy for copy in uploads if self.is_separate(slot, copy)]
        )
        sends = [copy for copy in downloads if self.is_separate(slot, copy)]
        cuts = self._by_producer(slot, segment.steps, sends)
        needed = [self.end[place] for place in segment.wait if place[0] != slot]
        current = SubmissionSpec(
            slot, COMPUTE, [copy for copy in uploads if not self.is_separate(slot, copy)]
        )
        if current.items:
            current.items.append(BarrierStep())
        for position, step in enumerate(segment.steps):
            if isinstance(step, LoadStep):
                if current.items:  # the load waits for what is before it, and for nothing else
                    self._append_kernels(current, needed, slot, number)
                    current, needed = SubmissionSpec(slot, COMPUTE), []
                self._load(slot, step)
                continue
            waits = self._readers_overwritten(slot, step)
            if isinstance(step, DispatchStep) and (slot, step.executable) in self.loading:
                waits.append(self.loading.pop((slot, step.executable)))
            if position in fetches:
                pieces = [piece for copy in fetches[position] for piece in self.split(copy)]
                waits.append([self._append(SubmissionSpec(slot, FETCH, [piece])) for piece in pieces][-1])
            items: list[Item] = []
            if isinstance(step, TransferStep):
                items, transfer_waits = self._transfer(slot, number, step)
                waits += transfer_waits
            else:
                items.append(step)
            if waits and current.computes:  # earlier kernels need not wait
                self._append_kernels(current, needed, slot, number)
                current, needed = SubmissionSpec(slot, COMPUTE), []
            needed += waits
            current.items += items
            self.seen[slot].update(named(step))
            if copies := cuts.get(position):
                self._append_kernels(current, needed, slot, number)
                self._send(copies, current)
                current, needed = SubmissionSpec(slot, COMPUTE), []
        if len(sends) < len(downloads):
            current.items += [BarrierStep(), *(copy for copy in downloads if copy not in sends)]
        self._append_kernels(current, needed, slot, number)
        self._send(cuts.get(len(segment.steps), []), current)

    def _append_kernels(
        self, submission: SubmissionSpec, needed: Sequence[SubmissionSpec], slot: int, number: int
    ) -> None:
        submission.after += needed
        self.end[slot, number] = self._append(submission)

    def _append(self, submission: SubmissionSpec) -> SubmissionSpec:
        """Put a submission at the end of its lane."""
        slot, lane = submission.slot, submission.lane
        previous = self.last[slot][lane]
        if previous is not None:
            submission.after.append(previous)
        self.last[slot][lane] = submission
        self.submissions[slot].append(submission)
        if lane != COMPUTE:
            copies = (item for item in submission.items if isinstance(item, StoreCopy))
            self.copied_by.update(dict.fromkeys(copies, submission))
        return submission

    def _transfer(
        self, slot: int, number: int, step: TransferStep
    ) -> tuple[list[Item], list[SubmissionSpec]]:
        """What a step adds to its segment's submission, and what the segment waits for from there on."""
        key = step.source, step.target
        copy, send = self.layout.transfers[key], self.layout.sends.get(key)
        sends = [self.copied_by[send]] if send in self.copied_by else []
        if copy is None:
            return [], sends
        if copy.earliest_segment is None or not self.is_separate(slot, copy):
            return [BarrierStep(), copy, BarrierStep()], sends
        overlapped = copy.earliest_segment
        # The target's memory is free as soon as the segment may run that the copy overlaps with.
        before = list(self.plan.devices[slot].segments[overlapped].wait)
        before += [(slot, overlapped - 1)] if overlapped else []
        before += [copy.producer] if copy.producer is not None and not sends else []
        after = [self.end[place] for place in dict.fromkeys(before)]
        return [], [self._append(SubmissionSpec(slot, FETCH, [copy], after + sends))]

    def _load(self, slot: int, step: LoadStep) -> None:
        kernels = self.last[slot][COMPUTE]
        after = [] if kernels is None else [kernels]
        self.loading[slot, step.executable] = self._append(SubmissionSpec(slot, LOAD, [step], after))

    def _send(self, copies: Sequence[StoreCopy], kernels: SubmissionSpec) -> None:
        for copy in copies:  # one submission each: what waits for the first need not wait for the others
            self._append(SubmissionSpec(kernels.slot, SEND, [copy], [kernels]))
            self.reading[kernels.slot].append(copy)

    def _readers_overwritten(self, slot: int, step: Step) -> list[SubmissionSpec]:
        """The separate copies that must end before a step, which writes what they read."""
        if not self.reading[slot]:
            return []
        values = written(step, self.seen[slot])
        stores = [self.layout.of_value[value] for value in values if value in self.layout.of_value]
        overwritten = [copy for copy in self.reading[slot] if copy.source in stores]
        self.reading[slot] = [copy for copy in self.reading[slot] if copy not in overwritten]
        return [self.copied_by[copy] for copy in overwritten]

    def _by_first_use(self, steps: Sequence[Step], copies: Sequence[StoreCopy]) -> dict[int, list[StoreCopy]]:
        """Uploads by the position of the first step that uses what they copy."""
        first_uses: dict[int, list[StoreCopy]] = {}
        for copy in copies:
            uses = (
                position
                for position, step in enumerate(steps)
                if any(self.layout.of_value.get(value) is copy.target for value in named(step))
            )
            first_uses.setdefault(next(uses), []).append(copy)
        return dict(sorted(first_uses.items()))

    def _by_producer(
        self, slot: int, steps: Sequence[Step], copies: Sequence[StoreCopy]
    ) -> dict[int, list[StoreCopy]]:
        """Downloads by the position of the step after which they may start; ``len(steps)`` at the end."""
        cuts: dict[int, list[StoreCopy]] = {}
        kernels = [p for p, step in enumerate(steps) if isinstance(step, DispatchStep)]
        for copy in copies:
            seen, producer = set(self.seen[slot]), -1
            for position, step in enumerate(steps):
                stores = [self.layout.of_value.get(value) for value in written(step, seen)]
                producer = position if copy.source in stores else producer
                seen.update(named(step))
            at_end = not kernels or producer >= kernels[-1] or producer < 0
            cuts.setdefault(len(steps) if at_end else producer, []).append(copy)
        return cuts


def _without_empty(submissions: Sequence[SubmissionSpec]) -> list[SubmissionSpec]:
    for submission in submissions:
        submission.after = _skip_empty(submission.after)
    return [submission for submission in submissions if not submission.empty]


def _skip_empty(after: Iterable[SubmissionSpec]) -> list[SubmissionSpec]:
    """Submissions in which empty ones are replaced by what those wait for."""
    nonempty: dict[SubmissionSpec, None] = {}
    pending = list(after)[::-1]
    seen: set[SubmissionSpec] = set()
    while pending:
        submission = pending.pop()
        if submission in seen:
            continue
        seen.add(submission)
        if submission.empty:
            pending += submission.after
        else:
            nonempty[submission] = None
    return list(nonempty)
