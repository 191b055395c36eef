"""The decisions of placement by dispatch, by region and by device, with the transfers between devices."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mansard import dims
from mansard.plan.dataflow import dataflow, dispatch_parents

if TYPE_CHECKING:
    from mansard.plan.plan import Decision, Plan


@dataclass(frozen=True)
class Decided:
    """A dispatch with its decision; sizes are for representative values of the dims."""

    number: int
    """Its position in the model's order."""
    decision: Decision
    moved_bytes: int
    """Bytes transferred from other devices for it: each value counts for its first reader."""
    parents: tuple[int, ...]
    """The dispatches whose results it reads."""
    start_ms: float | None = None
    """When it starts in a call, by the cost model."""

    @property
    def predicted_ms(self) -> float | None:
        """Milliseconds on its device, by the cost model."""
        cost = self.decision.costs.get(self.decision.device)
        return float(cost) if isinstance(cost, (int, float)) else None


@dataclass(frozen=True)
class DecisionGroup:
    """Consecutive dispatches on one device."""

    number: int
    rows: tuple[Decided, ...]

    @property
    def device(self) -> str:
        """The device of all of them."""
        return self.rows[0].decision.device


def decided(plan: Plan) -> list[Decided]:
    """The dispatches of a plan in the model's order."""
    numbers = {decision.dispatch: n for n, decision in enumerate(plan.decisions)}
    nodes = dataflow(plan)
    parents = dispatch_parents(nodes)
    counted: set[int] = set()
    moved: Counter[str] = Counter()
    before: dict[str, tuple[int, ...]] = {}
    for number, behind in parents.items():
        label = nodes[number].label
        before[label] = tuple(numbers[nodes[p].label] for p in behind if nodes[p].label in numbers)
        for parent in nodes[number].parents:
            if nodes[parent].kind == "transfer" and parent not in counted:
                counted.add(parent)
                moved[label] += dims.representative(nodes[parent].bytes)
    starts = plan.prediction.starts_ms if plan.prediction else ()
    return [
        Decided(
            n,
            decision,
            moved[decision.dispatch],
            before.get(decision.dispatch, ()),
            starts[n] if n < len(starts) else None,
        )
        for n, decision in enumerate(plan.decisions)
    ]


def regions(rows: Sequence[Decided]) -> list[DecisionGroup]:
    """Maximal runs of consecutive dispatches on one device."""
    runs = itertools.groupby(rows, key=lambda row: row.decision.device)
    return [DecisionGroup(number, tuple(run)) for number, (_, run) in enumerate(runs)]


def totals(rows: Sequence[Decided]) -> dict[str, dict[str, Any]]:
    """By device: dispatches, predicted milliseconds of those with a prediction, bytes that dispatches read
    and write, operations, and bytes transferred from other devices."""
    result: dict[str, dict[str, Any]] = {}
    for row in rows:
        empty = {"dispatches": 0, "predicted_ms": 0.0, "bytes": 0, "operations": 0, "moved_bytes": 0}
        figures = result.setdefault(row.decision.device, empty)
        figures["dispatches"] += 1
        figures["predicted_ms"] += row.predicted_ms or 0.0
        figures["bytes"] += dims.representative(row.decision.bytes)
        figures["operations"] += dims.representative(row.decision.operations)
        figures["moved_bytes"] += row.moved_bytes
    return result


def describe_region(region: DecisionGroup) -> dict[str, Any]:
    """A region as in the JSON output.

    ``why`` counts reasons; ``elsewhere`` has for every other device the predicted milliseconds, or how many
    dispatches it refuses and the first refusal.
    """
    (figures,) = totals(region.rows).values()
    names = dict.fromkeys(name for row in region.rows for name in row.decision.costs)
    return {
        "region": region.number,
        "device": region.device,
        "first": region.rows[0].decision.dispatch,
        "last": region.rows[-1].decision.dispatch,
        **figures,
        "why": dict(Counter(row.decision.reason for row in region.rows)),
        "elsewhere": {name: _elsewhere(region, name) for name in names if name != region.device},
    }


def _elsewhere(region: DecisionGroup, name: str) -> float | str:
    costs = [row.decision.costs.get(name) for row in region.rows]
    refusals = [cost for cost in costs if isinstance(cost, str)]
    if refusals:
        return f"refuses {len(refusals)} of {len(costs)}: {refusals[0]}"
    return sum(cost for cost in costs if isinstance(cost, (int, float)))


def describe_prediction(plan: Plan) -> dict[str, Any] | None:
    """The prediction of placement for a call; None in plans written before it was recorded."""
    prediction = plan.prediction
    if prediction is None:
        return None
    return {
        "latency_ms": prediction.latency_ms,
        "objective": prediction.objective,
        "cost_ms": prediction.cost_ms,
        "bound_ms": prediction.bound_ms,
        "gap": prediction.gap,
        "method": prediction.method,
        "copied_bytes": prediction.copied_bytes,
        "loaded_bytes": prediction.loaded_bytes,
        "rejected": [dataclasses.asdict(each) for each in prediction.rejected],
    }


def prediction_line(plan: Plan) -> str:
    """The prediction of placement for a call, as text."""
    prediction = plan.prediction
    return (
        "predicted: not recorded in this artifact; compile it again"
        if prediction is None
        else str(prediction)
    )
