"""The dispatches of profiled calls against the roofline of their device: times, bytes, operations,
percentage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mansard import dims
from mansard.cli.output import milliseconds, si

if TYPE_CHECKING:
    from rich.table import Table

    from mansard.plan.plan import Decision, Plan
    from mansard.runtime.profiling.device_timeline import DeviceTimeline
    from mansard.runtime.profiling.profile import Profile

SHOWN = 20


@dataclass(frozen=True)
class DispatchTime:
    """One dispatch of a call. Fields after ``us`` are None where the plan has no decision for the command."""

    device: str
    dispatch: str
    us: float
    """The shortest time of all profiled calls, in microseconds."""
    bytes: int | None = None
    """The minimum read and written: every operand and result once."""
    operations: int | None = None
    gb_s: float | None = None
    gops_s: float | None = None
    roofline_percent: float | None = None
    """The device's shortest possible time as a percentage of the measured time."""
    bound: str | None = None
    """What bounds the shortest possible time: ``memory`` or ``compute``."""
    location: str = ""


def dispatch_times(plan: Plan, profiles: Sequence[Profile]) -> list[DispatchTime]:
    """Every command of the profiled calls of one model, in order of start; the shortest time of each.

    The roofline is that of the device (`mansard.targets.roofline`): the vendor's figures of a GPU known by
    name, else default figures of its kind.
    """
    known = {decision.dispatch: decision for decision in plan.decisions}
    timed = []
    for number, part in enumerate(profiles[0].parts):
        for place, row in enumerate(part.rows):
            rows = [profile.parts[number].rows[place] for profile in profiles]
            best = min(r.end_ns - r.start_ns for r in rows) / 1e3
            times = _with_roofline(part, row.label, best, known.get(row.label), profiles[0])
            timed.append((row.start_ns, times))
    return [times for _, times in sorted(timed, key=lambda pair: pair[0])]


def _with_roofline(
    part: DeviceTimeline, label: str, us: float, decision: Decision | None, profile: Profile
) -> DispatchTime:
    from mansard.targets.roofline import roofline_of

    if decision is None or part.info is None:
        return DispatchTime(part.slot, label, us)
    moved = dims.evaluate(decision.bytes, profile.sizes)
    operations = dims.evaluate(decision.operations, profile.sizes)
    bound_seconds, bound = roofline_of(part.info).bound_seconds(moved, operations, decision.dtype or "f32")
    per_second = 1e6 / us if us > 0 else None
    return DispatchTime(
        part.slot,
        label,
        us,
        moved,
        operations,
        None if per_second is None else moved * per_second / 1e9,
        None if per_second is None else operations * per_second / 1e9,
        None if per_second is None else 100 * bound_seconds * per_second,
        bound,
        decision.location,
    )


def describe(rows: Iterable[DispatchTime]) -> list[dict[str, Any]]:
    """The rows as in the JSON output."""
    return [asdict(row) for row in rows]


def dispatch_table(rows: Sequence[DispatchTime], shown: int = SHOWN) -> Table:
    """The slowest dispatches, and a row that sums up the rest."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("dispatch", "device", "time", "share", "bytes", "rate", "operations", "rate", "roofline"):
        table.add_column(name, justify="left" if name in ("dispatch", "device") else "right")
    total = sum(row.us for row in rows) or 1.0
    ordered = sorted(rows, key=lambda row: -row.us)
    for row in ordered[:shown]:
        cells = [row.dispatch, row.device, f"{row.us:.1f} µs", f"{100 * row.us / total:.1f} %"]
        if row.bytes is not None and row.operations is not None:
            cells += [si(row.bytes, "B"), _rate(row.gb_s, "B/s"), si(row.operations, "op")]
            cells += [_rate(row.gops_s, "op/s"), f"{row.roofline_percent or 0:.1f} % ({row.bound})"]
        table.add_row(*cells)
    rest = ordered[shown:]
    if rest:
        spent = sum(row.us for row in rest)
        table.add_row(f"… {len(rest)} more", "", f"{spent:.1f} µs", f"{100 * spent / total:.1f} %")
    return table


def _rate(giga: float | None, unit: str) -> str:
    return "" if giga is None else si(giga * 1e9, unit)


def builds(profile: Profile) -> dict[str, dict[str, Any]]:
    """By slot: what drivers compiled when the model was loaded, for slots where they did.

    ``pipelines`` and ``cached`` are counts, ``ms`` is the total time, ``rows`` has each entry point.
    """
    builds: dict[str, dict[str, Any]] = {}
    for part in profile.parts:
        if not part.builds:
            continue
        rows = sorted(part.builds, key=lambda build: -build.seconds)
        builds[part.slot] = {
            "pipelines": len(rows),
            "cached": sum(build.cached is True for build in rows),
            "ms": sum(build.seconds for build in rows) * 1e3,
            "rows": [{"entry": b.entry, "ms": b.seconds * 1e3, "cached": b.cached} for b in rows],
        }
    return builds


def build_lines(builds: dict[str, dict[str, Any]]) -> list[str]:
    """`builds` as text."""
    return [
        f"{slot}: {figures['pipelines']} pipelines built in {milliseconds(figures['ms'])} at load time, "
        f"{figures['cached']} of them from the driver's cache; slowest {figures['rows'][0]['entry']} "
        f"({milliseconds(figures['rows'][0]['ms'])})"
        for slot, figures in builds.items()
    ]
