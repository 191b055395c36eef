"""The command stream: commands as 64-bit words, which the native core records in one call (record.c)."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.submission.bridge import (
    BARRIER,
    CALLS,
    COPY,
    DISPATCH,
    DISPATCH_IN_MEMORY,
    DISPATCH_WITH_SET,
    FILL,
    LABEL,
    LABEL_END,
    LAUNCH,
    TIMESTAMP,
    CallsStruct,
    RecordingStruct,
    library,
)

WORD = (1 << 64) - 1
"""The bits of a word: ``param & WORD`` is a signed parameter as a word."""

COMPUTE, TRANSFER = 1, 2
"""Kinds of work, as bits."""


def _by_kinds(compute: int, transfer: int) -> tuple[int, int, int, int]:
    """Masks by the kinds of work."""
    return 0, compute, transfer, compute | transfer


_STAGES = _by_kinds(vk.VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT, vk.VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT)
_WRITES = _by_kinds(vk.VK_ACCESS_2_SHADER_WRITE_BIT, vk.VK_ACCESS_2_TRANSFER_WRITE_BIT)
_ACCESSES = _by_kinds(
    vk.VK_ACCESS_2_SHADER_READ_BIT | vk.VK_ACCESS_2_SHADER_WRITE_BIT,
    vk.VK_ACCESS_2_TRANSFER_READ_BIT | vk.VK_ACCESS_2_TRANSFER_WRITE_BIT,
)
_EVERYTHING = vk.VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT
_TIMES = (_EVERYTHING, _STAGES[COMPUTE], _STAGES[TRANSFER], _EVERYTHING)
"""The stage whose end a timestamp waits for: Vulkan takes one, and all of them hold up the device longer."""
_BARRIER_WORDS = 5
_HOST = vk.VK_PIPELINE_STAGE_2_HOST_BIT
_HOST_ACCESSES = vk.VK_ACCESS_2_HOST_READ_BIT | vk.VK_ACCESS_2_HOST_WRITE_BIT


@dataclass
class CommandStream:
    """Commands to record, and what they need: timed rows, bytes of argument tables, descriptors.

    Barriers name only the stages and accesses of the work on both of their sides: of what was recorded
    since the barrier before, and of what comes up to the next. What is older is ordered by the chain of
    barriers, each of which waits for the work the one before held back.
    """

    kinds: int = COMPUTE | TRANSFER
    """The kinds of work that the queue can do."""
    profile: bool = False
    labelled: bool = False
    """Whether commands get labels, for validation layers and debuggers."""
    words: list[int] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    """Labels of the timed commands."""
    table_bytes: int = 0
    sets: int = 0
    descriptors: int = 0
    """Sets to take from a pool, and the descriptors in them."""
    _kinds: int = 0  # of the work since the last barrier
    _begun: int = 0  # of the command begun last
    _all: int = 0
    _open: int = -1  # where the last barrier is in the words

    def __post_init__(self) -> None:
        self.words += _barrier(_HOST, vk.VK_ACCESS_2_HOST_WRITE_BIT)

    def begin(self, label: str, kinds: int) -> None:
        """A command of some kinds of work starts: what is written until `end` belongs to it."""
        before = self._kinds or kinds
        self._kinds |= kinds
        self._begun = kinds
        if self.labelled:
            text = label.encode() + b"\0"
            text += bytes(-len(text) % 8)
            self.words.append(LABEL | len(text) // 8 << 8)
            self.words += memoryview(text).cast("Q").tolist()
        if self.profile:
            # A timestamp is taken when earlier commands have ended: the first one marks the end of what
            # came before, so that rows of commands that may overlap do not count time twice.
            self.words += (TIMESTAMP | 2 << 8, _TIMES[before], 2 * len(self.rows))

    def end(self, label: str) -> None:
        """The command begun last is complete."""
        if self.profile:
            self.words += (TIMESTAMP | 2 << 8, _TIMES[self._begun], 2 * len(self.rows) + 1)
            self.rows.append(label)
        if self.labelled:
            self.words.append(LABEL_END)

    def dispatch(
        self, pipeline: int, layout: int, grid: tuple[int, int, int], table: list[int], in_memory: bool
    ) -> None:
        """A dispatch with its argument table in push constants, or in memory behind an address there."""
        x, y, z = grid
        kind = DISPATCH_IN_MEMORY if in_memory else DISPATCH
        self.words += (kind | (4 + len(table)) << 8, pipeline, layout, x | y << 32, z, *table)
        if in_memory:
            self.table_bytes += -(-len(table) * 8 // 16) * 16

    def dispatch_with_set(
        self,
        pipeline: int,
        layout: int,
        set_layout: int,
        grid: tuple[int, int, int],
        buffers: list[tuple[int, int, int]],
        params: list[int],
    ) -> None:
        """A dispatch that takes its buffers (handle, offset, bytes) as descriptors: pushed, or in a set of
        ``set_layout`` from a pool."""
        x, y, z = grid
        flat = [word for buffer in buffers for word in buffer]
        count = 6 + len(flat) + len(params)
        self.words += (DISPATCH_WITH_SET | count << 8, pipeline, layout, x | y << 32, z, set_layout)
        self.words += (len(buffers), *flat, *params)
        if set_layout:
            self.sets += 1
            self.descriptors += len(buffers)

    def launch(self, function: int, grid: tuple[int, int, int], threads: int, table: list[int]) -> None:
        """A PTX kernel in blocks of ``threads``, with its argument table by value."""
        x, y, z = grid
        self.words += (LAUNCH | (3 + len(table)) << 8, function, x | y << 32, z | threads << 32, *table)

    def copy(self, source: int, target: int, source_offset: int, target_offset: int, size: int) -> None:
        """vkCmdCopyBuffer of one region."""
        self.words += (COPY | 5 << 8, source, target, source_offset, target_offset, size)

    def fill(self, target: int, offset: int, size: int, pattern: int) -> None:
        """vkCmdFillBuffer."""
        self.words += (FILL | 4 << 8, target, offset, size, pattern)

    def barrier(self) -> None:
        """Order what comes after what was recorded; nothing when that is ordered already."""
        if not self._kinds:
            return
        self._close()
        self._open = len(self.words)
        kinds, self._kinds = self._kinds, 0
        self.words += _barrier(_STAGES[kinds], _WRITES[kinds])

    def finish(self) -> list[int]:
        """All words; nothing may be added afterwards."""
        self._close()
        kinds = self._all
        if not kinds:
            return self.words[_BARRIER_WORDS:]
        if self._open >= 0 and len(self.words) == self._open + _BARRIER_WORDS:
            del self.words[self._open :]  # nothing comes after the last barrier
        self._complete(0, kinds)
        self.words += _barrier(_STAGES[kinds], _WRITES[kinds], _HOST, _HOST_ACCESSES)
        return self.words

    def _close(self) -> None:
        """The work after the last barrier is known now."""
        self._all |= self._kinds
        if self._open >= 0 and self._kinds:
            self._complete(self._open, self._kinds)

    def _complete(self, barrier: int, kinds: int) -> None:
        """The kinds of work behind a barrier are known."""
        self.words[barrier + _BARRIER_WORDS - 2 : barrier + _BARRIER_WORDS] = _STAGES[kinds], _ACCESSES[kinds]


def _barrier(stages: int, writes: int, following: int = 0, accesses: int = 0) -> tuple[int, ...]:
    """The words of a barrier: the stages and writes before it, and the stages and accesses behind it, which
    may follow (`CommandStream._complete`)."""
    return BARRIER | (_BARRIER_WORDS - 1) << 8, stages, writes, following, accesses


def calls_of(commands: vk.DeviceCommands) -> CallsStruct:
    """The calls the native core makes when it records; those of absent extensions are NULL."""
    return CallsStruct(*(commands.address(n) if hasattr(commands, n) else None for n in CALLS.values()))


def record(words: Sequence[int], recording: RecordingStruct) -> int:
    """Record words that `CommandStream.finish` gave; returns a VkResult."""
    packed = array.array("Q", words)
    address, count = packed.buffer_info()
    return int(library().mn_vk_record(ctypes.byref(recording), address, count))


def joined_words(parts: Sequence[Sequence[int]]) -> list[int]:
    """What `CommandStream.finish` gave for several streams, one behind the other. In place of the barriers to
    the host and back between two of them stands one from the work before to the work behind, or none where
    copies end the one and begin the other that may run in any order."""
    words: list[int] = []
    for part in parts:
        if not words or not part:
            words += part
            continue
        ends, begins = _barriers(words), _barriers(part)
        if ends and begins:
            before = words[ends[-1] + _BARRIER_WORDS : -_BARRIER_WORDS]
            if _independent_copies(before, part[_BARRIER_WORDS : begins[0]]):
                words[-_BARRIER_WORDS:] = part[_BARRIER_WORDS:]
                continue
        words[-2:] = part[3:5]
        words += part[_BARRIER_WORDS:]
    return words


def _commands(words: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The code of each command, and the bounds of its operands."""
    at = 0
    while at < len(words):
        start, at = at + 1, at + 1 + (words[at] >> 8)
        yield words[start - 1] & 255, start, at


def _barriers(words: Sequence[int]) -> list[int]:
    """Where a stream's barriers are, without the host's at both ends."""
    return [start - 1 for code, start, _ in _commands(words) if code == BARRIER][1:-1]


def _independent_copies(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether these are copies, none of which writes what one of the others reads or writes."""
    sides = [[(code, words[start:end]) for code, start, end in _commands(words)] for words in (first, second)]
    if any(code != COPY for side in sides for code, _ in side):
        return False

    def touched(operands: Sequence[int]) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        source, target, source_offset, target_offset, size = operands
        return (source, source_offset, source_offset + size), (target, target_offset, target_offset + size)

    def overlap(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
        return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]

    pairs = [(touched(a), touched(b)) for _, a in sides[0] for _, b in sides[1]]
    return not any(
        overlap(a_target, b_source) or overlap(a_target, b_target) or overlap(a_source, b_target)
        for (a_source, a_target), (b_source, b_target) in pairs
    )
