"""One self-contained page about a model: its dispatches in order, coloured by device, and a measured call.

The page loads nothing: style, script and drawings are inline.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mansard import dims
from mansard.cli.decisions import Decided, decided, prediction_line, totals
from mansard.cli.html.style import COLOURS, SCRIPT, STYLE
from mansard.cli.output import milliseconds, si
from mansard.cli.timeline import each_request, expectation, headline, lockstep_line

if TYPE_CHECKING:
    from mansard.plan.plan import Plan

ROW = 22
"""Height of a dispatch's row in pixels; the style sheet has the same figure."""
LANE = 26
"""Pixels between the devices' columns of nodes."""
TRACK = 18
"""Height of a row of commands on the timeline in pixels."""
TICKS = 10
SLACK_US = 0.01
"""Commands that overlap by less (from rounded times) are drawn as sequential."""


def write_page(path: Path, plan: Plan, timeline: Mapping[str, Any] | None = None) -> None:
    """Write `page` to a file; raises typer.BadParameter when it cannot be written."""
    try:
        path.write_text(page(plan, timeline), encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise typer.BadParameter(f"{path} cannot be written: {reason}") from None


def page(plan: Plan, timeline: Mapping[str, Any] | None = None) -> str:
    """The page as HTML; ``timeline`` is a measured call as `Profile.timeline` returns it."""
    rows = decided(plan)
    names = [device.name for device in plan.devices] + [row.decision.device for row in rows]
    names += list(timeline["devices"]) if timeline else []
    colours = {name: COLOURS[n % len(COLOURS)] for n, name in enumerate(dict.fromkeys(names))}
    title = f"{plan.name}: {len(rows)} dispatches"
    parts = [
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>",
        f"<p>{escape(prediction_line(plan))}</p>",
        _totals(rows, colours),
        *_predicted(rows, colours),
        *(_timeline(timeline, colours) if timeline else ()),
        "<h2>Dispatches</h2>",
        _slider("graph", "zoom", -2, 1),
        '<div class="scroll"><div class="graph" id="graph">',
        _graph(rows, colours),
        _rows(rows, colours),
        f'</div></div><div id="tip"></div><script>{SCRIPT}</script></body></html>\n',
    ]
    return "\n".join(parts)


def _slider(target: str, how: str, lower: int, upper: int) -> str:
    return (
        f'<div class="bar"><label>zoom <input type="range" min="{lower}" max="{upper}" step="0.1" value="0" '
        f'data-zooms="{target}" data-how="{how}"></label><span>hover for details, click to find the same '
        "dispatch elsewhere on the page</span></div>"
    )


def _chip(device: str, colours: Mapping[str, str]) -> str:
    return f'<span class="chip" style="background:{colours[device]}"></span>{escape(device)}'


# The graph ----------------------------------------------------------------------------------------


def _totals(rows: Sequence[Decided], colours: Mapping[str, str]) -> str:
    titles = ("dispatches", "predicted", "bytes", "operations", "from other devices")
    lines = ["<table><tr><th>device</th>", *(f'<th class="n">{t}</th>' for t in titles), "</tr>"]
    for name, figures in totals(rows).items():
        cells = (
            str(figures["dispatches"]),
            milliseconds(figures["predicted_ms"]),
            si(figures["bytes"], "B"),
            si(figures["operations"], ""),
            si(figures["moved_bytes"], "B"),
        )
        lines.append(f"<tr><td>{_chip(name, colours)}</td>{_numbers(cells)}</tr>")
    return "".join([*lines, "</table>"])


def _numbers(cells: Iterable[str]) -> str:
    return "".join(f'<td class="n">{escape(cell)}</td>' for cell in cells)


def _graph(rows: Sequence[Decided], colours: Mapping[str, str]) -> str:
    """One node per row, in its device's column, and a curve from each to the consumers of its results."""
    lanes = {name: n for n, name in enumerate(dict.fromkeys(row.decision.device for row in rows))}
    left = _bulge(len(rows)) + 10  # curves to the left of the first column

    def place(row: Decided) -> tuple[float, float]:
        return left + LANE * lanes[row.decision.device], ROW * (row.number + 1.5)

    width, height = left + LANE * len(lanes), ROW * (len(rows) + 1)
    drawn = [f'<svg width="{width:.0f}" height="{height}" role="img" aria-label="dataflow">']
    for row in rows:
        drawn += [_edge(rows[n], row, place(rows[n]), place(row)) for n in row.parents]
    for row in rows:
        x, y = place(row)
        name, colour = escape(row.decision.dispatch), colours[row.decision.device]
        drawn.append(
            f'<circle class="node" cx="{x:.0f}" cy="{y:.0f}" r="6" fill="{colour}" data-of="{name}" '
            f'data-tip="{escape(_details(row, rows))}"/>'
        )
    return "".join([*drawn, "</svg>"])


def _edge(source: Decided, target: Decided, begin: tuple[float, float], end: tuple[float, float]) -> str:
    moves = source.decision.device != target.decision.device
    (x1, y1), (x2, y2) = begin, end
    bulge = 0.0 if moves else _bulge(target.number - source.number)
    third = (y2 - y1) / 3
    curve = f"C{x1 - bulge:.0f} {y1 + third:.0f} {x2 - bulge:.0f} {y2 - third:.0f} {x2:.0f} {y2:.0f}"
    return (
        f'<path class="edge{" moves" if moves else ""}" d="M{x1:.0f} {y1:.0f}{curve}" '
        f'data-from="{escape(source.decision.dispatch)}" data-to="{escape(target.decision.dispatch)}"/>'
    )


def _bulge(distance: int) -> float:
    """How far to the left a curve goes around the nodes between its ends, in pixels."""
    return 0.0 if distance <= 1 else 16 + 9 * math.log2(distance)


def _rows(rows: Sequence[Decided], colours: Mapping[str, str]) -> str:
    titles = "dispatch", "ops", "device", "predicted", "bytes", "moved in", "operations", "why", "elsewhere"
    right = ("predicted", "bytes", "moved in", "operations")
    head = "".join(f"<th{' class=n' if title in right else ''}>{title}</th>" for title in titles)
    lines = [f"<table><tr>{head}</tr>"]
    before = None
    for row in rows:
        decision = row.decision
        numbers = (
            "" if row.predicted_ms is None else milliseconds(row.predicted_ms),
            si(dims.representative(decision.bytes), "B"),
            si(row.moved_bytes, "B") if row.moved_bytes else "",
            si(dims.representative(decision.operations), ""),
        )
        starts = "" if decision.device == before else ' class="starts"'
        before = decision.device
        texts = [f"<td><div>{escape(text)}</div></td>" for text in (decision.reason, elsewhere(row))]
        lines.append(
            f'<tr{starts} data-dispatch="{escape(decision.dispatch)}" data-of="{escape(decision.dispatch)}" '
            f'data-tip="{escape(_details(row, rows))}"><td>{escape(decision.dispatch)}</td>'
            f"<td><div>{escape(decision.ops)}</div></td><td>{_chip(decision.device, colours)}</td>"
            f"{_numbers(numbers)}{''.join(texts)}</tr>"
        )
    return "".join([*lines, "</table>"])


def elsewhere(row: Decided) -> str:
    """The costs of the other devices, or why they refused."""
    costs = row.decision.costs.items()
    return "; ".join(
        f"{name}: {cost if isinstance(cost, str) else milliseconds(cost)}"
        for name, cost in costs
        if name != row.decision.device
    )


def _details(row: Decided, rows: Sequence[Decided]) -> str:
    decision = row.decision
    predicted = "" if row.predicted_ms is None else f", {milliseconds(row.predicted_ms)} predicted"
    lines = [
        f"{decision.dispatch}: {decision.ops}",
        f"on {decision.device}{predicted}: {decision.reason}",
        f"elsewhere: {elsewhere(row)}" if elsewhere(row) else "",
        f"{decision.bytes} bytes, {decision.operations} operations {decision.dtype}",
        f"{row.moved_bytes} bytes from other devices" if row.moved_bytes else "",
        f"reads {', '.join(rows[p].decision.dispatch for p in row.parents)}" if row.parents else "",
        f"from {decision.location}" if decision.location else "",
    ]
    return "\n".join(line for line in lines if line)


# The timeline -------------------------------------------------------------------------------------


def _predicted(rows: Sequence[Decided], colours: Mapping[str, str]) -> list[str]:
    """The predicted call, if the plan has a prediction; copies and handoffs appear as gaps."""
    spans = [
        {
            "device": row.decision.device,
            "label": row.decision.dispatch,
            "start_us": 1e3 * row.start_ms,
            "us": 1e3 * row.predicted_ms,
        }
        for row in rows
        if row.start_ms is not None and row.predicted_ms is not None
    ]
    if not spans:
        return []
    drawing = _tracks({"rows": spans}, colours)
    return [
        "<h2>A call as predicted</h2>",
        _slider("predicted", "width", 0, 8),
        _scrolled("predicted", drawing),
    ]


def _scrolled(name: str, drawing: str) -> str:
    return f'<div class="scroll"><div class="timeline" id="{name}">{drawing}</div></div>'


def _timeline(line: Mapping[str, Any], colours: Mapping[str, str]) -> list[str]:
    """A measured call: figures, and a track for each device."""
    told = [
        headline(line),
        *([expectation(line)] if line.get("expected_bound_ms") is not None else ()),
        *([lockstep_line(line)] if "lockstep_ms" in line else ()),
        *([each_request(line)] if line.get("request_ms") else ()),
        f"hidden behind other devices {milliseconds(line['overlap_ms'])}",
        *([f"all devices busy {milliseconds(line['all_busy_ms'])}"] if "all_busy_ms" in line else ()),
        f"copies by devices {_copies(line, 'device')}, by the host {_copies(line, 'host')}",
        "the critical path is outlined",
    ]
    summary = "; ".join(told)
    known = {name: colours.get(name, COLOURS[-1]) for name in [*line["devices"], *_devices(line)]}
    busy = [
        f"<tr><td>{_chip(name, known)}</td>"
        + _numbers((f"busy {milliseconds(figures['busy_ms'])}", _idle(figures)))
        + "</tr>"
        for name, figures in line["devices"].items()
    ]
    return [
        f"<h2>{_title(line)}</h2><p>{escape(summary)}</p><table>{''.join(busy)}</table>",
        _slider("timeline", "width", 0, 8),
        _scrolled("timeline", _tracks(line, known)),
    ]


def _title(line: Mapping[str, Any]) -> str:
    requests = line.get("requests", 1)
    return "A measured call" if requests == 1 else f"{requests} measured requests"


def _copies(line: Mapping[str, Any], who: str) -> str:
    copies = line["copies"]
    return f"{copies[who]} ({si(copies[f'{who}_bytes'], 'B')})"


def _idle(figures: Mapping[str, Any]) -> str:
    idle = figures.get("idle_ms")
    return f"idle {milliseconds(idle)}" if isinstance(idle, (int, float)) else ""


def _devices(line: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["device"] for row in line["rows"]))


