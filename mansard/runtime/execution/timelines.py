"""The timelines of a context: the points that the submissions of each call signal."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.errors import MansardError
from mansard.hal import Point, Semaphore
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.execution.recorded import RecordedSubmission


class CallTimelines:
    """Numbers the points of consecutive calls, one call at a time.

    The lanes of a slot end their submissions in any order, so each lane has a timeline.
    """

    def __init__(
        self, slots: Sequence[BoundSlot], submissions: Sequence[Sequence[RecordedSubmission]]
    ) -> None:
        self._submissions = submissions
        lanes = 1 + max((each.lane for local in submissions for each in local), default=0)
        # Compute lanes come first: their index is the slot's number.
        self._semaphores = [
            Semaphore(f"{slot.name} {lane}")
            for lane in ("timeline", "fetches", "sends", "loads")[:lanes]
            for slot in slots
        ]
        self._bases = [0] * len(slots)
        """By slot, the value before the first point of the current call."""
        self._next_bases = [0] * len(slots)
        lasts = [{each.lane: n for n, each in enumerate(local)} for local in submissions]
        self._lasts = [(slot, n) for slot, last in enumerate(lasts) for n in last.values()]
        self._priority = 0
        self.finals: list[Point] = []
        """The points at which the current call has ended: the last of every lane."""

    def compute_semaphore(self, slot: int) -> Semaphore:
        """The timeline of a slot's kernels."""
        return self._semaphores[slot]

    def first_value(self, slot: int) -> int:
        """The value of the slot's first point in the current call."""
        return self._bases[slot] + 1

    def point(self, slot: int, number: int) -> Point:
        """The point that a submission of the current call signals."""
        lane = self._submissions[slot][number].lane
        return Point(self._semaphores[lane * len(self._submissions) + slot], self._bases[slot] + number + 1)

    def begin_call(self) -> None:
        """Number the points of a new call, before any of it is submitted: it may be interrupted any time."""
        self._bases, self._next_bases = (
            self._next_bases,
            [base + len(local) for base, local in zip(self._next_bases, self._submissions, strict=True)],
        )
        self.finals = [self.point(slot, number) for slot, number in self._lasts]

    @property
    def priority(self) -> int:
        """The priority of later submissions; the highest runs first (`Semaphore.priority`)."""
        return self._priority

    @priority.setter
    def priority(self, priority: int) -> None:
        self._priority = priority
        for semaphore in self._semaphores:
            semaphore.priority = priority

    def fail_unsubmitted(self, slots: Sequence[int], error: MansardError) -> None:
        """Fail with ``error`` the points of those slots that no submission has promised to signal.

        What a device has received of a lane all the same runs on behind the failed points: its last point is
        one of `finals` then.
        """
        for slot in slots:
            received: dict[int, Point] = {}
            for number, submission in enumerate(self._submissions[slot]):
                point = self.point(slot, number)
                if point.value > point.semaphore.promised:
                    point.semaphore.fail(point.value, error)
                else:
                    received[submission.lane] = point
            self.finals = [*self.finals, *received.values()]

    def withdraw(self, error: MansardError) -> None:
        """Fail with ``error`` the submissions that devices have not begun (`Semaphore.withdraw`)."""
        for semaphore in self._semaphores:
            semaphore.withdraw(error)

    def errors(self) -> list[BaseException]:
        """The errors of the final points of the completed call."""
        return [error for point in self.finals if (error := point.error()) is not None]

    def renew(self) -> None:
        """Use new timelines after failures: a timeline keeps the errors of its points."""
        self._semaphores = [Semaphore(semaphore.label) for semaphore in self._semaphores]
        self._next_bases = [0] * len(self._next_bases)
        self._priority = 0
