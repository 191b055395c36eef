"""The device of every unit for every role, such that what is held fits and a use of the model is shortest.

Layers follow each other, so the time of a method is the sum of its units' and of the handoffs between units
on different devices. A dynamic program over the chain of units keeps, for each choice of the last unit's
devices, placements that differ in the bytes used: one that is slower and uses no less is dropped. Bytes are
exact; only of placements with nearly equal bytes the fastest alone is kept.

Weights that roles use on different devices are held by both, and a state is handed over between them.

A device may stand for another one on which programs take turns (``stands_for``): what is on it is on that
device, without taking of its memory more than states do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.errors import PlacementError
from mansard.placement.cost import transfer_seconds
from mansard.placement.methods.units import Chain, Unit
from mansard.targets.profile import DeviceProfile

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Option = tuple[int, ...]
"""The device of each role."""
_STATES = 256
"""Placements that are kept for each choice of the last unit's devices, over all limited devices."""
HANDED_OVER = 2
"""How often a use of a model hands its states from one role's device to another's: there and back."""


@dataclass(frozen=True)
class Assignment:
    """The chosen devices of each unit, the bytes that each device holds, and the seconds of a typical use."""

    options: tuple[Option, ...]
    held: tuple[int, ...]
    seconds: float


def assign(
    chain: Chain,
    profiles: Sequence[DeviceProfile],
    limits: Sequence[int | None],
    calls: Sequence[float],
    wanted: Sequence[int | None],
    stands_for: Mapping[int, int] | None = None,
) -> Assignment | None:
    """The best assignment within ``limits`` of bytes held, None where there is none; ``calls`` weigh the
    roles, ``wanted`` are the devices they should use where these are able to: for as many bytes as these have
    memory for. ``stands_for`` names the real device of those that are none."""
    program = _Program(chain, profiles, limits, calls, wanted, stands_for or {})
    best: Assignment | None = None
    for domains in program.domains():
        found = program.run(domains)
        if found is not None and (best is None or found.seconds < best.seconds):
            best = found
    return best


