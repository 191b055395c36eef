"""Renaming of values in a run of dispatches, as of registers in a processor: double buffering, so that a
write does not wait for reads of the last value (WAR).

Before, where a dispatch of each layer writes a value to the same memory::

    layer n        write m; wait; read m; ...; wait
    layer n + 1    write m; wait; read m; ...; wait

The wait before a write is for the readers of the last value only. After, successive values take two places in
turn; that before the reads is left, and stands between every value and the next one in its place::

    layer n        write a; wait; read a; ...
    layer n + 1    write b; wait; read b; ...

On an H200 that takes 0.7 % of the time off decode steps of Qwen3-8B in bf16, and 1.5 % in int4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.drivers.vulkan.submission.run_values import Access, Range, RunValue, Use, waits_between

MAX_BYTES = 1 << 20
"""The largest value that is renamed."""
MAX_TOTAL = 8 << 20
"""Bytes of all renamed values together."""


@dataclass(frozen=True)
class Renaming:
    """Where the renamed values of a run lie."""

    places: Mapping[Use, int]
    """Where in their memory a binding begins, in bytes."""
    size: int
    """Bytes of that memory."""


NOTHING_RENAMED = Renaming({}, 0)


def rename(
    values: Sequence[RunValue], accesses: Sequence[Sequence[Access]], barriers: Sequence[bool]
) -> tuple[Renaming, list[bool]]:
    """A renaming that saves waits, and those that it leaves (`waits_between`): of the values of all ranges of
    memory, but for those of ranges that are left out, one after another, because that costs no wait.
    ``accesses`` are those by which dispatches may have to wait for each other."""
    by_memory: dict[Range, list[RunValue]] = {}
    left = MAX_TOTAL
    for value in values:
        memory = value.writer.bytes
        if memory not in by_memory:
            if value.size > min(MAX_BYTES, left // 2):
                continue
            left -= 2 * value.size
        by_memory.setdefault(memory, []).append(value)
    renaming = _in_turn(by_memory)
    waits = waits_between(accesses, barriers, renaming.places)
    for memory in list(by_memory):
        others = {other: values for other, values in by_memory.items() if other != memory}
        smaller = _in_turn(others)
        left_waits = waits_between(accesses, barriers, smaller.places)
        if sum(left_waits) <= sum(waits):
            by_memory, renaming, waits = others, smaller, left_waits
    return renaming, waits


def _in_turn(by_memory: Mapping[Range, Sequence[RunValue]]) -> Renaming:
    """Two places for the values of each range of memory, which they take in turn."""
    places: dict[Use, int] = {}
    size = 0
    for values in by_memory.values():
        for number, value in enumerate(values):
            places |= value.placed(size + number % 2 * value.size)
        size += 2 * values[0].size
    return Renaming(places, size)
