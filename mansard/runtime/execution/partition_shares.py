"""The parts of divided dispatches that each device gets, corrected by what calls measure.

Every call takes the extents of the moment (`Shares.applied`) and, when it has ended, tells how long each
piece took (`Shares.observe`). A device's rate is the median of its last `MEMORY` calls, so that one
call that was disturbed changes nothing, and a device that stays slower gets less from the third call on.

Rates are not all: kernels work in tiles, and a few rows more can cost a whole round of them. So what was
measured of a division counts for more than what rates promise (`_Known`), as long as the devices are as fast
as they were then.

Every other set of extents is another recording; equal ones are used again. So extents change in steps of
a 64th of the whole, and only when all divided dispatches together would then take less time by `GAIN`, and by
more than that after recent changes: where times are noise, shares come to rest.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mansard import dims
from mansard.dims import Dim
from mansard.hal import ProfileRow
from mansard.plan.plan import SplitSpec
from mansard.runtime.memory.tensors import Prepared

MEMORY = 5
GAIN = 0.04
STEPS = 64
SURE = 3
"""Calls from which the median of a division's times counts."""
CHANGED = 0.15
"""By how much a piece's time must differ for its device to be another than before."""
CALM = 0.97
"""What is left of the unrest of a change after each call; each change raises the gain asked for by `GAIN`."""


@dataclass(frozen=True)
class Share:
    """How dispatches are divided now: ``extents`` of ``total`` positions of a dim, by device."""

    dim: str
    total: int
    devices: tuple[str, ...]
    extents: tuple[int, ...]
    dispatches: int
    """How many dispatches are divided like this."""

    @property
    def fractions(self) -> dict[str, float]:
        """The part of each device."""
        return {d: e / self.total for d, e in zip(self.devices, self.extents, strict=True)}

    def __str__(self) -> str:
        parts = ", ".join(f"{part:.0%} {device}" for device, part in self.fractions.items())
        return f"{self.total} {self.dim} of {self.dispatches} dispatches: {parts}"


def balanced(rates: Sequence[float], total: int, unit: int, most: Sequence[int]) -> tuple[int, ...]:
    """Extents in the ratio of rates. All but the last are multiples of ``unit`` from one unit to what
    ``most`` allows; the last is what they leave, at least a unit."""
    whole = sum(rates)
    left = total - unit * len(rates)
    extents = []
    for rate, limit in zip(rates[:-1], most, strict=True):
        wanted = round(rate / whole * total / unit) * unit
        more = max(0, min(wanted, limit) - unit)
        more = min(more, left - left % unit)
        left -= more
        extents.append(unit + more)
    return (*extents, total - sum(extents))


class _Known:
    """The seconds that the pieces of one division took in the latest calls."""

    def __init__(self, count: int) -> None:
        self._latest: list[deque[float]] = [deque(maxlen=MEMORY) for _ in range(count)]
        self._first: list[float] = []
        """The medians when there were enough to be sure."""

    def add(self, seconds: Sequence[float]) -> bool:
        """Take over another call; False where devices are no longer what they were."""
        for known, time in zip(self._latest, seconds, strict=True):
            known.append(time)
        if not self.sure:
            return True
        medians = [_median(known) for known in self._latest]
        self._first = self._first or medians
        same = all(abs(new - old) <= CHANGED * old for new, old in zip(medians, self._first, strict=True))
        self._first = self._first if same else medians
        return same

    def agrees(self, extents: Sequence[int], rates: Sequence[float]) -> bool:
        """Whether devices of these rates may have done it. A round more or less is up to a factor of two."""
        ends = zip(extents, map(_median, self._latest), rates, strict=True)
        return all(0.5 <= extent / time / rate <= 2.0 for extent, time, rate in ends)

    @property
    def sure(self) -> bool:
        """Whether there were enough calls."""
        return len(self._latest[0]) >= SURE

    @property
    def seconds(self) -> float:
        """When the last piece ends."""
        return max(map(_median, self._latest))