class _Program:
    def __init__(
        self,
        chain: Chain,
        profiles: Sequence[DeviceProfile],
        limits: Sequence[int | None],
        calls: Sequence[float],
        wanted: Sequence[int | None],
        stands_for: Mapping[int, int],
    ) -> None:
        self.chain, self.profiles, self.calls, self.wanted = chain, profiles, calls, wanted
        self.home = [stands_for.get(d, d) for d in range(len(profiles))]
        """The real device of each."""
        self.real = [d for d in range(len(profiles)) if self.home[d] == d]
        self.devices = range(len(profiles))
        self.limited = [d for d in self.devices if limits[d] is not None]
        self.limits: Floats = np.array([limits[d] for d in self.limited], np.float64)
        self.buckets = max(2, round(_STATES ** (1 / max(1, len(self.limited)))))
        finite = [np.where(np.isfinite(unit.seconds), unit.seconds, 0.0) for unit in chain.units]
        self.longest = sum(float(times.max(axis=1) @ np.array(calls)) for times in finite) + 1.0
        self.options = [self._options(unit) for unit in chain.units]
        self.costs = [
            np.array([self._unit_seconds(unit, option) for option in options])
            for unit, options in zip(chain.units, self.options, strict=True)
        ]
        self.added = [
            np.array([self._unit_bytes(unit, option) for option in options]).reshape(len(options), -1)
            for unit, options in zip(chain.units, self.options, strict=True)
        ]
        self.moves = [np.zeros((1, len(self.options[0]))) if self.options else np.zeros((1, 1))]
        for number, (before, options) in enumerate(itertools.pairwise(self.options)):
            rows = [[self._move(number, one, other) for other in options] for one in before]
            self.moves.append(np.array(rows).reshape(len(before), len(options)))

    # Costs ----------------------------------------------------------------------------------------

    def _options(self, unit: Unit) -> list[Option]:
        """The choices of a unit's devices, by role."""
        choices: list[list[int]] = []
        for role, wanted in enumerate(self.wanted):
            able = [d for d in self.devices if np.isfinite(unit.seconds[role, d])]
            if not able:
                raise PlacementError(
                    "no device can have all dispatches that share a state: their pins name several"
                )
            forced = wanted is not None and wanted in able and wanted not in self.limited
            choices.append([wanted] if wanted is not None and forced else able)
        return list(itertools.product(*choices))

    def _unit_seconds(self, unit: Unit, option: Option) -> float:
        """Of a unit in a use of the model, states handed over between the roles' devices."""
        seconds = sum(c * unit.seconds[role, option[role]] for role, c in enumerate(self.calls))
        for role, wanted in enumerate(self.wanted):
            if wanted is not None and self._misses(unit, role, option[role], wanted):
                seconds += self._away(unit)
        homes = [self.home[device] for device in option]
        for other in set(homes[1:]) - {homes[0]} if unit.states else ():
            source, target = self.profiles[homes[0]], self.profiles[other]
            seconds += HANDED_OVER * transfer_seconds(unit.states, source, target)
        return float(seconds)

    def _misses(self, unit: Unit, role: int, device: int, wanted: int) -> bool:
        """Whether a unit is not on the device that a role wants, but could be. Programs may take turns there
        if no other device is faster."""
        seconds = unit.seconds[role]
        if device == wanted or not np.isfinite(seconds[wanted]):
            return False
        others = [seconds[d] for d in self.real if d != wanted]
        return self.home[device] != wanted or bool(seconds[device] > min(others, default=np.inf))

    def _away(self, unit: Unit) -> float:
        """Seconds that stand for a unit on another device than a role wants: more than any placement saves,
        and more for more bytes."""
        units = self.chain.units
        total = sum(other.constants + other.states for other in units) or 1
        return self.longest * (1 + len(units) * (unit.constants + unit.states) / total)

    def _unit_bytes(self, unit: Unit, option: Option) -> list[float]:
        """Bytes by limited device: all of a unit's devices hold what it holds."""
        return [float(self._bytes_on(unit, option, device)) for device in self.limited]

    def _bytes_on(self, unit: Unit, option: Option, device: int) -> int:
        states = unit.states if device not in option and device in {self.home[d] for d in option} else 0
        return unit.held(option, device) + states

    def _move(self, boundary: int, before: Option, option: Option) -> float:
        """Seconds of the handoffs behind a unit in a use of the model."""
        seconds = 0.0
        for role, (source, target) in enumerate(zip(before, option, strict=True)):
            if self.home[source] != self.home[target]:
                size = int(self.chain.live[boundary, role])
                delay = transfer_seconds(size, self.profiles[source], self.profiles[target])
                seconds += self.calls[role] * delay
        return seconds

    # Wide residents ---------------------------------------------------------------------------------

    def domains(self) -> Iterator[tuple[Option, ...]]:
        """The devices that each wide resident is on: of a state one for each role, of a constant any."""
        choices: list[list[Option]] = []
        for resident in self.chain.wide:
            if resident.is_state:
                # On several devices only where the caller wants them: it would move at every change.
                alike = [(d,) * len(self.calls) for d in self.real]
                wanted = {w for w in self.wanted if w is not None}
                any_of = list(itertools.product(self.real, repeat=len(self.calls)))
                choices.append(any_of if wanted else alike)
            else:
                sizes = range(1, min(2, len(self.real)) + 1)
                choices.append([c for size in sizes for c in itertools.combinations(self.real, size)])
        yield from itertools.product(*choices)

    def _keeps(self, unit: Unit, option: Option, domains: Sequence[Option]) -> bool:
        """Whether a unit finds the wide residents that it uses on its devices."""
        return all(
            self.home[option[role]] == domains[number][role]
            if self.chain.wide[number].is_state
            else self.home[option[role]] in domains[number]
            for role, numbers in unit.wide.items()
            for number in numbers
        )

    # The program ------------------------------------------------------------------------------------

    def run(self, domains: Sequence[Option]) -> Assignment | None:
        """The best assignment with the wide residents on those devices; None where none fits."""
        wide = [
            sum(r.bytes for r, devices in zip(self.chain.wide, domains, strict=True) if d in devices)
            for d in self.limited
        ]
        cost, used, last = np.zeros(1), np.array([wide], np.float64), np.zeros(1, np.int64)
        history: list[tuple[Ints, Ints]] = []
        for number, unit in enumerate(self.chain.units):
            kept_options = [i for i, o in enumerate(self.options[number]) if self._keeps(unit, o, domains)]
            parts = []
            for index in kept_options:
                after = used + self.added[number][index]
                rows = np.flatnonzero((after <= self.limits).all(axis=1))
                seconds = cost[rows] + self.moves[number][last[rows], index] + self.costs[number][index]
                parts.append((seconds, after[rows], rows, np.full(len(rows), index)))
            if not sum(len(part[0]) for part in parts):
                return None
            cost, used, rows, last = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            kept = self._pruned(cost, used, last)
            cost, used, last = cost[kept], used[kept], last[kept]
            history.append((rows[kept], last))
        row = int(np.argmin(cost))
        seconds, chosen = float(cost[row]), []
        for options, (parents, indices) in zip(reversed(self.options), reversed(history), strict=True):
            chosen.append(options[indices[row]])
            row = int(parents[row])
        chosen.reverse()
        return Assignment(tuple(chosen), self._held(chosen, domains), seconds)

    def _pruned(self, cost: Floats, used: Floats, last: Ints) -> Ints:
        """The rows to keep of each last option: those that are cheaper than all that use no more, of several
        in a range of bytes the cheapest."""
        one = len(self.limited) <= 1
        kept = _undominated(cost, used.sum(axis=1), last) if one else np.arange(len(cost))
        if len(kept) <= _STATES or not self.limited:
            return kept
        scale = self.buckets / np.maximum(self.limits, 1.0)
        parts = np.minimum(self.buckets - 1, (used[kept] * scale).astype(np.int64))
        group = last[kept]
        for column in range(len(self.limited)):
            group = group * self.buckets + parts[:, column]
        order = np.lexsort((cost[kept], group))
        first = np.r_[True, group[order][1:] != group[order][:-1]]
        # The one with the fewest bytes stays, so that a placement that fits is found where there is one.
        total = used[kept].sum(axis=1)
        by_bytes = np.lexsort((total, last[kept]))
        smallest = by_bytes[np.r_[True, last[kept][by_bytes][1:] != last[kept][by_bytes][:-1]]]
        remaining: Ints = kept[np.unique(np.r_[order[first], smallest])]
        return remaining

    def _held(self, chosen: Sequence[Option], domains: Sequence[Option]) -> tuple[int, ...]:
        held = [0] * len(self.devices)
        for unit, option in zip(self.chain.units, chosen, strict=True):
            for device in self.real:
                held[device] += self._bytes_on(unit, option, device)
        for resident, devices in zip(self.chain.wide, domains, strict=True):
            for device in set(devices):
                held[device] += resident.bytes
        return tuple(held)


def _undominated(cost: Floats, used: Floats, last: Ints) -> Ints:
    """The rows that no other with the same last option beats in cost and bytes."""
    order = np.lexsort((cost, used, last))
    # Options one after the other, each so much below the one before that their minima do not meet.
    lowered = cost[order] - last[order] * (2 * float(cost.max()) + 1)
    lowest = np.minimum.accumulate(lowered)
    kept: Ints = order[np.r_[True, lowered[1:] < lowest[:-1]]]
    return kept
