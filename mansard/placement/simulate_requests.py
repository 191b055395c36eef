"""The predicted run of several requests in flight: `mansard.placement.simulate` for many calls.

Every request has the same submissions, the dispatches that a device runs without waiting for another one.
A queue takes the submissions that are ready in the order of their requests, as the runtime's queues do
(`mansard.hal.queue`), and completes each before the next: one that waits holds back no other. A handoff
between devices occupies the queue of the reader (`PlacementProblem.handoff_load`), but is no work.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from mansard.placement.problem import HOST, PlacementProblem


@dataclass(frozen=True)
class RequestSpan:
    """An interval of work on a device, in seconds: a request's dispatch, or its copy of an edge's value."""

    request: int
    device: int
    start: float
    end: float
    dispatch: int | None
    edge: int | None = None


@dataclass(frozen=True)
class SimulatedRequests:
    """Requests from the submission of the first to the completion of the last."""

    seconds: float
    request_seconds: tuple[float, ...]
    """Every request's time from submission to completion."""
    busy: tuple[float, ...]
    """Seconds that every device works for all requests together: dispatches, copies of what it reads, copies
    to the host."""
    queue_busy: tuple[float, ...]
    """The same by queue: devices that share one do not work at once."""
    critical_path: float
    """Seconds of one request's longest chain of dispatches, each dependent on the one before."""
    spans: tuple[RequestSpan, ...]

    @property
    def bound(self) -> float:
        """The shortest possible time of these dispatches and copies on their devices: the critical path, or
        the work of the busiest queue."""
        return max(self.critical_path, *self.queue_busy)

    @property
    def bound_by(self) -> int | None:
        """The device that determines the bound (the first on its queue), None for the critical path."""
        busiest = max(self.queue_busy)
        return self.queue_busy.index(busiest) if busiest >= self.critical_path else None

    @property
    def efficiency(self) -> float:
        """Overlap efficiency: the bound as a fraction of the time."""
        return self.bound / self.seconds if self.seconds else 0.0


def simulate_requests(
    problem: PlacementProblem, labels: Sequence[int], requests: int, in_flight: int
) -> SimulatedRequests:
    """Simulate ``requests`` (1 or more) equal calls, at most ``in_flight`` (1 or more) of them at a time.

    ``labels`` are device numbers by dispatch. Dispatches take the time that they occupy a device for where
    several calls run (`PlacementProblem.load_times`).
    """
    times = problem.load_times if min(requests, in_flight) > 1 else problem.times
    seconds = [row[device] for row, device in zip(times, labels, strict=True)]
    return _Run(problem, labels, seconds).run(requests, in_flight)


_READY, _FREE, _ENDED = range(3)
"""Events: a submission may run, a queue is free, a request has ended."""


@dataclass(eq=False)
class _Submission:
    """Dispatches of a request that a device runs in one go."""

    number: int
    device: int
    dispatches: list[int] = field(default_factory=list)
    waits: set[int] = field(default_factory=set)
    """The dispatches of other devices, and the last one of the submission before, that come first."""
    handoffs: list[int] = field(default_factory=list)
    """The devices waited for."""
    fetched: list[int] = field(default_factory=list)
    """Edges of other devices or the host that are read here."""
    sent: list[int] = field(default_factory=list)
    """Edges of results for the host."""


def _submissions(problem: PlacementProblem, labels: Sequence[int]) -> list[_Submission]:
    """The submissions of a request; one begins where a dispatch waits for another device."""
    submissions: list[_Submission] = []
    current: dict[int, _Submission] = {}
    waited: dict[tuple[int, int], int] = {}  # (source, target): newest dispatch that was waited for
    fetched: set[tuple[int, int]] = set()
    for n, device in enumerate(labels):
        new = {
            labels[p]: p
            for p in sorted(problem.producers[n])
            if labels[p] != device and p > waited.get((labels[p], device), -1)
        }
        if device not in current or new:
            before = current.get(device)
            current[device] = _Submission(len(submissions), device)
            current[device].waits |= {before.dispatches[-1]} if before else set()
            submissions.append(current[device])
        submission = current[device]
        submission.dispatches.append(n)
        submission.waits |= set(new.values())
        submission.handoffs += new
        waited |= {(source, device): producer for source, producer in new.items()}
        for number in problem.input_edges[n]:
            producer = problem.edges[number].producer
            if (producer == HOST or labels[producer] != device) and (number, device) not in fetched:
                fetched.add((number, device))
                submission.fetched.append(number)
    of = {n: submission for submission in submissions for n in submission.dispatches}
    for number, edge in enumerate(problem.edges):
        if HOST in edge.consumers and edge.producer != HOST:
            of[edge.producer].sent.append(number)
    return submissions


