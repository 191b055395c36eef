"""Placement: a device for every dispatch, with reasons."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.errors import PlacementError
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.placement.cost import Work, load_seconds, seconds, work_of
from mansard.placement.options import PlacementOptions
from mansard.placement.problem import PlacementProblem, build_problem
from mansard.placement.search.choose import SearchResult, choose
from mansard.placement.simulate import simulate
from mansard.plan.plan import Decision, Prediction
from mansard.targets.profile import DeviceProfile

NO_ROOM = "no room"
"""What a refusal for want of memory begins with (`mansard.placement.memory`)."""


@dataclass(frozen=True)
class DeviceSlot:
    """A device to place on: its name, profile, and whether it can run a dispatch (None) or why not."""

    name: str
    profile: DeviceProfile
    refuses: Callable[[Dispatch], str | None]
    fallback: bool = False
    """Added only to run what the asked devices cannot."""
    memory: int | None = None
    """Bytes of its own that a model may take; None for a device that uses the host's memory."""


@dataclass(frozen=True)
class PlacementResult:
    """Device slot number of every dispatch, and the reasons."""

    device: Mapping[Dispatch, int]
    decisions: tuple[Decision, ...]
    reasons: Mapping[Dispatch, str]
    problem: PlacementProblem
    search_result: SearchResult
    prediction: Prediction


def place(
    graph: DispatchGraph,
    slots: Sequence[DeviceSlot],
    options: PlacementOptions,
    fixed: Mapping[Dispatch, tuple[int, str]] | None = None,
) -> PlacementResult:
    """Choose a device for every dispatch; raises PlacementError when one has none. ``fixed`` are dispatches
    whose slot is chosen already, with the reason."""
    return _Placer(graph, slots, options, fixed or {}).run()


