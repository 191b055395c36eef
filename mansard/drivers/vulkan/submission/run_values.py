"""The values that dispatches of a run pass on through memory, and where blocks have to wait because of it.

A value is what one dispatch writes to a binding, up to where others overwrite it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mansard.drivers.vulkan.memory.buffer import VulkanBuffer
from mansard.drivers.vulkan.shaders.persistent import Body
from mansard.hal.commands import BufferRef, DispatchCommand

ALIGNMENT = 128
"""Of relocated values, in bytes: a line of the L2 cache."""
RELOCATED = 1 << 60
"""Stands for the address of the memory of relocated values: no buffer is there."""
Use = tuple[int, int]
"""The number of a dispatch, and one of its bindings."""
Range = tuple[int, int]
"""The addresses of the first byte and of the one behind the last."""


@dataclass(frozen=True)
class Access:
    """What a dispatch does with a binding."""

    use: Use
    bytes: Range
    writes: bool
    overwrites: bool
    """Whether it writes all of these bytes, whatever they were."""
    exchanged: bool
    """Whether the binding may be that of an exchanged value."""
    transient: bool
    """Whether only dispatches of the run read what it writes."""


@dataclass(frozen=True)
class RunValue:
    """A value that can be relocated: nothing looks for it in its memory but these readers, of which there is
    at least one."""

    writer: Access
    readers: tuple[Access, ...]

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Its write and its reads."""
        return (self.writer, *self.readers)

    @property
    def exchanged(self) -> bool:
        """Whether it can be exchanged (`mansard.hal.exchanges`)."""
        return all(access.exchanged for access in self.accesses)

    @property
    def uses(self) -> set[Use]:
        """The bindings that it is written to and read from."""
        return {access.use for access in self.accesses}

    @property
    def size(self) -> int:
        """Bytes, rounded up to `ALIGNMENT`."""
        start, end = self.writer.bytes
        return -(-(end - start) // ALIGNMENT) * ALIGNMENT

    @property
    def last(self) -> int:
        """The number of the last dispatch that reads it."""
        return max(access.use[0] for access in self.readers)

    def placed(self, start: int) -> dict[Use, int]:
        """Where its bindings begin if it begins at ``start``."""
        first = self.writer.bytes[0]
        return {access.use: start + access.bytes[0] - first for access in self.accesses}


def accesses_of(
    dispatches: Sequence[tuple[DispatchCommand, Body]], later: Sequence[Range]
) -> list[list[Access]]:
    """The accesses of each dispatch of a run; ``later`` is what commands behind the run may read."""
    return [list(_accesses(n, command, body, later)) for n, (command, body) in enumerate(dispatches)]


def _accesses(number: int, command: DispatchCommand, body: Body, later: Sequence[Range]) -> Iterator[Access]:
    info, exchange = body.info, body.exchange
    for binding, ref in enumerate(command.bindings):
        where = bytes_of(ref)
        yield Access(
            (number, binding),
            where,
            binding in info.writes,
            binding in exchange.overwrites,
            binding in exchange.bindings,
            ref.transient and not any(overlap(where, other) for other in later),
        )


def values_of(accesses: Sequence[Sequence[Access]]) -> list[RunValue]:
    """The values of a run that can be relocated.

    A dispatch writes all of such a value, what each reader reads lies within the part of it that has not been
    overwritten, and nothing outside of the run looks for it in its memory: dispatches of the run write all of
    that again, or the binding is transient and no later command reads it.
    """
    values = (_value(access, accesses) for access in itertools.chain(*accesses) if access.overwrites)
    return [value for value in values if value is not None]


def _value(writer: Access, accesses: Sequence[Sequence[Access]]) -> RunValue | None:
    left, readers = [writer.bytes], list[Access]()
    for following in accesses[writer.use[0] + 1 : -1]:
        touching = [access for access in following if any(overlap(access.bytes, part) for part in left)]
        for access in touching:
            if access.writes and not access.overwrites:
                return None
            if not access.writes:
                if not any(_contains(part, access.bytes) for part in left):
                    return None
                readers.append(access)
        for access in touching:
            if access.writes:
                left = [rest for part in left for rest in _without(part, access.bytes)]
        if not left:
            break
    # What the last dispatch reads stays where it is: no wait follows for its memory to be prepared again.
    unread = not any(overlap(access.bytes, part) for access in accesses[-1] for part in left)
    gone = not left or (writer.transient and unread)
    return RunValue(writer, tuple(readers)) if gone and readers else None


def waits_between(
    accesses: Sequence[Sequence[Access]], barriers: Sequence[bool], places: Mapping[Use, int]
) -> list[bool]:
    """The barriers at which all blocks have to wait for each other, as a dispatch behind one reads or writes
    what has been written since the last one (RAW, WAW), or writes what has been read (WAR). ``places`` are
    where the bindings of relocated values begin."""

    def where(access: Access) -> Range:
        start, end = access.bytes
        place = places.get(access.use)
        return access.bytes if place is None else (RELOCATED + place, RELOCATED + place + end - start)

    waits = [False] * len(accesses)
    read: list[Range] = []
    written: list[Range] = []
    first = 0
    for end in [n + 1 for n, barrier in enumerate(barriers) if barrier or n + 1 == len(barriers)]:
        between = [(access, where(access)) for access in itertools.chain(*accesses[first:end])]
        conflict = any(
            overlap(place, other)
            for access, place in between
            for other in (*written, *(read if access.writes else ()))
        )
        if conflict:
            waits[first - 1] = True
            read, written = [], []
        for access, place in between:
            (written if access.writes else read).append(place)
        first = end
    return waits


def bytes_of(ref: BufferRef) -> Range:
    """The bytes that a dispatch may reach; none where the buffer is not known yet."""
    if not isinstance(ref.buffer, VulkanBuffer):
        return 0, 0
    start = ref.buffer.address + ref.offset
    return start, start + (ref.buffer.size - ref.offset if ref.size is None else ref.size)


def overlap(left: Range, right: Range) -> bool:
    """Whether two ranges have a byte in common."""
    return left[0] < right[1] and right[0] < left[1]


def _contains(outer: Range, inner: Range) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _without(part: Range, taken: Range) -> list[Range]:
    """What is left of a part."""
    rest = [(part[0], min(part[1], taken[0])), (max(part[0], taken[1]), part[1])]
    return [piece for piece in rest if piece[0] < piece[1]]
