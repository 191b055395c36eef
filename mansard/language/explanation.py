"""What a language model has on each device: layers, weights, caches, and the share of the time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.api.explanation import Explanation
from mansard.api.model import Model
from mansard.language.experts import ExpertPlacement
from mansard.plan.plan import Decision, Plan

_LAYER = re.compile(r"\blayers?\.(\d+)\.")


@dataclass(frozen=True)
class DevicePart:
    """What a device has of a model. Weights and states that several methods use count once.

    ``layers`` maps the number of each layer to the part of its weights that is on the device, by bytes;
    ``weights`` and ``states`` are bytes, ``time`` the predicted part of each method's time, by name.
    """

    device: str
    layers: Mapping[int, float]
    weights: int
    states: int
    time: Mapping[str, float]

    @property
    def layer_ranges(self) -> str:
        """Layers for people: ``0-12, 13 (part)``."""
        texts: list[str] = []
        for part, suffix in ((False, ""), (True, " (part)")):
            numbers = sorted(n for n, share in self.layers.items() if (share < 1) is part)
            texts += [f"{a if a == b else f'{a}-{b}'}{suffix}" for a, b in _runs(numbers)]
        return ", ".join(texts) or "none"


@dataclass(frozen=True)
class LanguageModelExplanation(Explanation):
    """The device of each dispatch of a decode step, with what each device has of the model in ``parts``."""

    parts: tuple[DevicePart, ...] = ()
    experts: ExpertPlacement | None = None
    """Where experts are that are divided between devices."""

    def __str__(self) -> str:
        methods = list(self.parts[0].time) if self.parts else []
        cells = [("device", "layers", "weights", "states", *(f"{name} time" for name in methods))]
        for part in self.parts:
            shares = [f"{part.time[name]:.0%}" for name in methods]
            sizes = [f"{size / 1e6:.1f} MB" for size in (part.weights, part.states)]
            cells.append((part.device, part.layer_ranges, *sizes, *shares))
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        experts = [] if self.experts is None else [str(self.experts)]
        return "\n".join([*lines, *experts, "", "A decode step:", super().__str__()])


def explain(model: Model, methods: Sequence[str] = ("prefill", "decode")) -> LanguageModelExplanation:
    """What a compiled language model has on each device, with the decisions on its decode step."""
    plans = {name: model.plan.methods[name] for name in methods}
    sizes = _held([model.plan, *model.plan.methods.values()])
    totals: dict[int, int] = {}
    for (_, layer, _), size in sizes.items():
        if layer is not None:
            totals[layer] = totals.get(layer, 0) + size
    parts = []
    for device in dict.fromkeys(d.name for plan in plans.values() for d in plan.devices):
        mine = {key: size for key, size in sizes.items() if key[0] == device}
        layers: dict[int, float] = {}
        for (_, layer, _), size in mine.items():
            if layer is not None:
                layers[layer] = layers.get(layer, 0.0) + size / totals[layer]
        states = _states([model.plan, *model.plan.methods.values()], device)
        time = {name: _share(plan.decisions, device) for name, plan in plans.items()}
        rounded = {n: 1.0 if share > 1 - 1e-9 else share for n, share in layers.items()}
        parts.append(DevicePart(device, rounded, sum(mine.values()), states, time))
    decode = model.method("decode").explain()
    return LanguageModelExplanation(
        decode.rows,
        decode.totals,
        decode.precision,
        decode.prediction,
        tuple(parts),
        ExpertPlacement.from_info(model.plan.info),
    )


def _held(plans: Sequence[Plan]) -> dict[tuple[str, int | None, str], int]:
    """Bytes of every weight, by device, layer and entry."""
    sizes: dict[tuple[str, int | None, str], int] = {}
    for plan in plans:
        for value in plan.values:
            if value.kind == "constant" and value.weight is not None and isinstance(value.bytes, int):
                weight = plan.weights[value.weight]
                layer = _LAYER.search(weight.source) or _LAYER.search(weight.entry)
                number = int(layer[1]) if layer else None
                sizes[plan.devices[value.device].name, number, weight.entry] = value.bytes
    return sizes


def _states(plans: Sequence[Plan], device: str) -> int:
    sizes = {}
    for plan in plans:
        values = {value.id: value for value in plan.values}
        for entry, _ in plan.states:
            state = values[entry]
            if plan.devices[state.device].name == device and isinstance(state.bytes, int):
                sizes[state.name] = state.bytes
    return sum(sizes.values())


def _share(decisions: Sequence[Decision], device: str) -> float:
    """A device's part of the predicted time of dispatches."""
    times: dict[str, float] = {}
    for row in decisions:
        cost = row.costs.get(row.device)
        times[row.device] = times.get(row.device, 0.0) + (cost if isinstance(cost, float) else 0.0)
    total = sum(times.values())
    return times.get(device, 0.0) / total if total else 0.0


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of consecutive numbers, first and last."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