class _Placer:
    def __init__(
        self,
        graph: DispatchGraph,
        slots: Sequence[DeviceSlot],
        options: PlacementOptions,
        fixed: Mapping[Dispatch, tuple[int, str]],
    ) -> None:
        self.graph, self.slots, self.options, self.fixed = graph, slots, options, fixed
        self.dispatches = graph.dispatches
        self.work: dict[Dispatch, Work] = {d: work_of(d) for d in self.dispatches}
        self.refusals = [{i: slot.refuses(d) for i, slot in enumerate(slots)} for d in self.dispatches]
        self.times = [[seconds(self.work[d], s.profile) for s in slots] for d in self.dispatches]
        self.pinned: dict[int, tuple[str, int]] = {}
        self.colocated: dict[int, str] = {}
        self.limits = self._limits()
        self._check_pins()
        self.allowed = [self._allowed(n) for n in range(len(self.dispatches))]

    # Constraints ----------------------------------------------------------------------------
    def _allowed(self, number: int) -> list[int]:
        dispatch, refusals = self.dispatches[number], self.refusals[number]
        if dispatch in self.fixed:
            return [self.fixed[dispatch][0]]
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
        if self.options.fallback == "error" and primary and not any(i in primary for i in able):
            raise PlacementError(self._refusal(dispatch, refusals, 'fallback="error" forbids the CPU'))
        if asked and any(self.limits[i] is None for i in asked):
            return asked
        if able:  # what the devices asked for have no room for goes to the fallback
            return able
        raise PlacementError(self._refusal(dispatch, refusals, "no device can run it"))

    def _refusal(self, dispatch: Dispatch, refusals: Mapping[int, str | None], why: str) -> str:
        where = f" (from {dispatch.location})" if dispatch.location else ""
        reasons = "; ".join(f"{self.slots[i].name}: {r}" for i, r in refusals.items() if r)
        return f"dispatch {dispatch.name!r} [{dispatch.summary}]{where}: {why}. {reasons}"

    def _pin(self, dispatch: Dispatch) -> tuple[str, int] | None:
        names = {slot.name: i for i, slot in enumerate(self.slots)}
        for pattern, device in self.options.pins:
            if device not in names:
                raise PlacementError(f"pinned to {device!r}, but the devices are {', '.join(names)}")
            if _matches(dispatch, pattern):
                return pattern, names[device]
        return None

    def _check_pins(self) -> None:
        """A pattern that matches nothing is a slip: what it was to pin would go anywhere."""
        for pattern, device in self.options.pins:
            if not any(_matches(dispatch, pattern) for dispatch in self.dispatches):
                some = ", ".join(dispatch.name for dispatch in self.dispatches[:4])
                raise PlacementError(
                    f"no dispatch matches {pattern!r}, to be pinned to {device!r}; there are {some} ..."
                )

    def _colocated(self) -> list[list[int]]:
        """The groups of dispatches that the options co-locate."""
        groups = []
        for pattern in self.options.colocate:
            group = [n for n, dispatch in enumerate(self.dispatches) if _matches(dispatch, pattern)]
            if not group:
                raise PlacementError(f"no dispatch matches {pattern!r}, which is to be co-located")
            if not set.intersection(*(set(self.allowed[n]) for n in group)):
                raise PlacementError(
                    f"the {len(group)} dispatches that match {pattern!r} are to be co-located, but no "
                    f"device may run all of them: {', '.join(self.dispatches[n].name for n in group[:8])}"
                )
            groups.append(group)
            self.colocated.update(dict.fromkeys(group, pattern))
        return groups

    # Choice ---------------------------------------------------------------------------------
    def run(self) -> PlacementResult:
        problem = self._problem()
        try:
            chosen = choose(problem, self._objective(), self.options.search_seconds)
        except PlacementError as error:
            raise PlacementError(f"{error}{self._bounds(problem)}") from None
        labels = chosen.labels
        decisions = tuple(self._decision(n, labels) for n in range(len(self.dispatches)))
        device = {d: labels[n] for n, d in enumerate(self.dispatches)}
        reasons = {d: x.reason for d, x in zip(device, decisions, strict=True)}
        prediction = _prediction(problem, chosen, self._objective())
        return PlacementResult(device, decisions, reasons, problem, chosen, prediction)

    def _bounds(self, problem: PlacementProblem) -> str:
        """What a placement had to keep to, for the message that there is none."""
        names = [slot.name for slot in self.slots]
        limits = [
            f"{name} takes {limit / 1e6:.4g} MB of the weights"
            for name, limit in zip(names, problem.limits, strict=True)
            if limit is not None
        ]
        shares = [
            f"{name} {least}" for name, least in zip(names, problem.min_dispatches, strict=True) if least
        ]
        least = [f"of {len(self.dispatches)} dispatches at least {', '.join(shares)}"] if shares else []
        pinned = [f"{len(self.pinned)} dispatches are pinned"] if self.pinned else []
        return "".join(f"; {text}" for text in [*limits, *least, *pinned])

    def _objective(self) -> str:
        return "throughput" if self.options.min_share > 0 else self.options.objective

    def _limits(self) -> list[int | None]:
        """The bytes of constants each device takes at most; None where all of the model's fit."""
        requested = dict(self.options.memory)
        names = [slot.name for slot in self.slots]
        for name in requested:
            if name not in names:
                raise PlacementError(f"a memory limit for {name!r}, but the devices are {', '.join(names)}")
        read = {v for d in self.dispatches for v in d.inputs if v in self.graph.graph.constants}
        whole = sum(dims.representative(v.type.bytes) for v in read)
        limits = [requested.get(slot.name, slot.memory) for slot in self.slots]
        return [None if limit is None or limit >= whole else limit for limit in limits]

    def _problem(self) -> PlacementProblem:
        active = [i for i, s in enumerate(self.slots) if not s.fallback]
        names = [slot.name for slot in self.slots]
        share = math.ceil(self.options.min_share * len(self.dispatches) - 1e-9)
        for device in active if share else ():
            able = sum(device in allowed for allowed in self.allowed)
            if able < share:
                raise PlacementError(
                    f"min_share={self.options.min_share} cannot be met: {share} dispatches must be on "
                    f"{names[device]}, which can run {able}"
                )
        return build_problem(
            self.graph,
            self.times,
            self.allowed,
            [slot.profile for slot in self.slots],
            self.limits,
            [share if i in active else 0 for i in range(len(self.slots))],
            self._colocated(),
            self._loads(),
        )

    def _loads(self) -> list[list[float]]:
        return [
            [load_seconds(self.work[d], s.profile, took) for s, took in zip(self.slots, times, strict=True)]
            for d, times in zip(self.dispatches, self.times, strict=True)
        ]

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
            dtype=work.dtype,
            beside=work.beside,
            depth=work.depth,
            kind=work.kind,
        )

    def _reason(self, number: int, label: int) -> str:
        if self.dispatches[number] in self.fixed:
            return self.fixed[self.dispatches[number]][1]
        if number in self.pinned:
            return f"pinned by {self.pinned[number][0]!r}"
        if self.slots[label].fallback:
            refused = [f"{self.slots[i].name}: {r}" for i, r in self.refusals[number].items() if r]
            full = [self._full(i) for i, r in self.refusals[number].items() if not r and i != label]
            return f"fallback: {'; '.join([*refused, *full])}"
        if sum(not s.fallback for s in self.slots) == 1:
            return "only device asked for"
        able = [i for i, r in self.refusals[number].items() if r is None]
        if able == [label]:
            rooms = [f"{self.slots[i].name}: {r}" for i, r in self.refusals[number].items() if r]
            short = [text for text in rooms if f": {NO_ROOM}" in text]
            return "; ".join(short) or "only device that supports it"
        fastest = min(able, key=lambda i: self.times[number][i])
        if fastest == label:
            return "fastest"
        if self.limits[fastest] is not None:
            return self._full(fastest)
        if number in self.colocated:
            return f"co-located by {self.colocated[number]!r}"
        if self.options.min_share or self.options.objective == "throughput":
            return "balances the devices' load"
        return f"kept with its neighbours: handing over costs more than {self.slots[fastest].name} saves"

    def _full(self, device: int) -> str:
        """That a device does not take all that it could run."""
        limit = self.limits[device]
        assert limit is not None
        return f"{self.slots[device].name} takes {limit / 1e6:.4g} MB of weights, less than there are"


def _matches(dispatch: Dispatch, pattern: str) -> bool:
    texts = (dispatch.name, dispatch.summary, dispatch.location)
    return any(fnmatch.fnmatch(text, pattern) for text in texts)


def _prediction(problem: PlacementProblem, chosen: SearchResult, objective: str) -> Prediction:
    """What the plan keeps of a choice."""
    run = simulate(problem, chosen.labels)
    latency, cost, bound = (round(s * 1e3, 6) for s in (run.seconds, chosen.cost, chosen.bound))
    begins = {span.dispatch: round(span.start * 1e3, 6) for span in run.spans if span.dispatch is not None}
    starts = tuple(begins[n] for n in range(len(chosen.labels)))
    return Prediction(latency, objective, cost, bound, chosen.method, run.copied_bytes, starts)
