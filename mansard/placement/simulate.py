"""What a placement gives: the run of all queues, predicted from the profiles.

Every device has one queue that runs its dispatches in the model's order, as the runtime does; a dispatch
starts when its queue is free and its inputs are there. A value another device made arrives after the
handoff, and a copy, where one is needed, takes its time in the reader's queue. The caller is a place
without a queue: inputs leave it when the call begins, the call ends when the last output has arrived there.
Devices that share cores (a GPU in software beside the CPU) share a queue. During a handoff a queue does other
things: it is no work of the reader's, but counts as its load where calls in flight together are to be many
(`PlacementProblem.handoff_load`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.placement.problem import HOST, PlacementProblem


@dataclass(frozen=True)
class Span:
    """Seconds from start to end on a device: of a dispatch, or of the copy of a move's value."""

    device: int
    start: float
    end: float
    dispatch: int | None
    edge: int | None
    bytes: int = 0


@dataclass(frozen=True)
class SimulatedRun:
    """One call from its first step to the last result."""

    seconds: float
    busy: tuple[float, ...]
    """Seconds every device works; copies are the work of `PlacementProblem.copying_device`."""
    load: tuple[float, ...]
    """Seconds every device works or is handed something over: what limits calls in flight together. Copies
    count for who reads."""
    spans: tuple[Span, ...]

    @property
    def copied_bytes(self) -> int:
        """Bytes of all copies."""
        return sum(s.bytes for s in self.spans if s.dispatch is None)


def simulate(problem: PlacementProblem, labels: Sequence[int], *, lockstep: bool = False) -> SimulatedRun:
    """Run a placement against the profiles; ``labels`` are device numbers by dispatch.

    ``lockstep`` runs one thing at a time on all devices together, as runtimes without overlap do.
    """
    free = [0.0] * len(problem.profiles)
    end = [0.0] * len(labels)
    arrived: dict[tuple[int, int], float] = {}
    spans: list[Span] = []
    load = [0.0] * len(problem.profiles)
    waited: dict[tuple[int, int], int] = {}  # (source, target): newest dispatch that was waited for

    def bring(number: int, device: int) -> float:
        edge = problem.edges[number]
        source = HOST if edge.producer == HOST else labels[edge.producer]
        made = 0.0 if edge.producer == HOST else end[edge.producer]
        if source == device:
            return made
        if (number, device) not in arrived:
            handoff, copy = problem.transfer_delay(edge.bytes, source, device)
            reader = source if device == HOST else device
            queue = problem.queues[reader]
            # To the caller the handoff comes behind the copy.
            before, behind = (0.0, handoff) if device == HOST else (handoff, 0.0)
            start = max(free[queue], made + before)
            if lockstep:
                start = max(start, *free)
            if copy:
                size = edge.bytes * problem.copy_count(source, device)
                spans.append(
                    Span(problem.copying_device(source, device), start, start + copy, None, number, size)
                )
                free[queue] = start + copy
                load[reader] += copy
                arrived[number, device] = start + copy + behind
            else:
                arrived[number, device] = made + handoff
        return arrived[number, device]

    for n, device in enumerate(labels):
        for producer in problem.producers[n]:
            source = labels[producer]
            if source != device and producer > waited.get((source, device), -1):
                load[device] += problem.handoff_load(source, device)
                waited[source, device] = producer
        ready = max((bring(number, device) for number in problem.input_edges[n]), default=0.0)
        queue = problem.queues[device]
        start = max(ready, free[queue])
        if lockstep:
            start = max(start, *free)
        end[n] = free[queue] = start + problem.times[n][device]
        load[device] += problem.load_times[n][device]
        spans.append(Span(device, start, end[n], n, None))
    last = max(end, default=0.0)
    for number, edge in enumerate(problem.edges):
        if HOST in edge.consumers:
            last = max(last, bring(number, HOST))
    busy = [0.0] * len(problem.profiles)
    for span in spans:
        busy[span.device] += span.end - span.start
    return SimulatedRun(last, tuple(busy), tuple(load), tuple(spans))
