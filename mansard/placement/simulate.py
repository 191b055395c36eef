"""The predicted run of a placement: a simulation of all queues from the devices' profiles.

Every device has one queue that runs its dispatches in the model's order, as the runtime does; a dispatch
starts when its queue is free and its inputs are available. A value of another device is available after the
handoff and, where one is needed, a copy in the reader's queue. The host has no queue: inputs are available
there when the call starts, and the call ends when the last output has arrived. Devices on the same cores (a
GPU in software beside the CPU) share a queue. A queue does other things during a handoff, so it is no busy
time of the reader, but a load where many calls are in flight (`PlacementProblem.handoff_load`). Programs
that take turns in a device's memory are loaded one after another beside all that, each as soon as there is
room (`PlacementProblem.program_loads`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.placement.problem import HOST, PlacementProblem


@dataclass(frozen=True)
class Span:
    """An interval on a device, in seconds: a dispatch, or the copy of an edge's value."""

    device: int
    start: float
    end: float
    dispatch: int | None
    edge: int | None
    bytes: int = 0


@dataclass(frozen=True)
class SimulatedRun:
    """One call, from the first dispatch or copy to the last result."""

    seconds: float
    busy: tuple[float, ...]
    """Seconds that every device works; copies are the work of `PlacementProblem.copying_device`."""
    load: tuple[float, ...]
    """Seconds of work and handoffs of every device, which limit throughput. Copies count for the reader."""
    spans: tuple[Span, ...]
    program_loads: tuple[Span, ...] = ()
    """The loads of programs, by the dispatches that wait for them."""

    @property
    def loaded_bytes(self) -> int:
        """Bytes of all programs that are loaded."""
        return sum(span.bytes for span in self.program_loads)

    @property
    def copied_bytes(self) -> int:
        """Bytes of all copies."""
        return sum(s.bytes for s in self.spans if s.dispatch is None)


def simulate(problem: PlacementProblem, labels: Sequence[int], *, lockstep: bool = False) -> SimulatedRun:
    """Simulate a placement; ``labels`` are device numbers by dispatch.

    With ``lockstep`` only one device works at a time, as in runtimes without overlap.
    """
    free = [0.0] * len(problem.profiles)
    end = [0.0] * len(labels)
    arrived: dict[tuple[int, int], float] = {}
    spans: list[Span] = []
    load = [0.0] * len(problem.profiles)
    waited: dict[tuple[int, int], int] = {}  # (source, target): newest dispatch that was waited for
    load_of = {each.dispatch: each for each in problem.program_loads}
    loaded = [0.0] * len(problem.profiles)
    program_loads: list[Span] = []

    def transfer(number: int, device: int) -> float:
        """When a value is available on a device."""
        edge = problem.edges[number]
        source = HOST if edge.producer == HOST else labels[edge.producer]
        produced = 0.0 if edge.producer == HOST else end[edge.producer]
        if source == device:
            return produced
        if (number, device) not in arrived:
            handoff, copy = problem.transfer_delay(edge.bytes, source, device)
            reader = source if device == HOST else device
            queue = problem.queues[reader]
            # To the host the handoff follows the copy.
            before, after = (0.0, handoff) if device == HOST else (handoff, 0.0)
            start = max(free[queue], produced + before)
            if lockstep:
                start = max(start, *free)
            if copy:
                size = edge.bytes * problem.copy_count(source, device)
                copying = problem.copying_device(source, device)
                spans.append(Span(copying, start, start + copy, None, number, size))
                free[queue] = start + copy
                load[reader] += copy
                arrived[number, device] = start + copy + after
            else:
                arrived[number, device] = produced + handoff
        return arrived[number, device]

    for n, device in enumerate(labels):
        for producer in problem.producers[n]:
            source = labels[producer]
            if source != device and producer > waited.get((source, device), -1):
                load[device] += problem.handoff_load(source, device)
                waited[source, device] = producer
        ready = max((transfer(number, device) for number in problem.input_edges[n]), default=0.0)
        if program := load_of.get(n):
            begin = max(loaded[device], 0.0 if program.after is None else end[program.after])
            begin = max(begin, *free) if lockstep else begin
            loaded[device] = begin + program.seconds
            program_loads.append(Span(device, begin, loaded[device], n, None, program.bytes))
            ready = max(ready, loaded[device])
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
            last = max(last, transfer(number, HOST))
    busy = [0.0] * len(problem.profiles)
    for span in spans:
        busy[span.device] += span.end - span.start
    return SimulatedRun(last, tuple(busy), tuple(load), tuple(spans), tuple(program_loads))
