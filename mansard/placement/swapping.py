"""Which programs of a device's regions stay in its memory, and which take turns in a part of it.

A device that swaps programs (`DeviceSlot.swaps`) takes more regions than its memory holds: some stay, the
others are loaded over its link before they run and give their memory to the next. Loads run beside everything
else, so a region that was loaded while another one computed costs the longer of the two. Calls run all
programs in one order again and again: which of equal ones stay makes no difference, and to hold on to any of
the others from one call to the next is no use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mansard.ir.region import Region
from mansard.targets.profile import DeviceProfile

BUFFERS = (2, 1)
"""Programs of the largest size that an area may hold: one runs while the next is loaded, or both in turn."""


@dataclass(frozen=True)
class SlotSwaps:
    """The regions of a device slot that take turns in ``area`` bytes of its memory."""

    area: int = 0
    regions: tuple[Region, ...] = ()

    def swaps(self, region: Region) -> bool:
        """Whether a region, or one of the same ops, takes turns."""
        return any(other.ops == region.ops for other in self.regions)


Swaps = Mapping[int, SlotSwaps]
"""By device slot."""


@dataclass(frozen=True)
class ProgramLoad:
    """The load of a dispatch's program: it takes ``seconds`` on the device's link, in the memory of programs
    that ``after`` and the dispatches before it ran (None: there is room from the start)."""

    dispatch: int
    seconds: float
    bytes: int
    after: int | None = None


@dataclass(frozen=True)
class RegionTimes:
    """A region that may take turns: seconds of a run, of loading its program, and of its dispatches on the
    best other device (infinite: there is none)."""

    region: Region
    run: float
    load: float
    elsewhere: float

    @property
    def bytes(self) -> int:
        """Of its program."""
        return self.region.bytes

    def swapped(self, buffers: int) -> float:
        """Seconds where it takes turns: loaded while another runs, or before it runs itself."""
        return max(self.run, self.load) if buffers > 1 else self.run + self.load

    def gain(self, buffers: int) -> float:
        """Seconds saved by keeping its program loaded."""
        return min(self.elsewhere, self.swapped(buffers)) - self.run


@dataclass(frozen=True)
class Residency:
    """``seconds`` price each region: those that stay by their run, the others with their load."""

    swaps: SlotSwaps
    seconds: Mapping[Region, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Of all regions."""
        return sum(self.seconds.values())


def load_seconds(size: int, profile: DeviceProfile) -> float:
    """Seconds to bring a program into a device's memory."""
    return profile.link.copy_seconds + size / profile.link.bytes_per_second


def choose_resident(regions: Sequence[RegionTimes], room: int) -> Residency:
    """Which of a device's regions, each of which fits ``room`` bytes of its memory, stay in it: those that
    save most for their bytes. The area of the others is for two of the largest, or for one."""
    if sum(times.bytes for times in regions) <= room:
        return Residency(SlotSwaps(), {times.region: times.run for times in regions})
    sizes = sorted({times.bytes for times in regions})
    choices = [
        choice
        for buffers in BUFFERS
        for largest in sizes
        if (choice := _with_area(regions, room, buffers, largest)) is not None
    ]
    return min(choices, key=lambda choice: choice.total)


def _with_area(regions: Sequence[RegionTimes], room: int, buffers: int, largest: int) -> Residency | None:
    """The choice with an area for programs of up to ``largest`` bytes: larger ones stay, and of the others as
    many as there is room for. None where that is too much."""
    small = [times for times in regions if times.bytes <= largest]
    area = min(buffers * largest, sum(times.bytes for times in small))
    left = room - area - sum(times.bytes for times in regions if times.bytes > largest)
    if left < 0:
        return None
    swapped = []
    for times in sorted(small, key=lambda times: -times.gain(buffers) / max(times.bytes, 1)):
        if times.bytes <= left:
            left -= times.bytes
        else:
            swapped.append(times.region)
    seconds = {t.region: t.swapped(buffers) if t.region in swapped else t.run for t in regions}
    return Residency(SlotSwaps(area, tuple(t.region for t in regions if t.region in swapped)), seconds)


def describe_load(load: ProgramLoad) -> str:
    """What an explanation says of a region that takes turns."""
    return f"swapped: a call loads its {load.bytes / 1e6:.4g} MB, {1e3 * load.seconds:.4g} ms"


def load_points(sizes: Sequence[int], area: int) -> list[int]:
    """For programs of these bytes that run one after another in an area: how many of them must have run
    before each can be loaded."""
    points, first, used = [], 0, 0
    for size in sizes:
        used += size
        while used > area:
            used -= sizes[first]
            first += 1
        points.append(first)
    return points


def program_loads(
    dispatches: Sequence[tuple[int, int]], area: int, profile: DeviceProfile
) -> list[ProgramLoad]:
    """The loads of a device's swapped dispatches, given as (number, bytes) in their order."""
    points = load_points([size for _, size in dispatches], area)
    return [
        ProgramLoad(number, load_seconds(size, profile), size, dispatches[point - 1][0] if point else None)
        for (number, size), point in zip(dispatches, points, strict=True)
    ]
