"""`Model.explain`: the device of every dispatch, with the reason and the predicted costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mansard.plan.plan import Decision, Prediction


@dataclass(frozen=True)
class Explanation:
    """The device of each dispatch, and the reason. ``str()`` gives a table, with each dispatch's place in the
    user's model (module path, file and line) where that is known."""

    rows: tuple[Decision, ...]
    totals: Mapping[str, int]
    """Dispatches by device."""
    precision: str = "f32"
    """The ``precision`` the model was compiled with."""
    prediction: Prediction | None = None
    """What placement predicts for a call; None for artifacts written before predictions were stored."""

    def __str__(self) -> str:
        cells: list[tuple[str, ...]] = [("from", "dispatch", "device", "reason", "predicted")]
        for row in self.rows:
            costs = ", ".join(f"{name} {_cost(cost)}" for name, cost in row.costs.items())
            cells.append((row.location, row.dispatch, row.device, row.reason, costs))
        if not any(row.location for row in self.rows):
            cells = [row[1:] for row in cells]
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]) - 1)]
        lines = [
            "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[-1]])
            for row in cells
        ]
        counts = ", ".join(f"{name}: {count}" for name, count in self.totals.items())
        ends = [f"precision: {self.precision}", f"dispatches by device: {counts}"]
        if self.prediction is not None:
            ends.append(str(self.prediction))
        return "\n".join([*(line.rstrip() for line in lines), *ends])


def _cost(cost: float | str) -> str:
    return f"{cost:.3g} ms" if isinstance(cost, float) else cost