def _tracks(line: Mapping[str, Any], colours: Mapping[str, str]) -> str:
    # Positions are percentages: zooming widens the drawing without scaling its text.
    whole = max([1e-3, *(row["start_us"] + row["us"] for row in line["rows"])])
    drawn, top = [], ROW
    for device in _devices(line):
        drawn.append(f'<text x="2" y="{top + 13}">{escape(device)}</text>')
        top += TRACK
        ends: list[float] = []
        for row in (row for row in line["rows"] if row["device"] == device):
            start, end = row["start_us"], row["start_us"] + row["us"]
            level = next((n for n, until in enumerate(ends) if until <= start + SLACK_US), len(ends))
            ends[level : level + 1] = [end]
            drawn.append(
                _span(row, 100 * start / whole, 100 * row["us"] / whole, top + TRACK * level, colours)
            )
        top += TRACK * max(1, len(ends)) + 6
    ticks = []
    for n in range(TICKS):
        at = 100 * n / TICKS
        ticks.append(f'<line x1="{at}%" x2="{at}%" y1="0" y2="{top}" stroke="#8884"/>')
        ticks.append(f'<text x="{at}%" y="12" dx="3">{whole * n / TICKS:.1f} µs</text>')
    drawing = "".join(ticks + drawn)
    return f'<svg width="100%" height="{top}" role="img" aria-label="timeline">{drawing}</svg>'


def _span(row: Mapping[str, Any], x: float, width: float, y: int, colours: Mapping[str, str]) -> str:
    label = f"{row['label']} on {row['device']}\n{row['us']:.2f} µs from {row['start_us']:.2f} µs"
    label += f"\nrequest {row['request']}" if "request" in row else ""
    critical = " critical" if row.get("critical") else ""
    # Neighbouring requests in two shades of their device's colour.
    shade = ' fill-opacity="0.6"' if row.get("request", 0) % 2 else ""
    return (
        f'<rect class="span{critical}" x="{x:.4f}%" y="{y}" width="{max(width, 1e-3):.4f}%" '
        f'height="{TRACK - 3}" fill="{colours[row["device"]]}"{shade} data-of="{escape(row["label"])}" '
        f'data-tip="{escape(label + (chr(10) + "on the critical path" if critical else ""))}"/>'
    )
