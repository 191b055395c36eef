"""The shares of partitioned dispatches that each device computes, adapted to the times that calls measure.

Every call uses the current extents (`PartitionShares.applied`) and reports at its end how long each piece
took (`PartitionShares.observe`). The rate of a device is the median of its last `WINDOW` calls, so a single
disturbed call has no effect, and a device that stays slower gets less from the third call on.

Rates are not sufficient: kernels work in tiles, and a few more rows can cost another round of tiles. So the
times measured for a division take precedence over the times that rates predict (`_MeasuredDivision`), as long
as the speed of the devices has not changed since.

Each set of extents needs recordings of its own. So extents change in steps of a 64th of the whole, and only
when that is expected to shorten all partitioned dispatches by `MIN_GAIN`, or by more after recent changes:
so shares settle even where times are noisy.
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
from mansard.runtime.memory.signature import PreparedInputs

WINDOW = 5
MIN_GAIN = 0.04
STEPS = 64
MIN_SAMPLES = 3
"""Calls from which the median of a division's times is used."""
SPEED_CHANGE = 0.15
"""The relative difference in a piece's time from which the speed of its device counts as changed."""
DAMPING_DECAY = 0.97
"""Each change of shares raises the required gain by `MIN_GAIN`; this part of it remains after each call."""


@dataclass(frozen=True)
class Share:
    """The current division of dispatches: ``extents`` of ``total`` positions of a dim, by device."""

    dim: str
    total: int
    devices: tuple[str, ...]
    extents: tuple[int, ...]
    dispatches: int
    """How many dispatches are divided in this way."""

    @property
    def fractions(self) -> dict[str, float]:
        """The fraction of each device."""
        return {d: e / self.total for d, e in zip(self.devices, self.extents, strict=True)}

    def __str__(self) -> str:
        parts = ", ".join(f"{part:.0%} {device}" for device, part in self.fractions.items())
        return f"{self.total} {self.dim} of {self.dispatches} dispatches: {parts}"


def balanced(rates: Sequence[float], total: int, unit: int, limits: Sequence[int]) -> tuple[int, ...]:
    """Extents in the ratio of rates. All but the last are multiples of ``unit``, at least one unit and within
    ``limits``; the last is the remainder, at least a unit."""
    whole = sum(rates)
    remaining = total - unit * len(rates)
    extents = []
    for rate, limit in zip(rates[:-1], limits, strict=True):
        ideal = round(rate / whole * total / unit) * unit
        extra = max(0, min(ideal, limit) - unit)
        extra = min(extra, remaining - remaining % unit)
        remaining -= extra
        extents.append(unit + extra)
    return (*extents, total - sum(extents))


class _MeasuredDivision:
    """The seconds that the pieces of one division took in the latest calls."""

    def __init__(self, count: int) -> None:
        self._latest: list[deque[float]] = [deque(maxlen=WINDOW) for _ in range(count)]
        self._reference: list[float] = []
        """The medians when there were enough samples for the first time."""

    def add(self, seconds: Sequence[float]) -> bool:
        """Add the times of a call; False where the speed of a device has changed."""
        for times, time in zip(self._latest, seconds, strict=True):
            times.append(time)
        if not self.reliable:
            return True
        medians = [_median(times) for times in self._latest]
        self._reference = self._reference or medians
        pairs = zip(medians, self._reference, strict=True)
        unchanged = all(abs(new - old) <= SPEED_CHANGE * old for new, old in pairs)
        self._reference = self._reference if unchanged else medians
        return unchanged

    def consistent_with(self, extents: Sequence[int], rates: Sequence[float]) -> bool:
        """Whether the times fit devices of these rates, within a factor of two for a round of tiles."""
        pieces = zip(extents, map(_median, self._latest), rates, strict=True)
        return all(0.5 <= extent / time / rate <= 2.0 for extent, time, rate in pieces)

    @property
    def reliable(self) -> bool:
        """Whether there are enough samples."""
        return len(self._latest[0]) >= MIN_SAMPLES

    @property
    def seconds(self) -> float:
        """When the last piece ends."""
        return max(map(_median, self._latest))


