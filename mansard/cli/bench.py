"""``mansard bench``: time a compiled model on this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.cli.html.report import write_page
from mansard.cli.kernels import build_lines, builds, describe, dispatch_table, dispatch_times
from mansard.cli.limits import LimitsOption
from mansard.cli.models import (
    ArtifactArgument,
    DeviceOption,
    InFlightOption,
    InputOption,
    RequestsOption,
    TrustedKeysOption,
    gather_inputs,
    open_model,
)
from mansard.cli.output import JsonOption, Output, milliseconds
from mansard.cli.timeline import least_disturbed, timeline_lines, timeline_table

if TYPE_CHECKING:
    from rich.table import Table


def bench(
    artifact: ArtifactArgument,
    input_: InputOption = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Timed calls.")] = 20,
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Calls before the timed ones.")] = 3,
    device: DeviceOption = None,
    limits: LimitsOption = None,
    profile_dispatches: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Time every dispatch, with bytes, operations and percentage of the device's roofline.",
        ),
    ] = False,
    timeline: Annotated[
        bool,
        typer.Option(
            "--timeline",
            help="Show when each device was busy in one call, the critical path, and the overlap efficiency: "
            "the shortest possible time of the commands as measured, divided by the time the call took.",
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write an HTML page with the graph and the timeline."),
    ] = None,
    min_overlap: Annotated[
        float | None,
        typer.Option(
            "--min-overlap",
            min=0.0,
            max=1.0,
            help="Exit with code 1 when the overlap efficiency is lower.",
        ),
    ] = None,
    requests: RequestsOption = 1,
    in_flight: InFlightOption = None,
    lockstep: Annotated[
        bool,
        typer.Option(
            "--lockstep",
            help="Also time the same plan without overlap, one submission at a time over all devices and the "
            "requests sequentially, to show the gain from overlap.",
        ),
    ] = False,
    trusted_key: TrustedKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time a compiled model: wall time of whole calls, and busy time of each device.

    Inputs that are not given are generated: random floats, zeros for other types, of the smallest allowed
    shape. With --profile, as many profiled calls as timed ones are made, and each dispatch has its shortest
    time. With --timeline, --html, --min-overlap, --requests or --lockstep, the timeline is that of the
    shortest of these calls, or of the shortest of as many runs of all requests.
    """
    with_timeline = timeline or html is not None or min_overlap is not None or requests > 1 or lockstep
    with Output(as_json) as out:
        model = open_model(artifact, device, in_flight, trusted_keys=trusted_key)
        inputs = gather_inputs(model.plan, input_, fill=True)
        for _ in range(warmup):
            model(*inputs)
        times = []
        for _ in range(runs):
            begin = time.perf_counter_ns()
            model(*inputs)
            times.append((time.perf_counter_ns() - begin) / 1e6)
        profile = model.profile(*inputs)
        figures = statistics(times)
        out.show(
            f"{runs} calls: "
            + ", ".join(f"{key.removesuffix('_ms')} {milliseconds(value)}" for key, value in figures.items())
        )
        if not with_timeline:  # which has these figures for its own call
            out.show(device_table(profile.devices))
        result = {"runs": runs, "warmup": warmup, **figures, "devices": profile.devices}
        for share in model.shares:
            out.show(f"divided: {share}")
        result["shares"] = [
            {"dim": s.dim, "total": s.total, "dispatches": s.dispatches, "parts": s.fractions}
            for s in model.shares
        ]
        profiles = [profile]
        if profile_dispatches or (with_timeline and requests == 1):
            profiles += [model.profile(*inputs) for _ in range(runs - 1)]
        if profile_dispatches:
            rows, built = dispatch_times(model.plan, profiles), builds(profile)
            out.show("")
            out.show(dispatch_table(rows))
            for line in build_lines(built):
                out.show(line)
            result |= {"dispatches": describe(rows), "pipelines": built}
        efficiency = 1.0
        if with_timeline:
            if requests > 1:
                profiles = [
                    model.profile(*inputs, requests=requests, in_flight=in_flight) for _ in range(runs)
                ]
            measured = least_disturbed(profiles).timeline()
            efficiency = measured["efficiency"]
            if lockstep:
                alone = [model.profile(*inputs, requests=requests, lockstep=True) for _ in range(runs)]
                measured["lockstep_ms"] = least_disturbed(alone).latency_ms
            out.show("")
            out.show(timeline_table(measured))
            for line in timeline_lines(measured):
                out.show(line)
            result["timeline"] = measured
            if html is not None:
                write_page(html, model.plan, measured)
                out.show(str(html))
        out.result(result)
        if min_overlap is not None and efficiency < min_overlap:
            out.note(f"mansard: overlap efficiency {efficiency:.3f} is below the {min_overlap:g} requested")
            raise typer.Exit(1)


def statistics(times: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile (nearest rank), minimum and mean of times in milliseconds."""
    ordered = sorted(times)
    count = len(ordered)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    rank = -(-95 * count // 100)  # ceil(0.95 n), counted from 1
    return {
        "median_ms": middle,
        "p95_ms": ordered[rank - 1],
        "min_ms": ordered[0],
        "mean_ms": sum(ordered) / count,
    }


def device_table(devices: Mapping[str, Mapping[str, Any]]) -> Table:
    """Dispatches and busy time of one profiled call, by device."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("device")
    table.add_column("dispatches", justify="right")
    table.add_column("busy", justify="right")
    for name, figures in devices.items():
        table.add_row(name, str(figures["dispatches"]), milliseconds(figures["busy_ms"]))
    return table
