"""Recorded submissions, and the order in which the slots of a call receive theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard.hal import Buffer, CommandBuffer, ProfileRow
from mansard.plan.stores import Store
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.execution.submission import COMPUTE
from mansard.runtime.memory.output_pool import OutputBlock
from mansard.runtime.memory.staged_upload import SubmissionId, UploadPiece

MAX_BLOCK_RECORDINGS = 4
"""Recordings kept of a copy to output blocks: while a caller holds one result, two blocks alternate."""


class OutputBlockCopy(CommandBuffer):
    """A copy to an output block. Calls use different blocks, and each block has a recording of its own.

    Profiles and sizes are those of the recording used last.
    """

    def __init__(self, store: Store, record: Callable[[Buffer], CommandBuffer]) -> None:
        self.store = store
        self._record = record
        self._recorded: dict[int, CommandBuffer] = {}
        """By the number of the block, the most recently used last."""

    def to(self, block: OutputBlock, slot: int) -> CommandBuffer:
        """The commands that copy to a block, on the device of a slot that has imported it."""
        commands = self._recorded.pop(block.number, None) or self._record(block.buffers[slot])
        self._recorded[block.number] = commands
        if len(self._recorded) > MAX_BLOCK_RECORDINGS:
            self._recorded.pop(next(iter(self._recorded))).close()
        return commands

    @property
    def latest(self) -> CommandBuffer | None:
        """The recording used last."""
        return self._recorded[next(reversed(self._recorded))] if self._recorded else None

    def profile(self) -> Sequence[ProfileRow]:
        """See `CommandBuffer.profile`."""
        return () if self.latest is None else self.latest.profile()

    def close(self) -> None:
        """See `CommandBuffer.close`."""
        for commands in self._recorded.values():
            commands.close()
        self._recorded = {}


@dataclass(frozen=True)
class RecordedSubmission:
    """Recorded commands, the submissions they wait for, and the binding slots they use.

    Submissions of one ``lane`` (`mansard.runtime.execution.submission`) of a slot end in order; those of
    different lanes in any order.
    """

    commands: CommandBuffer
    wait: tuple[SubmissionId, ...]
    arguments: tuple[int, ...]
    lane: int = COMPUTE
    upload: UploadPiece | None = None
    """What the host fills before it runs."""


def submission_order(
    slots: Sequence[BoundSlot], submissions: Sequence[Sequence[RecordedSubmission]]
) -> list[int]:
    """The order in which slots receive their submissions.

    Slots that run on the host's cores come last, since their threads may take the submitting thread's core;
    they come first where all others wait for them, and so could not begin in the meantime.
    """
    on_host = [slot.device.capabilities.host_threads for slot in slots]
    others = [each for local, host in zip(submissions, on_host, strict=True) if not host for each in local]
    others_begin = any(not submission.wait for submission in others)
    return sorted(range(len(slots)), key=lambda slot: on_host[slot] == others_begin)