@dataclass
class _Ratio:
    """One split: its extents now, and the latest rates of its pieces in positions a second."""

    split: SplitSpec
    symbols: tuple[Dim, ...]
    extents: tuple[int, ...]
    rates: list[deque[float]] = field(default_factory=list)
    tried: dict[tuple[int, ...], _Known] = field(default_factory=dict)
    """Divisions that were measured with the devices as they are."""

    def __post_init__(self) -> None:
        self.rates = [deque(maxlen=MEMORY) for _ in self.extents]
        unit = max((dim.multiple for dim in self.symbols), default=1)
        step = unit * -(-self.split.total // (unit * STEPS))
        self.step = step if self.split.total >= step * len(self.extents) else unit

    @staticmethod
    def of(split: SplitSpec) -> _Ratio:
        """The split with the shares that the compiler expects to be best."""
        symbols = tuple(next(iter(dims.to_expr(size).symbols())) for size in split.sizes[:-1])
        return _Ratio(split, symbols, split.initial)

    def learn(self, extents: tuple[int, ...], seconds: Sequence[float]) -> None:
        """Take over what pieces of these extents took."""
        for rates, extent, time in zip(self.rates, extents, seconds, strict=True):
            rates.append(extent / time)
        known = self.tried.setdefault(extents, _Known(len(extents)))
        if not known.add(seconds):
            self.tried = {extents: known}
        elif known.sure:
            now = [_median(latest) for latest in self.rates]
            self.tried = {e: k for e, k in self.tried.items() if k is known or k.agrees(e, now)}

    def outlook(self) -> tuple[float, float, tuple[int, ...]]:
        """The seconds until the last piece ends, as it is and with better extents, and those."""
        if not self.rates[0]:
            return 0.0, 0.0, self.extents
        rates = [_median(known) for known in self.rates]
        # One call may have been disturbed, which makes a division look worse, never better.
        measured = {e: known.seconds for e, known in self.tried.items() if known.sure or e != self.extents}
        even = balanced(rates, self.split.total, self.step, [dim.max for dim in self.symbols])
        expected = {extents: _last(extents, rates) for extents in (self.extents, even)} | measured
        better = min(expected, key=lambda extents: expected[extents])
        now, then = expected[self.extents], expected[better]
        return (now, then, better) if then < now else (now, now, self.extents)


def _median(known: deque[float]) -> float:
    return sorted(known)[len(known) // 2]


def _last(extents: Sequence[int], rates: Sequence[float]) -> float:
    """When the last piece ends."""
    return max(extent / rate for extent, rate in zip(extents, rates, strict=True))


class Shares:
    """The extents of all splits of a plan. Safe to use from several threads."""

    def __init__(self, splits: Sequence[SplitSpec] = (), devices: Sequence[str] = ()) -> None:
        self._ratios = [_Ratio.of(split) for split in splits]
        self._devices = tuple(devices)
        self._unrest = 0.0
        self._lock = threading.Lock()
        self._pieces = {
            (piece.device, piece.label): (ratio, number)
            for ratio in self._ratios
            for pieces in ratio.split.dispatches
            for number, piece in enumerate(pieces)
        }
        self._copies = {
            label: (ratio, number)
            for ratio in self._ratios
            for pieces in ratio.split.dispatches
            for number, piece in enumerate(pieces)
            for label in piece.copies
        }

    @property
    def active(self) -> bool:
        """Whether there is anything to share."""
        return bool(self._ratios)

    def now(self) -> list[Share]:
        """How every split is shared out to the next call."""
        with self._lock:
            return [
                Share(
                    ratio.split.dim,
                    ratio.split.total,
                    tuple(self._devices[piece.device] for piece in ratio.split.dispatches[0]),
                    ratio.extents,
                    len(ratio.split.dispatches),
                )
                for ratio in self._ratios
            ]

    def applied(self, prepared: Prepared) -> Prepared:
        """A call's inputs with the extents it shall use; as they are where that is decided already."""
        if not self._ratios or self._ratios[0].symbols[0].name in prepared.dims:
            return prepared
        with self._lock:
            chosen = {
                dim.name: extent
                for ratio in self._ratios
                for dim, extent in zip(ratio.symbols, ratio.extents, strict=False)
            }
        return dataclasses.replace(prepared, dims={**prepared.dims, **chosen})

    def observe(self, sizes: Mapping[str, int], rows: Sequence[Sequence[ProfileRow]]) -> None:
        """Learn from a call with these values of the plan's dims; ``rows`` are its device times by slot."""
        taken = {id(ratio): [0] * len(ratio.extents) for ratio in self._ratios}
        for slot, own in enumerate(rows):
            for row in own:
                found = self._pieces.get((slot, row.label)) or self._copies.get(row.label)
                if found is not None:
                    ratio, number = found
                    taken[id(ratio)][number] += row.end_ns - row.start_ns
        with self._lock:
            self._unrest *= CALM
            for ratio in self._ratios:
                times = taken[id(ratio)]
                if all(times):
                    extents = tuple(dims.evaluate(size, sizes) for size in ratio.split.sizes)
                    ratio.learn(extents, [time / 1e9 for time in times])
            outlooks = [ratio.outlook() for ratio in self._ratios]
            now, then = sum(outlook[0] for outlook in outlooks), sum(outlook[1] for outlook in outlooks)
            if then < now * (1 - GAIN * (1 + self._unrest)):
                self._unrest += 1
                for ratio, (_, _, better) in zip(self._ratios, outlooks, strict=True):
                    ratio.extents = better
