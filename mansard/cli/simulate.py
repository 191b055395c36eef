"""``mansard simulate``: how a compiled model would run on a chip that is not present."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.cli.models import ArtifactArgument, InFlightOption, RequestsOption
from mansard.cli.output import JsonOption, Output, milliseconds, si

if TYPE_CHECKING:
    from rich.table import Table

    from mansard.placement.plan_memory import SlotMemory
    from mansard.placement.problem import PlacementProblem
    from mansard.plan.plan import Plan
    from mansard.runtime.profiling.device_timeline import TimelineRow
    from mansard.runtime.profiling.intervals import Span
    from mansard.targets.profile import DeviceProfile

SizeOption = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="DIM=SIZE", help="The size of a dim of the model, as in seq=128. Repeat."),
]


def simulate(
    artifact: ArtifactArgument,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="CHIP",
            help="A TOML file with a table per device, or a shipped chip: apple-m2, core-ultra-200v, "
            "cortex-m85-ethos-u85, imx95, jetson-agx-orin, rk3588, snapdragon-8-gen-3. Default: this "
            "machine, with calibrated figures where there are any.",
        ),
    ] = None,
    size: SizeOption = None,
    place: Annotated[
        bool,
        typer.Option("--place", help="Also search for the best placement on that chip."),
    ] = False,
    requests: RequestsOption = 1,
    in_flight: InFlightOption = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write the predicted timeline, for ui.perfetto.dev."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict latency, busy time, copies and memory of a compiled model on another chip.

    The model's schedule is run against the chip's profile; no device is opened and nothing is computed.
    """
    from mansard.artifact.resources import read_artifact
    from mansard.cli.trace import trace_document, write_trace
    from mansard.placement.plan_memory import slot_memory
    from mansard.placement.plan_workload import replay
    from mansard.placement.simulate import simulate as run

    with Output(as_json) as out:
        plan, resources = read_artifact(artifact, verify="code")
        resources.close()
        sizes = dim_sizes(plan, size or ())
        chip = chip_of(plan, profile)
        replayed = replay(plan, chip.profiles, sizes, chip.limits)
        problem, labels = replayed.problem, replayed.labels
        predicted = run(problem, labels)
        result: dict[str, Any] = {
            "chip": chip.name,
            "sizes": sizes,
            "latency_ms": predicted.seconds * 1e3,
            "lockstep_ms": run(problem, labels, lockstep=True).seconds * 1e3,
            "copies": sum(span.dispatch is None for span in predicted.spans),
            "copied_bytes": predicted.copied_bytes,
            "handoffs": handoffs(problem, labels),
            "devices": device_rows(
                plan,
                chip,
                labels,
                predicted.busy,
                predicted.seconds,
                slot_memory(plan, sizes, [profile.unified for profile in chip.profiles]),
            ),
        }
        if place:
            result["best"] = best(plan, problem)
        if place and requests > 1:
            result["best"]["requests"] = best_pipeline(plan, problem, requests, in_flight or 4)
        if requests > 1 or trace is not None:
            many = requests_in_flight(plan, problem, labels, requests, in_flight or 4)
            result["requests"] = many.figures
            if trace is not None:
                write_trace(trace, trace_document(many.rows, {}, plan.name, many.all_busy))
        out.show(f"{plan.name} on {chip.name}" + _shown(sizes))
        out.show(device_table(result["devices"]))
        for line in lines(result):
            out.show(line)
        out.result(result)


def handoffs(problem: PlacementProblem, labels: Sequence[int]) -> int:
    """The number of values read on another device than their producer's, once per reading device."""
    from mansard.placement.problem import HOST

    count = 0
    for edge in problem.edges:
        if edge.producer != HOST:
            readers = {labels[user] for user in edge.consumers if user != HOST}
            count += len(readers - {labels[edge.producer]})
    return count


@dataclass(frozen=True)
class Chip:
    """The profiles that stand in for the plan's device slots, in their order."""

    name: str
    profiles: tuple[DeviceProfile, ...]
    limits: tuple[int | None, ...]
    """Bytes of memory that a model may use."""


