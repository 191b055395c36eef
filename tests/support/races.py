"""Finds submissions of a call that touch the same bytes though nothing orders them."""

from __future__ import annotations

from mansard.hal import BindingSlot, BufferRef, CopyCommand, DispatchCommand
from mansard.runtime.execution.context import Context
from mansard.runtime.execution.recorded import OutputBlockCopy
from support.fake_device import FakeBuffer, FakeCommands

SubmissionKey = tuple[int, int]
Access = tuple[object, int, int, bool]
"""An address space, the first byte, the byte behind the last, and whether they are written."""


def races(context: Context) -> list[str]:
    """Pairs of submissions that may run at the same time, of which one writes what the other uses."""
    recorded = {
        (s, n): submission
        for s, local in enumerate(context.submissions)
        for n, submission in enumerate(local)
    }
    lanes: dict[tuple[int, int], SubmissionKey] = {}
    before: dict[SubmissionKey, set[SubmissionKey]] = {}

    def behind(submission: SubmissionKey) -> set[SubmissionKey]:
        """Every submission that has ended when this one starts."""
        if submission not in before:
            before[submission] = set()
            waits = recorded[submission].wait
            before[submission] = set(waits).union(*(behind(wait) for wait in waits))
        return before[submission]

    conflicts = []
    used = {submission: _accesses(submission[0], each.commands) for submission, each in recorded.items()}
    for (slot, number), each in recorded.items():  # a timeline's values must rise
        previous = lanes.get((slot, each.lane))
        if previous is not None and previous not in behind((slot, number)):
            conflicts.append(f"lane {each.lane} of slot {slot}: {number} does not wait for {previous[1]}")
        lanes[slot, each.lane] = (slot, number)
    ids = list(recorded)
    for position, one in enumerate(ids):
        for other in ids[position + 1 :]:
            if one in behind(other) or other in behind(one):
                continue
            conflicts += [
                f"{one} and {other} at {a[0]} {max(a[1], b[1])}"
                for a in used[one]
                for b in used[other]
                if a[0] == b[0] and a[1] < b[2] and b[1] < a[2] and (a[3] or b[3])
            ]
    return conflicts


def _accesses(slot: int, commands: object) -> list[Access]:
    if isinstance(commands, OutputBlockCopy):  # the recording of the last call
        commands = commands.latest
    assert isinstance(commands, FakeCommands)
    accesses: list[Access] = []
    for command in commands.commands:
        if isinstance(command, DispatchCommand):
            size = 4 * command.params[0]
            *reads, write = command.bindings
            accesses += [_access(slot, ref, size, False) for ref in reads]
            accesses.append(_access(slot, write, size, True))
        elif isinstance(command, CopyCommand):
            accesses.append(_access(slot, command.source, command.size, False))
            accesses.append(_access(slot, command.target, command.size, True))
    return accesses


def _access(slot: int, ref: BufferRef, size: int, write: bool) -> Access:
    if isinstance(ref.buffer, BindingSlot):
        return (slot, ref.buffer.index), ref.offset, ref.offset + size, write
    assert isinstance(ref.buffer, FakeBuffer)
    start = ref.buffer.address + ref.offset
    return "memory", start, start + size, write