@dataclass
class _AdaptiveSplit:
    """A split with its current extents, and the latest rates of its pieces in positions per second."""

    spec: SplitSpec
    symbols: tuple[Dim, ...]
    extents: tuple[int, ...]
    rates: list[deque[float]] = field(default_factory=list)
    measured: dict[tuple[int, ...], _MeasuredDivision] = field(default_factory=dict)
    """Divisions measured at the devices' current speed."""

    def __post_init__(self) -> None:
        self.rates = [deque(maxlen=WINDOW) for _ in self.extents]
        unit = max((dim.multiple for dim in self.symbols), default=1)
        step = unit * -(-self.spec.total // (unit * STEPS))
        self.step = step if self.spec.total >= step * len(self.extents) else unit

    @staticmethod
    def of(split: SplitSpec) -> _AdaptiveSplit:
        """The split with the shares that the compiler predicts to be best."""
        symbols = tuple(next(iter(dims.to_expr(size).symbols())) for size in split.sizes[:-1])
        return _AdaptiveSplit(split, symbols, split.initial)

    def learn(self, extents: tuple[int, ...], seconds: Sequence[float]) -> None:
        """Add the times of pieces of these extents."""
        for rates, extent, time in zip(self.rates, extents, seconds, strict=True):
            rates.append(extent / time)
        division = self.measured.setdefault(extents, _MeasuredDivision(len(extents)))
        if not division.add(seconds):
            self.measured = {extents: division}
        elif division.reliable:
            current = [_median(latest) for latest in self.rates]
            self.measured = {
                e: d for e, d in self.measured.items() if d is division or d.consistent_with(e, current)
            }

    def best(self) -> tuple[float, float, tuple[int, ...]]:
        """The seconds until the last piece ends, with the current and with the best extents, and those."""
        if not self.rates[0]:
            return 0.0, 0.0, self.extents
        rates = [_median(latest) for latest in self.rates]
        # A disturbed call makes a division look slower, never faster, so one sample is enough for others.
        measured = {
            extents: division.seconds
            for extents, division in self.measured.items()
            if division.reliable or extents != self.extents
        }
        even = balanced(rates, self.spec.total, self.step, [dim.max for dim in self.symbols])
        predicted = {extents: _makespan(extents, rates) for extents in (self.extents, even)} | measured
        best = min(predicted, key=lambda extents: predicted[extents])
        now, then = predicted[self.extents], predicted[best]
        return (now, then, best) if then < now else (now, now, self.extents)


def _median(values: deque[float]) -> float:
    return sorted(values)[len(values) // 2]


def _makespan(extents: Sequence[int], rates: Sequence[float]) -> float:
    """The time until the last piece ends."""
    return max(extent / rate for extent, rate in zip(extents, rates, strict=True))


class PartitionShares:
    """The extents of all splits of a plan. Thread-safe."""

    def __init__(self, splits: Sequence[SplitSpec] = (), devices: Sequence[str] = ()) -> None:
        self._splits = [_AdaptiveSplit.of(split) for split in splits]
        self._devices = tuple(devices)
        self._damping = 0.0
        self._lock = threading.Lock()
        self._pieces = {
            (piece.device, piece.label): (split, number)
            for split in self._splits
            for pieces in split.spec.dispatches
            for number, piece in enumerate(pieces)
        }
        self._copies = {
            label: (split, number)
            for split in self._splits
            for pieces in split.spec.dispatches
            for number, piece in enumerate(pieces)
            for label in piece.copies
        }

    @property
    def active(self) -> bool:
        """Whether any dispatch is partitioned."""
        return bool(self._splits)

    def now(self) -> list[Share]:
        """The division of every split in the next call."""
        with self._lock:
            return [
                Share(
                    split.spec.dim,
                    split.spec.total,
                    tuple(self._devices[piece.device] for piece in split.spec.dispatches[0]),
                    split.extents,
                    len(split.spec.dispatches),
                )
                for split in self._splits
            ]

    def applied(self, inputs: PreparedInputs) -> PreparedInputs:
        """The inputs of a call with the extents it uses; unchanged if they have been applied already."""
        if not self._splits or self._splits[0].symbols[0].name in inputs.dims:
            return inputs
        with self._lock:
            chosen = {
                dim.name: extent
                for split in self._splits
                for dim, extent in zip(split.symbols, split.extents, strict=False)
            }
        return dataclasses.replace(inputs, dims={**inputs.dims, **chosen})

    def observe(self, sizes: Mapping[str, int], rows: Sequence[Sequence[ProfileRow]]) -> None:
        """Adapt to a call with these values of the plan's dims; ``rows`` are its device times by slot."""
        nanoseconds = {id(split): [0] * len(split.extents) for split in self._splits}
        for slot, slot_rows in enumerate(rows):
            for row in slot_rows:
                piece = self._pieces.get((slot, row.label)) or self._copies.get(row.label)
                if piece is not None:
                    split, number = piece
                    nanoseconds[id(split)][number] += row.end_ns - row.start_ns
        with self._lock:
            self._damping *= DAMPING_DECAY
            for split in self._splits:
                times = nanoseconds[id(split)]
                if all(times):
                    extents = tuple(dims.evaluate(size, sizes) for size in split.spec.sizes)
                    split.learn(extents, [time / 1e9 for time in times])
            bests = [split.best() for split in self._splits]
            now, then = sum(best[0] for best in bests), sum(best[1] for best in bests)
            if then < now * (1 - MIN_GAIN * (1 + self._damping)):
                self._damping += 1
                for split, (_, _, extents) in zip(self._splits, bests, strict=True):
                    split.extents = extents
