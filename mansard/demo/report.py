"""The demo's result as tables, text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mansard.demo.run import Result
from mansard.plan.plan import Decision

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

SHOWN_DECISIONS = 8


def as_json(result: Result) -> dict[str, Any]:
    """The JSON value of ``mansard demo --json``."""
    return {
        "max_rel_error": result.max_rel_error,
        "latency_ms": result.latency_ms,
        "torch_latency_ms": result.torch_latency_ms,
        "compile_s": result.compile_s,
        "devices": result.devices,
        "sentences": list(result.sentences),
        "similarity": result.similarity.tolist(),
        "notes": list(result.notes),
    }


def similarity_table(result: Result) -> Table:
    """Sentences with their cosine similarities; the closest other sentence in bold."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", justify="right")
    table.add_column("sentence", overflow="fold", max_width=60)
    for number in range(1, len(result.sentences) + 1):
        table.add_column(str(number), justify="right")
    for row, sentence in enumerate(result.sentences):
        scores = result.similarity[row].tolist()
        others = [score for column, score in enumerate(scores) if column != row]
        cells = [
            Text(f"{score:.2f}", "bold" if column != row and score == max(others) else "")
            for column, score in enumerate(scores)
        ]
        table.add_row(str(row + 1), Text(sentence), *cells)
    return table


def costliest(result: Result) -> list[Decision]:
    """The dispatches with the largest predicted times, largest first."""
    return sorted(result.decisions, key=_predicted, reverse=True)[:SHOWN_DECISIONS]


def decisions_table(result: Result) -> Table:
    """The costliest dispatches: where they run and why."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("dispatch", "ops", "device", "predicted", "why", "elsewhere"):
        right = title == "predicted"
        table.add_column(title, justify="right" if right else "left", overflow="fold", max_width=60)
    for row in costliest(result):
        others = [f"{name}: {_cost(cost)}" for name, cost in row.costs.items() if name != row.device]
        predicted = _cost(row.costs.get(row.device, ""))
        cells = (row.dispatch, row.ops, row.device, predicted, row.reason, "; ".join(others))
        table.add_row(*map(Text, cells))
    return table


def devices_table(result: Result) -> Table:
    """Dispatches and busy time by device."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("device")
    table.add_column("dispatches", justify="right")
    table.add_column("share", justify="right")
    table.add_column("busy", justify="right")
    total = sum(figures["dispatches"] for figures in result.devices.values()) or 1
    for name, figures in result.devices.items():
        share = f"{figures['dispatches'] / total:.0%}"
        table.add_row(name, str(figures["dispatches"]), share, f"{figures['busy_ms']:.3f} ms")
    return table


def summary(result: Result) -> str:
    """Times and the difference from PyTorch."""
    return (
        f"compiled in {result.compile_s:.1f} s; "
        f"{len(result.sentences)} sentences in {result.latency_ms:.2f} ms "
        f"(PyTorch on the CPU: {result.torch_latency_ms:.2f} ms)\n"
        f"largest difference from PyTorch: {result.max_rel_error:.2e} of the largest value"
    )


def renderables(result: Result) -> list[RenderableType]:
    """Everything to print, in order."""
    shown, total = len(costliest(result)), len(result.decisions)
    parts: tuple[tuple[str, RenderableType], ...] = (
        ("Similarity (cosine)", similarity_table(result)),
        (f"What runs where: the {shown} costliest of {total} dispatches", decisions_table(result)),
        ("Devices, in one call", devices_table(result)),
    )
    lines: list[RenderableType] = list(result.notes)
    for title, table in parts:
        lines += ["", title, table]
    return [*lines, "", summary(result)]


def _predicted(row: Decision) -> float:
    cost = row.costs.get(row.device)
    return float(cost) if isinstance(cost, (int, float)) else 0.0


def _cost(cost: float | str) -> str:
    return cost if isinstance(cost, str) else f"{cost:.3f} ms"
