"""Placement: a device for every dispatch, with reasons."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mansard import dims
from mansard.artifact.plan import Decision
from mansard.errors import PlacementError
from mansard.ir.types import Value
from mansard.passes.dispatch import Dispatch, DispatchGraph
from mansard.placement.cost import Work, seconds, transfer_seconds, work_of
from mansard.targets.profile import DeviceProfile

OBJECTIVES = ("latency", "throughput")


@dataclass(frozen=True)
class Placement:
    """What the user wants of placement.

    ``pins`` are (pattern, device) pairs; the first pattern that matches a dispatch's name, ops or
    source location wins (shell wildcards). ``min_share`` is the least fraction of dispatches every
    device must get (used with ``objective="throughput"``, which it implies). ``fallback`` "cpu" runs
    on the CPU what the asked devices cannot, with the reason; "error" refuses.
    """

    objective: str = "latency"
    pins: tuple[tuple[str, str], ...] = ()
    min_share: float = 0.0
    fallback: str = "cpu"

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise PlacementError(f"objective {self.objective!r} is not one of {', '.join(OBJECTIVES)}")
        if self.fallback not in ("cpu", "error"):
            raise PlacementError(f'fallback {self.fallback!r} is not "cpu" or "error"')
        if not 0 <= self.min_share <= 0.5:
            raise PlacementError(f"min_share {self.min_share} is not between 0 and 0.5")


@dataclass(frozen=True)
class DeviceSlot:
    """A device to place on: its name, profile, and whether it can run a dispatch (None) or why not."""

    name: str
    profile: DeviceProfile
    refuses: Callable[[Dispatch], str | None]
    fallback: bool = False
    """Added only to run what the asked devices cannot."""


@dataclass(frozen=True)
class PlacementResult:
    """Device slot number of every dispatch, and the reasons."""

    device: Mapping[Dispatch, int]
    decisions: tuple[Decision, ...]
    reasons: Mapping[Dispatch, str] = field(default_factory=dict)


def place(graph: DispatchGraph, slots: Sequence[DeviceSlot], wish: Placement) -> PlacementResult:
    """Choose a device for every dispatch; raises PlacementError when one has none."""
    return _Placer(graph, slots, wish).run()


class _Placer:
    def __init__(self, graph: DispatchGraph, slots: Sequence[DeviceSlot], wish: Placement) -> None:
        self.graph, self.slots, self.wish = graph, slots, wish
        self.dispatches = graph.dispatches
        self.work: dict[Dispatch, Work] = {d: work_of(d) for d in self.dispatches}
        self.refusals = [{i: slot.refuses(d) for i, slot in enumerate(slots)} for d in self.dispatches]
        self.times = [[seconds(self.work[d], s.profile) for s in slots] for d in self.dispatches]
        self.pinned: dict[int, tuple[str, int]] = {}
        self.allowed = [self._allowed(n) for n in range(len(self.dispatches))]
        self.edges = self._edges()

    # Constraints ----------------------------------------------------------------------------
    def _allowed(self, number: int) -> list[int]:
        dispatch, refusals = self.dispatches[number], self.refusals[number]
        pin = self._pin(dispatch)
        if pin is not None:
            pattern, device = pin
            if refusals[device]:
                raise PlacementError(
                    f"dispatch {dispatch.name!r} is pinned to {self.slots[device].name!r} by {pattern!r}, "
                    f"which cannot run it: {refusals[device]}"
                )
            self.pinned[number] = (pattern, device)
            return [device]
        able = [i for i, reason in refusals.items() if reason is None]
        asked = [i for i in able if not self.slots[i].fallback]
        primary = [i for i, s in enumerate(self.slots) if s.name != "cpu" and not s.fallback]
        if self.wish.fallback == "error" and primary and not any(i in primary for i in able):
            raise PlacementError(self._refusal(dispatch, refusals, 'fallback="error" forbids the CPU'))
        if asked or able:
            return asked or able
        raise PlacementError(self._refusal(dispatch, refusals, "no device can run it"))

    def _refusal(self, dispatch: Dispatch, refusals: Mapping[int, str | None], why: str) -> str:
        where = f" (from {dispatch.location})" if dispatch.location else ""
        reasons = "; ".join(f"{self.slots[i].name}: {r}" for i, r in refusals.items() if r)
        return f"dispatch {dispatch.name!r} [{dispatch.summary}]{where}: {why}. {reasons}"

    def _pin(self, dispatch: Dispatch) -> tuple[str, int] | None:
        names = {slot.name: i for i, slot in enumerate(self.slots)}
        for pattern, device in self.wish.pins:
            if device not in names:
                raise PlacementError(f"pinned to {device!r}, but the devices are {', '.join(names)}")
            texts = (dispatch.name, dispatch.summary, dispatch.location)
            if any(fnmatch.fnmatch(text, pattern) for text in texts):
                return pattern, names[device]
        return None

    def _edges(self) -> list[tuple[int, int, int]]:
        """(producer, consumer, bytes) between dispatches."""
        producer: dict[Value, int] = {v: n for n, d in enumerate(self.dispatches) for v in d.outputs}
        return [
            (producer[v], n, dims.representative(v.type.bytes))
            for n, d in enumerate(self.dispatches)
            for v in d.inputs
            if v in producer
        ]

    # Choice ---------------------------------------------------------------------------------
    def run(self) -> PlacementResult:
        if len(self.slots) == 1 or not self.dispatches:
            labels = [self.allowed[n][0] for n in range(len(self.dispatches))]
        elif self.wish.min_share > 0 or self.wish.objective == "throughput":
            labels = self._stages()
        else:
            labels = self._latency()
        decisions = tuple(self._decision(n, labels) for n in range(len(self.dispatches)))
        device = {d: labels[n] for n, d in enumerate(self.dispatches)}
        return PlacementResult(
            device, decisions, {d: x.reason for d, x in zip(device, decisions, strict=True)}
        )

    def _total(self, labels: Sequence[int]) -> float:
        """Predicted time when everything runs in turn."""
        total = sum(self.times[n][label] for n, label in enumerate(labels))
        moved = set()
        for a, b, size in self.edges:
            if labels[a] != labels[b] and (a, labels[b]) not in moved:
                moved.add((a, labels[b]))
                total += transfer_seconds(size, self.slots[labels[a]].profile, self.slots[labels[b]].profile)
        return total

    def _latency(self) -> list[int]:
        """Local search from each single device: move runs of dispatches while the total falls."""
        best: list[int] | None = None
        for device in range(len(self.slots)):
            labels = [device if device in a else a[0] for a in self.allowed]
            labels = self._improve(labels)
            if best is None or self._total(labels) < self._total(best):
                best = labels
        assert best is not None
        return best

    def _improve(self, labels: list[int]) -> list[int]:
        neighbours: dict[int, list[tuple[int, int]]] = {}
        for a, b, size in self.edges:
            neighbours.setdefault(a, []).append((b, size))
            neighbours.setdefault(b, []).append((a, size))
        changed, rounds = True, 0
        while changed and rounds < 8:
            changed, rounds = False, rounds + 1
            for width in (1, 2, 4, 8, 16):
                for start in range(0, len(labels), max(1, width // 2)):
                    run = range(start, min(start + width, len(labels)))
                    for device in range(len(self.slots)):
                        if all(device in self.allowed[n] for n in run):
                            changed |= self._move(labels, run, device, neighbours)
        return labels

    def _move(
        self, labels: list[int], run: range, device: int, neighbours: Mapping[int, list[tuple[int, int]]]
    ) -> bool:
        def local() -> float:
            cost = sum(self.times[n][labels[n]] for n in run)
            for n in run:
                for other, size in neighbours.get(n, ()):
                    if labels[other] != labels[n]:
                        a, b = self.slots[labels[n]].profile, self.slots[labels[other]].profile
                        cost += transfer_seconds(size, a, b)
            return cost

        before, saved = local(), [labels[n] for n in run]
        if all(label == device for label in saved):
            return False
        for n in run:
            labels[n] = device
        if local() < before - 1e-12:
            return True
        for n, label in zip(run, saved, strict=True):
            labels[n] = label
        return False

    def _stages(self) -> list[int]:
        """Contiguous stages, one per device, with the least time in the slowest: for requests in flight."""
        count = len(self.dispatches)
        active = [i for i, s in enumerate(self.slots) if not s.fallback]
        least = max(1, -int(-self.wish.min_share * count // 1)) if self.wish.min_share else 0
        best: tuple[float, list[int]] | None = None
        for order in itertools.permutations(active):
            for cuts in _cuts(count, len(order), least):
                labels = self._label(order, cuts)
                if self.wish.min_share and any(labels.count(i) < self.wish.min_share * count for i in active):
                    continue
                cost = self._slowest(labels)
                if best is None or cost < best[0]:
                    best = (cost, labels)
        if best is None:
            raise PlacementError(
                f"min_share={self.wish.min_share} cannot be met: {count} dispatches on "
                f"{', '.join(self.slots[i].name for i in active)}, some of which not every device runs"
            )
        return best[1]

    def _label(self, order: Sequence[int], cuts: Sequence[int]) -> list[int]:
        labels = []
        for n in range(len(self.dispatches)):
            wanted = order[sum(n >= c for c in cuts)]
            labels.append(wanted if wanted in self.allowed[n] else self.allowed[n][0])
        return labels

    def _slowest(self, labels: Sequence[int]) -> float:
        busy = [0.0] * len(self.slots)
        for n, label in enumerate(labels):
            busy[label] += self.times[n][label]
        for a, b, size in self.edges:
            if labels[a] != labels[b]:
                moved = transfer_seconds(size, self.slots[labels[a]].profile, self.slots[labels[b]].profile)
                busy[labels[b]] += moved
        return max(busy)

    # Reasons --------------------------------------------------------------------------------
    def _decision(self, number: int, labels: Sequence[int]) -> Decision:
        dispatch, label = self.dispatches[number], labels[number]
        costs: dict[str, float | str] = {}
        for i, slot in enumerate(self.slots):
            refusal = self.refusals[number][i]
            costs[slot.name] = refusal if refusal else round(self.times[number][i] * 1e3, 6)
        work = self.work[dispatch]
        return Decision(
            dispatch=dispatch.name,
            ops=dispatch.summary,
            device=self.slots[label].name,
            reason=self._reason(number, label),
            costs=costs,
            bytes=work.bytes,
            operations=work.operations,
            location=dispatch.location,
        )

    def _reason(self, number: int, label: int) -> str:
        if number in self.pinned:
            return f"pinned by {self.pinned[number][0]!r}"
        if self.slots[label].fallback:
            refused = "; ".join(f"{self.slots[i].name}: {r}" for i, r in self.refusals[number].items() if r)
            return f"fallback: {refused}"
        if sum(not s.fallback for s in self.slots) == 1:
            return "only device asked for"
        able = [i for i, r in self.refusals[number].items() if r is None]
        if able == [label]:
            return "only device that supports it"
        fastest = min(able, key=lambda i: self.times[number][i])
        if fastest == label:
            return "fastest"
        if self.wish.min_share or self.wish.objective == "throughput":
            return "balances the devices' load"
        return f"kept with its neighbours: handing over costs more than {self.slots[fastest].name} saves"


def _cuts(count: int, stages: int, least: int) -> list[tuple[int, ...]]:
    """Cut positions of a chain of ``count`` into stages of at least ``least`` each."""
    step = 1 if stages <= 2 or count <= 64 else max(1, count // 64)
    points = range(least, count - least + 1, step)
    return [
        cuts
        for cuts in itertools.combinations_with_replacement(points, stages - 1)
        if all(b - a >= least for a, b in itertools.pairwise(cuts))
    ]
