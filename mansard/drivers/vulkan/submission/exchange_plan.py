"""Which values a persistent kernel's dispatches exchange (`mansard.hal.exchanges`), and where blocks wait.

A value can be exchanged where all dispatches that read it wait for its elements. It gets memory of its own,
so that no later value has to wait for its readers. All blocks wait between two dispatches only if others of
their accesses conflict: one writes what another one reads or writes. Values that are not exchanged may be
renamed (`mansard.drivers.vulkan.submission.renaming`), so that fewer accesses do.

Exchanged values are emptied for the next launch behind the first wait after their last reader.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.drivers.vulkan.shaders.persistent import Body
from mansard.drivers.vulkan.submission.renaming import NOTHING_RENAMED, Renaming, rename
from mansard.drivers.vulkan.submission.run_values import (
    Range,
    RunValue,
    Use,
    accesses_of,
    values_of,
)
from mansard.hal.commands import DispatchCommand
from mansard.hal.exchanges import MAX_BINDINGS


@dataclass(frozen=True)
class ExchangePlan:
    """The exchanged values of a run, and its waits."""

    waits: tuple[bool, ...]
    """For each dispatch, whether all blocks wait behind it."""
    places: Mapping[Use, int]
    """Where in the memory of exchanged values a binding begins, in bytes."""
    emptied: tuple[Range, ...]
    """For each dispatch, the bytes of that memory that are emptied before it."""
    size: int
    """Bytes of all exchanged values."""
    renaming: Renaming = NOTHING_RENAMED
    """Values that are not exchanged, but do not lie in their memory either."""

    def polls(self, number: int) -> int:
        """The exchanged bindings of a dispatch, a bit for each."""
        return sum(1 << binding for binding in range(MAX_BINDINGS) if (number, binding) in self.places)


def plan(
    dispatches: Sequence[tuple[DispatchCommand, Body]], waits: Sequence[bool], later: Sequence[Range] = ()
) -> ExchangePlan:
    """The plan of a run in whose commands there are barriers behind the dispatches with ``waits``. Dispatches
    without a barrier between them are independent. ``later`` is what commands behind the run may read."""
    accesses = accesses_of(dispatches, later)
    if any(access.bytes[1] <= access.bytes[0] for access in itertools.chain(*accesses)):
        return ExchangePlan(tuple(waits), {}, ((0, 0),) * len(dispatches), 0)  # no addresses to compare
    values = values_of(accesses)
    exchanged = [value for value in values if value.exchanged]
    uses = {use for value in exchanged for use in value.uses}
    plain = [[access for access in of_dispatch if access.use not in uses] for of_dispatch in accesses]
    renaming, kept = rename([value for value in values if not uses & value.uses], plain, waits)
    if exchanged:
        kept[-2] = kept[-2] or not any(kept[max(value.last for value in exchanged) : -1])
    return _placed(exchanged, kept, renaming)


def _placed(values: Sequence[RunValue], waits: Sequence[bool], renaming: Renaming) -> ExchangePlan:
    """Values that are emptied together lie together."""
    behind: dict[int, list[RunValue]] = {}
    for value in values:
        behind.setdefault(waits.index(True, value.last) + 1, []).append(value)
    places: dict[Use, int] = {}
    emptied = [(0, 0)] * len(waits)
    size = 0
    for number, together in sorted(behind.items()):
        first = size
        for value in together:
            places |= value.placed(size)
            size += value.size
        emptied[number] = (first, size)
    return ExchangePlan(tuple(waits), places, tuple(emptied), size, renaming)
