"""The timeline of a profiled call: tables for people, and reading one back from JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mansard.cli.output import milliseconds, si

if TYPE_CHECKING:
    from rich.table import Table

    from mansard.runtime.profiling.profile import Profile

SHOWN = 10
COPIES = ("device", "device_bytes", "host", "host_bytes")
NUMBERS = ("latency_ms", "bound_ms", "efficiency", "critical_path_ms", "overlap_ms", "overhead_ms")


def least_disturbed(profiles: Sequence[Profile]) -> Profile:
    """The shortest call, the one least disturbed by other work on the machine."""
    return min(profiles, key=lambda profile: profile.latency_ms)


def timeline_table(line: Mapping[str, Any]) -> Table:
    """Busy and idle time of each device in a call; ``line`` is `Profile.timeline`."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("device")
    for name in ("dispatches", "busy", "idle", "busy share"):
        table.add_column(name, justify="right")
    latency = line["latency_ms"] or 1.0
    for name, figures in line["devices"].items():
        busy, idle = figures["busy_ms"], figures["idle_ms"]
        cells = (milliseconds(busy), milliseconds(idle), f"{100 * busy / latency:.1f} %")
        table.add_row(name, str(figures["dispatches"]), *cells)
    return table


def timeline_lines(line: Mapping[str, Any]) -> list[str]:
    """The figures of a call, its bound, copies, and the longest commands of its critical path."""
    copies = line["copies"]
    overlap = f"all devices busy {milliseconds(line['all_busy_ms'])}, " if "all_busy_ms" in line else ""
    lines = [
        headline(line),
        *([expectation(line)] if line.get("expected_bound_ms") is not None else ()),
        *([lockstep_line(line)] if "lockstep_ms" in line else ()),
        *([each_request(line)] if line.get("request_ms") else ()),
        f"hidden behind other devices {milliseconds(line['overlap_ms'])}, "
        f"{overlap}no device busy {milliseconds(line['overhead_ms'])}",
        f"copies: {copies['device']} by devices ({si(copies['device_bytes'], 'B')}), "
        f"{copies['host']} by the host ({si(copies['host_bytes'], 'B')})",
    ]
    path = line["critical_path"]
    longest = sorted(path, key=lambda link: -link["ms"])[:SHOWN]
    lines.append(f"critical path: {len(path)} commands, {milliseconds(line['critical_path_ms'])}; longest:")
    lines += [f"  {link['label']} on {link['slot']}: {milliseconds(link['ms'])}" for link in longest]
    return lines


def headline(line: Mapping[str, Any]) -> str:
    """What ran, how long it took, the bound and the efficiency."""
    requests = line.get("requests", 1)
    what = "one call" if requests == 1 else f"{requests} requests, {line['in_flight']} in flight,"
    return (
        f"{what} {milliseconds(line['latency_ms'])}, at best {milliseconds(line['bound_ms'])} "
        f"({line['bound_by']}): overlap efficiency {100 * line['efficiency']:.1f} %"
    )


def expectation(line: Mapping[str, Any]) -> str:
    """The bound by the profiles that placement used."""
    return (
        f"by the plan's cost model, without copies, at best {milliseconds(line['expected_bound_ms'])}: "
        f"{100 * line['expected_efficiency']:.1f} %"
    )


def each_request(line: Mapping[str, Any]) -> str:
    """The latencies of single requests."""
    times = sorted(line["request_ms"])
    return (
        f"each request from submission to completion: median {milliseconds(statistics.median(times))}, "
        f"{milliseconds(times[0])} to {milliseconds(times[-1])}"
    )


def lockstep_line(line: Mapping[str, Any]) -> str:
    """The time of the same requests in lockstep."""
    lockstep = line["lockstep_ms"]
    speedup = lockstep / line["latency_ms"] if line["latency_ms"] > 0 else 0.0
    return f"in lockstep {milliseconds(lockstep)}: {speedup:.2f} times as long"


def read_timeline(path: Path) -> dict[str, Any]:
    """A timeline from the JSON that ``mansard bench --timeline`` prints, or that of `Profile.timeline` alone.

    Raises typer.BadParameter for a file that is neither.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} is not JSON: {error}") from None
    line = report.get("timeline", report) if isinstance(report, dict) else None
    if not _is_timeline(line):
        raise typer.BadParameter(
            f"{path} holds no timeline; `mansard bench FILE --timeline --json` prints one"
        )
    assert isinstance(line, dict)
    return line


def _is_timeline(line: Any) -> bool:
    if not isinstance(line, dict):
        return False
    rows, devices, copies = line.get("rows"), line.get("devices"), line.get("copies")
    return (
        all(isinstance(line.get(name), (int, float)) for name in NUMBERS)
        and isinstance(devices, dict)
        and all(isinstance(f, dict) and isinstance(f.get("busy_ms"), (int, float)) for f in devices.values())
        and isinstance(line.get("bound_by"), str)
        and isinstance(copies, dict)
        and all(isinstance(copies.get(name), int) for name in COPIES)
        and isinstance(rows, list)
        and all(isinstance(row, dict) and _is_row(row) for row in rows)
    )


def _is_row(row: Mapping[str, Any]) -> bool:
    texts = isinstance(row.get("device"), str) and isinstance(row.get("label"), str)
    return texts and all(isinstance(row.get(name), (int, float)) for name in ("start_us", "us"))