class _Run:
    """The state of one simulation: queues, and what has ended."""

    def __init__(self, problem: PlacementProblem, labels: Sequence[int], seconds: Sequence[float]) -> None:
        self.problem, self.labels, self.seconds = problem, labels, seconds
        self.submissions = submissions = _submissions(problem, labels)
        self.waiting_for: dict[int, list[_Submission]] = {}
        for submission in submissions:
            for dispatch in submission.waits:
                self.waiting_for.setdefault(dispatch, []).append(submission)
        self.loads = {load.dispatch: load for load in problem.program_loads}
        self.link_free = [0.0] * len(problem.profiles)
        self.ends: dict[tuple[int, int], float] = {}
        """When dispatches of requests have ended."""
        self.free = dict.fromkeys(problem.queues, 0.0)
        self.ready: dict[int, list[tuple[int, int]]] = {queue: [] for queue in problem.queues}
        self.missing: dict[tuple[int, int], int] = {}
        """By request and submission how many of its waits have no time yet."""
        self.ready_at: dict[tuple[int, int], float] = {}
        """The latest time of those that have one."""
        self.events: list[tuple[float, int, int, int]] = []
        """Time, kind, and the request and submission that it is about."""
        self.spans: list[RequestSpan] = []
        self.begun: list[float] = []
        self.finished: dict[int, float] = {}
        self.unfinished: dict[int, int] = {}

    def run(self, requests: int, in_flight: int) -> SimulatedRequests:
        """Simulate the requests from the submission of the first on."""
        for _ in range(min(requests, in_flight)):
            self._begin(0.0)
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] <= now:
                _, kind, request, number = heapq.heappop(self.events)
                if kind == _READY:
                    queue = self.problem.queues[self.submissions[number].device]
                    heapq.heappush(self.ready[queue], (request, number))
                elif kind == _ENDED and len(self.begun) < requests:
                    self._begin(now)
            for queue, ready in self.ready.items():
                if ready and self.free[queue] <= now:
                    self._start(*heapq.heappop(ready), queue, now)
        return self._result()

    def _begin(self, now: float) -> None:
        """Submit the next request."""
        request = len(self.begun)
        self.begun.append(now)
        self.unfinished[request] = len(self.submissions)
        self.finished[request] = now
        for submission in self.submissions:
            arrivals = [
                now + self.problem.transfer_delay(self.problem.edges[e].bytes, HOST, submission.device)[0]
                for e in submission.fetched
                if self.problem.edges[e].producer == HOST
            ]
            place = request, submission.number
            self.missing[place] = len(submission.waits)
            self.ready_at[place] = max([now, *arrivals])
            if not submission.waits:
                heapq.heappush(self.events, (self.ready_at[place], _READY, *place))

    def _ended(self, request: int, dispatch: int, end: float) -> None:
        """The time is known at which a dispatch ends: for those that wait for it."""
        for waiting in self.waiting_for.get(dispatch, ()):
            place = request, waiting.number
            self.missing[place] -= 1
            self.ready_at[place] = max(self.ready_at[place], end)
            if not self.missing[place]:
                heapq.heappush(self.events, (self.ready_at[place], _READY, *place))

    def _start(self, request: int, number: int, queue: int, now: float) -> None:
        """Run a submission: handoffs, copies to the device, dispatches, copies to the host."""
        problem, submission = self.problem, self.submissions[number]
        device, at = submission.device, now
        at += sum(problem.handoff_load(source, device) for source in submission.handoffs)
        for edge in submission.fetched:
            producer = problem.edges[edge].producer
            at = self._copy(request, edge, HOST if producer == HOST else self.labels[producer], device, at)
        for dispatch in submission.dispatches:
            at = max(at, self._loaded(request, device, dispatch))
            end = at + self.seconds[dispatch]
            self.ends[request, dispatch] = end
            self.spans.append(RequestSpan(request, device, at, end, dispatch))
            at = end
            self._ended(request, dispatch, at)
        arrived = at
        for edge in submission.sent:
            at = self._copy(request, edge, device, HOST, at)
            arrived = max(arrived, at + problem.transfer_delay(problem.edges[edge].bytes, device, HOST)[0])
        self.free[queue] = at
        heapq.heappush(self.events, (at, _FREE, request, number))
        self.finished[request] = max(self.finished[request], arrived)
        self.unfinished[request] -= 1
        if not self.unfinished[request]:
            heapq.heappush(self.events, (self.finished[request], _ENDED, request, number))

    def _loaded(self, request: int, device: int, dispatch: int) -> float:
        """The end of the load of a dispatch's program, if that takes turns: loads of all requests follow each
        other, each as soon as its request leaves room."""
        program = self.loads.get(dispatch)
        if program is None:
            return 0.0
        room = self.begun[request] if program.after is None else self.ends[request, program.after]
        self.link_free[device] = max(self.link_free[device], room) + program.seconds
        return self.link_free[device]

    def _copy(self, request: int, edge: int, source: int, target: int, at: float) -> float:
        """The end of a value's copy that begins at ``at``, which is no time where none is needed."""
        copy = self.problem.transfer_delay(self.problem.edges[edge].bytes, source, target)[1]
        if copy:
            reader = source if target == HOST else target  # it waits, also where another device copies
            self.spans.append(RequestSpan(request, reader, at, at + copy, None, edge))
        return at + copy

    def _result(self) -> SimulatedRequests:
        busy = [0.0] * len(self.problem.profiles)
        for span in self.spans:
            busy[span.device] += span.end - span.start
        queues = [0.0] * len(busy)
        for device, seconds in enumerate(busy):
            queues[self.problem.queues[device]] += seconds
        ends = [self.finished[request] for request in range(len(self.begun))]
        latencies = tuple(end - begin for begin, end in zip(self.begun, ends, strict=True))
        return SimulatedRequests(
            max(ends), latencies, tuple(busy), tuple(queues), self._critical_path, tuple(self.spans)
        )

    @functools.cached_property
    def _critical_path(self) -> float:
        ends: list[float] = []
        for n, seconds in enumerate(self.seconds):
            ends.append(seconds + max((ends[p] for p in self.problem.producers[n]), default=0.0))
        return max(ends, default=0.0)