def chip_of(plan: Plan, name: str | None) -> Chip:
    """The chip called ``name``, or this machine for None.

    Raises PlacementError when it lacks one of the plan's devices.
    """
    if name is None:
        from mansard.compiler.targets import resolve_targets
        from mansard.placement import PlacementOptions

        targets = resolve_targets([d.name for d in plan.devices], PlacementOptions(fallback="error"))
        return Chip("this machine", tuple(t.slot.profile for t in targets), (None,) * len(targets))
    from mansard.targets.socs import load_soc

    soc = load_soc(name)
    tables = [soc.device(slot.name, slot.driver) for slot in plan.devices]
    return Chip(
        soc.name,
        tuple(soc.devices[table] for table in tables),
        tuple(soc.memory.get(table) for table in tables),
    )


def dim_sizes(plan: Plan, texts: Sequence[str]) -> dict[str, int]:
    """A size for every dim of a plan: as given by ``DIM=SIZE``, else a typical one in its range.

    Raises typer.BadParameter for an unknown dim or a size outside its range.
    """
    from mansard import dims

    sizes = {dim.name: dims.representative(dims.symbol(dim)) for dim in plan.dims}
    known = {dim.name: dim for dim in plan.dims}
    for text in texts:
        match = re.fullmatch(r"(\w+)=(\d+)", text)
        if match is None or match[1] not in known:
            names = ", ".join(known) or "none"
            raise typer.BadParameter(f"{text!r} is not DIM=SIZE with a dim of the model ({names})")
        dim, chosen = known[match[1]], int(match[2])
        if not dim.min <= chosen <= dim.max or chosen % dim.multiple:
            raise typer.BadParameter(f"{text!r}: {dim.name} is {dim.min}..{dim.max}/{dim.multiple}")
        sizes[dim.name] = chosen
    return sizes


def device_rows(
    plan: Plan,
    chip: Chip,
    labels: Sequence[int],
    busy: Sequence[float],
    seconds: float,
    memory: Sequence[SlotMemory],
) -> list[dict[str, Any]]:
    """One row per device slot; ``fits`` is None where the chip's memory size is not given."""
    rows = []
    for number, device in enumerate(plan.devices):
        limit, used = chip.limits[number], memory[number]
        rows.append(
            {
                "device": device.name,
                "dispatches": labels.count(number),
                "busy_ms": busy[number] * 1e3,
                "busy_percent": 100 * busy[number] / seconds if seconds else 0.0,
                **dataclasses.asdict(used),
                "memory": limit,
                "fits": None if limit is None else used.total <= limit,
                "calibrated": chip.profiles[number].measured,
            }
        )
    return rows


def best_pipeline(plan: Plan, problem: PlacementProblem, requests: int, in_flight: int) -> dict[str, Any]:
    """The best placement found for requests in flight: their figures, and dispatches by device."""
    from mansard.placement.search.choose import choose

    labels = choose(problem, "throughput", 5.0).labels
    run = requests_in_flight(plan, problem, labels, requests, in_flight)
    on = {device.name: labels.count(number) for number, device in enumerate(plan.devices)}
    return {**run.figures, "dispatches": on}


def best(plan: Plan, problem: PlacementProblem) -> dict[str, Any]:
    """The best placement found for the chip: predicted latency, its lower bound, dispatches by device."""
    from mansard.placement.search.choose import choose

    choice = choose(problem, "latency", 5.0)
    return {
        "latency_ms": choice.cost * 1e3,
        "bound_ms": choice.bound * 1e3,
        "dispatches": {d.name: choice.labels.count(number) for number, d in enumerate(plan.devices)},
    }


@dataclass(frozen=True)
class RequestsInFlight:
    """The simulated requests as data, and their commands for a trace."""

    figures: Mapping[str, Any]
    rows: Sequence[TimelineRow]
    all_busy: Sequence[Span]


