"""``mansard explain``: which dispatch runs where, and why."""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.cli.crossings import by_pair, crossings
from mansard.cli.decisions import (
    Decided,
    DecisionGroup,
    decided,
    describe_prediction,
    describe_region,
    prediction_line,
    regions,
    totals,
)
from mansard.cli.html.report import write_page
from mansard.cli.models import ArtifactArgument
from mansard.cli.output import JsonOption, Output, milliseconds, si
from mansard.cli.timeline import read_timeline
from mansard.plan.plan import Decision

if TYPE_CHECKING:
    from rich.table import Table

    from mansard.plan.plan import Plan


class By(enum.StrEnum):
    """What a row of the table stands for."""

    DISPATCH = "dispatch"
    REGION = "region"


def explain(
    artifact: ArtifactArgument,
    op: Annotated[
        str | None,
        typer.Option(
            "--op", metavar="PATTERN", help="Only dispatches whose name or ops match, as in 'contraction*'."
        ),
    ] = None,
    by: Annotated[
        By,
        typer.Option("--by", help="A row per dispatch, or per run of consecutive dispatches on one device."),
    ] = By.DISPATCH,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write an HTML page with the graph coloured by device."),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            "--timeline",
            metavar="JSON",
            help="A measured call for the page: the output of `mansard bench --timeline --json`.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show where every dispatch of a compiled model runs and why; no device is opened."""
    from mansard.artifact.resources import read_artifact

    with Output(as_json) as out:
        plan, resources = read_artifact(artifact, verify="code")
        resources.close()
        every = decided(plan)
        kept = {decision.dispatch for decision in select(plan.decisions, op)}
        if op is not None and not kept:
            raise typer.BadParameter(f"no dispatch has a name or ops that match {op!r}")
        rows = [row for row in every if row.decision.dispatch in kept]
        found_regions = [
            region for region in regions(every) if any(row.decision.dispatch in kept for row in region.rows)
        ]
        out.show(decision_table(rows) if by is By.DISPATCH else region_table(found_regions))
        out.show("")
        out.show(totals_table(rows))
        crossing = crossings(plan)
        if crossing:
            out.show("")
            out.show(crossings_table(crossing))
            out.show("")
        prediction = describe_prediction(plan)
        out.show(prediction_line(plan))
        precision = plan.info.get("precision", "f32")
        out.show(f"precision: {precision}")
        calibrated = plan.info.get("calibrated", "")
        if calibrated:
            out.show(f"placed by calibrated figures: {calibrated}")
        plan_variants = variants(plan)
        for line in variant_lines(plan_variants):
            out.show(line)
        if html is not None:
            write_page(html, plan, None if timeline is None else read_timeline(timeline))
            out.show(f"{html}: {len(every)} dispatches")
        elif timeline is not None:
            raise typer.BadParameter("--timeline is for the page that --html writes")
        out.result(
            {
                "decisions": [describe(row) for row in rows],
                "regions": [describe_region(region) for region in found_regions],
                "devices": totals(rows),
                "crossings": crossing,
                "prediction": prediction,
                "precision": precision,
                "calibrated": calibrated,
                "variants": plan_variants,
            }
        )


def variants(plan: Plan) -> list[dict[str, Any]]:
    """The variants of a model, best first: which one this machine runs and why, and what it lacks for the
    others."""
    if not plan.variants:
        return []
    from mansard.runtime.devices.variants import best_variant, check_variants

    checks = check_variants(plan)
    chosen = best_variant(checks)
    return [
        {
            "target": v.target,
            "chosen": v is chosen,
            "refusal": v.refusal,
            "reason": ""
            if v is not chosen
            else f"made for {v.made_for}"
            if v.made_for
            else "the first that runs",
        }
        for v in checks
    ]


def variant_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """`variants` as text."""
    lines = []
    for row in rows:
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


def describe(row: Decided) -> dict[str, Any]:
    """A decision as in the JSON output; sizes that depend on a dim are strings."""
    decision = row.decision
    values = {field.name: getattr(decision, field.name) for field in dataclasses.fields(decision)}
    return {
        **values,
        "costs": dict(decision.costs),
        "bytes": _size(decision.bytes),
        "operations": _size(decision.operations),
        "predicted_ms": row.predicted_ms,
        "predicted_start_ms": row.start_ms,
        "moved_bytes": row.moved_bytes,
    }


def totals_table(rows: Sequence[Decided]) -> Table:
    """`totals` as a table."""
    table = _table("device", "dispatches", "predicted", "bytes", "operations", "from other devices")
    for name, figures in totals(rows).items():
        cells = (name, str(figures["dispatches"]), milliseconds(figures["predicted_ms"]))
        sizes = (figures["bytes"], figures["operations"], figures["moved_bytes"])
        table.add_row(*cells, si(sizes[0], "B"), si(sizes[1], ""), si(sizes[2], "B"))
    return table


def crossings_table(rows: list[dict[str, Any]]) -> Table:
    """`by_pair` as a table."""
    table = _table("from", "to", "values", "bytes", right=("values", "bytes"))
    for (source, target), (count, size) in by_pair(rows).items():
        table.add_row(source, target, str(count), si(size, "B"))
    return table


def region_table(regions: Sequence[DecisionGroup]) -> Table:
    """One row per region."""
    from rich.text import Text

    right = ("region", "dispatches", "predicted", "bytes", "moved")
    titles = ("region", "device", "dispatches", "from", "to", "why", "elsewhere", *right[2:])
    table = _table(*titles, right=right)
    for region in regions:
        row = describe_region(region)
        why = "; ".join(f"{reason} ({count})" for reason, count in row["why"].items())
        others = (f"{name}: {_cost(cost)}" for name, cost in row["elsewhere"].items())
        cells = (str(row["region"]), row["device"], str(row["dispatches"]), row["first"], row["last"], why)
        sizes = (si(row["bytes"], "B"), si(row["moved_bytes"], "B"))
        table.add_row(*map(Text, cells), Text("; ".join(others)), milliseconds(row["predicted_ms"]), *sizes)
    return table


def decision_table(rows: Sequence[Decided]) -> Table:
    """One row per dispatch."""
    from rich.text import Text

    right = ("bytes", "moved", "operations")
    table = _table("dispatch", "ops", "device", "why", "elsewhere", *right, right=right)
    for row in rows:
        decision = row.decision
        cells = (decision.dispatch, decision.ops, decision.device, _why(decision), _elsewhere(decision))
        moved = si(row.moved_bytes, "B") if row.moved_bytes else ""
        table.add_row(
            *map(Text, cells), _amount(decision.bytes, "B"), moved, _amount(decision.operations, "")
        )
    return table


def _table(*titles: str, right: Sequence[str] | None = None) -> Table:
    """An empty table; ``right`` names the right-aligned columns, by default all but the first."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    numbers = titles[1:] if right is None else right
    for title in titles:
        table.add_column(title, justify="right" if title in numbers else "left", overflow="fold")
    return table


def _why(row: Decision) -> str:
    cost = row.costs.get(row.device)
    return f"{row.reason} ({milliseconds(cost)})" if isinstance(cost, (int, float)) else row.reason


def _elsewhere(row: Decision) -> str:
    others = []
    for device, cost in row.costs.items():
        if device != row.device:
            others.append(f"{device}: {_cost(cost)}")
    return "; ".join(others)


def _cost(cost: float | str) -> str:
    return cost if isinstance(cost, str) else milliseconds(cost)


def _size(value: Any) -> int | str:
    return value if isinstance(value, int) else str(value)


def _amount(value: Any, unit: str) -> str:
    return si(value, unit) if isinstance(value, int) else str(value)
