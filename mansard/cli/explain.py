"""``mansard explain``: which dispatch runs where, and why."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.artifact.plan import Decision
from mansard.cli.models import ArtifactArgument
from mansard.cli.output import JsonOption, Output, milliseconds, si

if TYPE_CHECKING:
    from rich.table import Table

    from mansard.artifact.plan import Plan


def explain(
    artifact: ArtifactArgument,
    op: Annotated[
        str | None,
        typer.Option(
            "--op", metavar="PATTERN", help="Only dispatches whose name or ops match, as in 'contraction*'."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show where every dispatch of a compiled model runs and why; no device is opened."""
    from mansard.artifact.resources import read_artifact

    with Output(as_json) as out:
        plan, resources = read_artifact(artifact, verify="code")
        resources.close()
        rows = select(plan.decisions, op)
        out.show(decision_table(rows))
        out.show("")
        out.show(totals_table(rows))
        precision = plan.info.get("precision", "f32")
        out.show(f"precision: {precision}")
        found = variants(plan)
        for line in variant_lines(found):
            out.show(line)
        decisions = [describe(row) for row in rows]
        out.result(
            {"decisions": decisions, "devices": totals(rows), "precision": precision, "variants": found}
        )


def variants(plan: Plan) -> list[dict[str, Any]]:
    """The variants of a model, the best first: which this machine runs and why, what it lacks for others."""
    if not plan.variants:
        return []
    from mansard.runtime.variants import chosen_of, verdicts

    found = verdicts(plan)
    chosen = chosen_of(found)
    return [
        {
            "target": v.target,
            "chosen": v is chosen,
            "refusal": v.refusal,
            "reason": "" if v is not chosen else f"made for {v.meant}" if v.meant else "the first that runs",
        }
        for v in found
    ]


def variant_lines(found: Sequence[dict[str, Any]]) -> list[str]:
    """`variants` for people."""
    lines = []
    for row in found:
        state = f"chosen here: {row['reason']}" if row["chosen"] else row["refusal"] or "runs here too"
        lines.append(f"variant {row['target']}: {state}")
    return lines


def select(rows: Sequence[Decision], pattern: str | None) -> list[Decision]:
    """The rows whose dispatch name or ops match a shell pattern; a plain word matches anywhere."""
    if pattern is None:
        return list(rows)
    if not any(sign in pattern for sign in "*?["):
        pattern = f"*{pattern}*"
    return [row for row in rows if any(fnmatch.fnmatch(text, pattern) for text in (row.dispatch, row.ops))]


def describe(row: Decision) -> dict[str, Any]:
    """A decision as the JSON output has it; sizes that depend on a dim are texts."""
    values = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    return {
        **values,
        "costs": dict(row.costs),
        "bytes": _size(row.bytes),
        "operations": _size(row.operations),
    }


def totals(rows: Sequence[Decision]) -> dict[str, dict[str, Any]]:
    """By device: dispatches, and predicted milliseconds as far as they were predicted."""
    result: dict[str, dict[str, Any]] = {}
    for row in rows:
        figures = result.setdefault(row.device, {"dispatches": 0, "predicted_ms": 0.0})
        figures["dispatches"] += 1
        cost = row.costs.get(row.device)
        if isinstance(cost, (int, float)):
            figures["predicted_ms"] += float(cost)
    return result


def totals_table(rows: Sequence[Decision]) -> Table:
    """`totals` for people."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("device")
    table.add_column("dispatches", justify="right")
    table.add_column("predicted", justify="right")
    for name, figures in totals(rows).items():
        table.add_row(name, str(figures["dispatches"]), milliseconds(figures["predicted_ms"]))
    return table


def decision_table(rows: Sequence[Decision]) -> Table:
    """One line per dispatch."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("dispatch", "ops", "device", "why", "elsewhere", "bytes", "operations"):
        right = title in ("bytes", "operations")
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    for row in rows:
        cells = (row.dispatch, row.ops, row.device, _why(row), _elsewhere(row))
        table.add_row(*map(Text, cells), _amount(row.bytes, "B"), _amount(row.operations, ""))
    return table


def _why(row: Decision) -> str:
    cost = row.costs.get(row.device)
    return f"{row.reason} ({milliseconds(cost)})" if isinstance(cost, (int, float)) else row.reason


def _elsewhere(row: Decision) -> str:
    others = []
    for device, cost in row.costs.items():
        if device != row.device:
            text = cost if isinstance(cost, str) else milliseconds(cost)
            others.append(f"{device}: {text}")
    return "; ".join(others)


def _size(value: Any) -> int | str:
    return value if isinstance(value, int) else str(value)


def _amount(value: Any, unit: str) -> str:
    return si(value, unit) if isinstance(value, int) else str(value)