def requests_in_flight(
    plan: Plan, problem: PlacementProblem, labels: Sequence[int], requests: int, in_flight: int
) -> RequestsInFlight:
    """Simulate ``requests`` calls of a placement, at most ``in_flight`` of them at a time."""
    from mansard.placement.simulate import simulate
    from mansard.placement.simulate_requests import simulate_requests
    from mansard.runtime.profiling.device_timeline import TimelineRow
    from mansard.runtime.profiling.intervals import intersection, total_length

    run = simulate_requests(problem, labels, requests, in_flight)
    names = [device.name for device in plan.devices]
    rows = [
        TimelineRow(
            names[span.device],
            f"transfer {span.edge}" if span.dispatch is None else plan.decisions[span.dispatch].dispatch,
            round(1e9 * span.start),
            round(1e9 * span.end),
            span.request,
        )
        for span in sorted(run.spans, key=lambda span: span.start)
    ]
    used = [name for name in names if any(row.slot == name for row in rows)]
    all_busy = intersection([[(r.start_ns, r.end_ns) for r in rows if r.slot == name] for name in used])
    figures = {
        "requests": requests,
        "in_flight": min(in_flight, requests),
        "ms": run.seconds * 1e3,
        "lockstep_ms": requests * simulate(problem, labels, lockstep=True).seconds * 1e3,
        "per_second": requests / run.seconds,
        "request_ms": [seconds * 1e3 for seconds in run.request_seconds],
        "bound_ms": run.bound * 1e3,
        "bound_by": "critical path" if run.bound_by is None else names[run.bound_by],
        "efficiency": run.efficiency,
        "all_busy_ms": total_length(all_busy) / 1e6,
        "busy_ms": {name: seconds * 1e3 for name, seconds in zip(names, run.busy, strict=True)},
    }
    return RequestsInFlight(figures, rows, all_busy)


def request_lines(figures: Mapping[str, Any]) -> list[str]:
    """The figures as text."""
    busy = ", ".join(f"{name} {100 * ms / figures['ms']:.0f} %" for name, ms in figures["busy_ms"].items())
    return [
        f"{figures['requests']} requests, {figures['in_flight']} in flight: {milliseconds(figures['ms'])} "
        f"({figures['per_second']:.0f} per second), {milliseconds(figures['lockstep_ms'])} "
        "if one device at a time ran",
        f"overlap efficiency {figures['efficiency']:.2f} (bound {milliseconds(figures['bound_ms'])}, "
        f"{figures['bound_by']}); busy: {busy}; all at once for {milliseconds(figures['all_busy_ms'])}",
    ]


def _shown(sizes: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{name}={size}' for name, size in sizes.items())})" if sizes else ""


def lines(result: Mapping[str, Any]) -> list[str]:
    """The totals as text."""
    shown = [
        f"predicted latency {milliseconds(result['latency_ms'])}, "
        f"{milliseconds(result['lockstep_ms'])} if one device at a time ran",
        f"{result['handoffs']} handoffs between devices, {result['copies']} copies of "
        f"{si(result['copied_bytes'], 'B')}",
    ]
    if "requests" in result:
        shown += request_lines(result["requests"])
    if "best" in result:
        best = result["best"]
        spread = ", ".join(f"{count} on {name}" for name, count in best["dispatches"].items())
        shown.append(
            f"best placement found there: {milliseconds(best['latency_ms'])} ({spread}; "
            f"none is below {milliseconds(best['bound_ms'])})"
        )
        if "requests" in best:
            spread = ", ".join(f"{count} on {name}" for name, count in best["requests"]["dispatches"].items())
            shown.append(f"best placement found there for requests in flight ({spread}):")
            shown += request_lines(best["requests"])
    return shown


def device_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """`device_rows` as a table."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("device", "dispatches", "busy", "of the time", "weights", "activations", "fits", "figures"):
        table.add_column(title, justify="left" if title in ("device", "fits", "figures") else "right")
    fits = {None: "", True: "yes", False: "no"}
    for row in rows:
        table.add_row(
            row["device"],
            str(row["dispatches"]),
            milliseconds(row["busy_ms"]),
            f"{row['busy_percent']:.0f} %",
            si(row["weights"], "B"),
            si(row["activations"], "B"),
            fits[row["fits"]],
            f"calibrated {row['calibrated']}" if row["calibrated"] else "profile",
        )
    return table
