"""Which values a persistent kernel's dispatches exchange (`mansard.hal.exchanges`), and where blocks wait.

A value is what one dispatch writes to a binding. It can be exchanged where the dispatch writes all of it, all
dispatches that read it wait for its elements, and nothing outside of the run looks for it in its memory:
dispatches of the run write all of that again, or the binding is transient and no later command reads it. It
gets memory of its own, so that no later value has to wait for its readers. All blocks wait between two
dispatches only if others of their accesses conflict: one writes what another one reads or writes.

Exchanged values are emptied for the next launch behind the first wait after their last reader.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mansard.drivers.vulkan.memory.buffer import VulkanBuffer
from mansard.drivers.vulkan.shaders.persistent import Body
from mansard.hal.commands import BufferRef, DispatchCommand
from mansard.hal.exchanges import MAX_BINDINGS

ALIGNMENT = 128
"""Of exchanged values, in bytes: a line of the L2 cache."""
Use = tuple[int, int]
"""The number of a dispatch, and one of its bindings."""
Range = tuple[int, int]
"""The addresses of the first byte and of the one behind the last."""


@dataclass(frozen=True)
class ExchangePlan:
    """The exchanged values of a run, and its waits."""

    waits: tuple[bool, ...]
    """For each dispatch, whether all blocks wait behind it."""
    places: dict[Use, int]
    """Where in the memory of exchanged values a binding begins, in bytes."""
    emptied: tuple[Range, ...]
    """For each dispatch, the bytes of that memory that are emptied before it."""
    size: int
    """Bytes of all exchanged values."""

    def polls(self, number: int) -> int:
        """The exchanged bindings of a dispatch, a bit for each."""
        return sum(1 << binding for binding in range(MAX_BINDINGS) if (number, binding) in self.places)


@dataclass(frozen=True)
class _Access:
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
class _Value:
    writer: _Access
    readers: tuple[_Access, ...]

    @property
    def size(self) -> int:
        """Bytes, up to the next value."""
        start, end = self.writer.bytes
        return -(-(end - start) // ALIGNMENT) * ALIGNMENT

    @property
    def last(self) -> int:
        """The number of the last dispatch that reads it."""
        return max(access.use[0] for access in self.readers)


def plan(
    dispatches: Sequence[tuple[DispatchCommand, Body]], waits: Sequence[bool], later: Sequence[Range] = ()
) -> ExchangePlan:
    """The plan of a run in whose commands there are barriers behind the dispatches with ``waits``. Dispatches
    without a barrier between them are independent. ``later`` is what commands behind the run may read."""
    accesses = [list(_accesses(n, command, body, later)) for n, (command, body) in enumerate(dispatches)]
    if any(access.bytes[1] <= access.bytes[0] for access in itertools.chain(*accesses)):
        return ExchangePlan(tuple(waits), {}, ((0, 0),) * len(dispatches), 0)  # no addresses to compare
    values = [
        value
        for access in itertools.chain(*accesses)
        if access.overwrites and access.exchanged and (value := _value(access, accesses)) is not None
    ]
    exchanged = {access.use for value in values for access in (value.writer, *value.readers)}
    plain = [[access for access in of_dispatch if access.use not in exchanged] for of_dispatch in accesses]
    kept = _waits(plain, waits)
    if values:
        kept[-2] = kept[-2] or not any(kept[max(value.last for value in values) : -1])
    return _placed(values, kept)


def _accesses(number: int, command: DispatchCommand, body: Body, later: Sequence[Range]) -> Iterator[_Access]:
    info, exchange = body.info, body.exchange
    for binding, ref in enumerate(command.bindings):
        where = bytes_of(ref)
        yield _Access(
            (number, binding),
            where,
            binding in info.writes,
            binding in exchange.overwrites,
            binding in exchange.bindings,
            ref.transient and not any(overlap(where, other) for other in later),
        )


def _value(writer: _Access, accesses: Sequence[Sequence[_Access]]) -> _Value | None:
    """The value that an access writes, if it can be exchanged."""
    left, readers = [writer.bytes], list[_Access]()
    for following in accesses[writer.use[0] + 1 : -1]:
        touching = [access for access in following if any(overlap(access.bytes, part) for part in left)]
        for access in touching:
            if access.writes and not access.overwrites:
                return None
            if not access.writes:
                if not access.exchanged or not any(_contains(part, access.bytes) for part in left):
                    return None
                readers.append(access)
        for access in touching:
            if access.writes:
                left = [rest for part in left for rest in _without(part, access.bytes)]
        if not left:
            break
    # The last dispatch has no wait behind it for what it reads to be emptied.
    unread = not any(overlap(access.bytes, part) for access in accesses[-1] for part in left)
    gone = not left or (writer.transient and unread)
    return _Value(writer, tuple(readers)) if gone and readers else None


def _waits(accesses: Sequence[Sequence[_Access]], barriers: Sequence[bool]) -> list[bool]:
    """The barriers at which all blocks have to wait for each other."""
    waits = [False] * len(accesses)
    read: list[Range] = []
    written: list[Range] = []
    first = 0
    for end in [n + 1 for n, barrier in enumerate(barriers) if barrier or n + 1 == len(barriers)]:
        between = list(itertools.chain(*accesses[first:end]))
        conflict = any(
            overlap(access.bytes, other)
            for access in between
            for other in (*written, *(read if access.writes else ()))
        )
        if conflict:
            waits[first - 1] = True
            read, written = [], []
        for access in between:
            (written if access.writes else read).append(access.bytes)
        first = end
    return waits


def _placed(values: Sequence[_Value], waits: Sequence[bool]) -> ExchangePlan:
    """Values that are emptied together lie together."""
    behind: dict[int, list[_Value]] = {}
    for value in values:
        behind.setdefault(waits.index(True, value.last) + 1, []).append(value)
    places: dict[Use, int] = {}
    emptied = [(0, 0)] * len(waits)
    size = 0
    for number, together in sorted(behind.items()):
        first = size
        for value in together:
            for access in (value.writer, *value.readers):
                places[access.use] = size + access.bytes[0] - value.writer.bytes[0]
            size += value.size
        emptied[number] = (first, size)
    return ExchangePlan(tuple(waits), places, tuple(emptied), size)


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
