"""The parts of divided dispatches that each device gets, corrected by what calls measure.

Every call takes the extents of the moment (`Shares.applied`) and, when it has ended, tells how long each
piece took (`Shares.observe`). A device's rate is the median of its last `MEMORY` calls, so that one
call that was disturbed changes nothing, and a device that stays slower gets less from the second call on.
Extents change in steps of a 64th of the whole, and only where all pieces would then end sooner by
`GAIN`: every other set of extents is another recording, and equal ones are used again.
"""

from __future__ import annotations

import dataclasses
import statistics
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mansard import dims
from mansard.artifact.plan import SplitSpec
from mansard.dims import Dim
from mansard.hal import ProfileRow
from mansard.runtime.tensors import Prepared

MEMORY = 3
GAIN = 0.04
STEPS = 64


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


@dataclass
class _Ratio:
    """One split: its extents now, and the latest rates of its pieces in positions a second."""

    split: SplitSpec
    symbols: tuple[Dim, ...]
    extents: tuple[int, ...]
    rates: list[deque[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rates = [deque(maxlen=MEMORY) for _ in self.extents]
        unit = max((dim.multiple for dim in self.symbols), default=1)
        self.step = unit * -(-self.split.total // (unit * STEPS))

    @staticmethod
    def of(split: SplitSpec) -> _Ratio:
        """The split with the shares that the compiler expects to be best."""
        symbols = tuple(next(iter(dims.to_expr(size).symbols())) for size in split.sizes[:-1])
        return _Ratio(split, symbols, split.initial)

    def observe(self, extents: Sequence[int], seconds: Sequence[float]) -> None:
        """Take over what pieces of these extents took, and move if that pays."""
        for known, extent, time in zip(self.rates, extents, seconds, strict=True):
            known.append(extent / time)
        rates = [statistics.median(known) for known in self.rates]
        most = [dim.max for dim in self.symbols]
        step = self.step if self.split.total >= self.step * len(rates) else self.symbols[0].multiple
        better = balanced(rates, self.split.total, step, most)
        if _last(better, rates) < _last(self.extents, rates) * (1 - GAIN):
            self.extents = better


def _last(extents: Sequence[int], rates: Sequence[float]) -> float:
    """When the last piece ends."""
    return max(extent / rate for extent, rate in zip(extents, rates, strict=True))


class Shares:
    """The extents of all splits of a plan. Safe to use from several threads."""

    def __init__(self, splits: Sequence[SplitSpec] = (), devices: Sequence[str] = ()) -> None:
        self._ratios = [_Ratio.of(split) for split in splits]
        self._devices = tuple(devices)
        self._lock = threading.Lock()

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
        times: dict[tuple[int, str], float] = {}
        copies: dict[str, float] = {}
        for slot, own in enumerate(rows):
            for row in own:
                seconds = (row.end_ns - row.start_ns) / 1e9
                times[slot, row.label] = times.get((slot, row.label), 0.0) + seconds
                copies[row.label] = copies.get(row.label, 0.0) + seconds
        with self._lock:
            for ratio in self._ratios:
                extents = [dims.evaluate(size, sizes) for size in ratio.split.sizes]
                taken = [0.0] * len(extents)
                for pieces in ratio.split.dispatches:
                    for number, piece in enumerate(pieces):
                        taken[number] += times.get((piece.device, piece.label), 0.0)
                        taken[number] += sum(copies.get(label, 0.0) for label in piece.copies)
                if all(seconds > 0 for seconds in taken):
                    ratio.observe(extents, taken)
