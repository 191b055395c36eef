"""``mansard trace``: one call on a time line, in the JSON that Perfetto and Chrome read.

The format is the Trace Event Format's "JSON object format": complete events (``ph: X``) with
microseconds, and metadata events (``ph: M``) that name processes and threads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.cli.kernels import DispatchTime, dispatch_times
from mansard.cli.limits import LimitsOption
from mansard.cli.models import ArtifactArgument, DeviceOption, InputOption, gather_inputs, open_model
from mansard.cli.output import JsonOption, Output, milliseconds

if TYPE_CHECKING:
    Row = tuple[str, str, int, int]


def trace(
    artifact: ArtifactArgument,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The trace to write.")],
    input_: InputOption = None,
    device: DeviceOption = None,
    limits: LimitsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a compiled model once and write what every device did when; open it in ui.perfetto.dev.

    Inputs that are not given are made up: random floats, zeros otherwise, of the smallest shape allowed.
    """
    with Output(as_json) as out:
        model = open_model(artifact, device)
        inputs = gather_inputs(model.plan, input_, fill=True)
        model(*inputs)  # recording and first-touch costs stay out of the picture
        profile = model.profile(*inputs)
        facts = {(t.device, t.dispatch): arguments(t) for t in dispatch_times(model.plan, [profile])}
        document = trace_document(profile.rows, facts, model.plan.name)
        try:
            output.write_text(json.dumps(document), encoding="utf-8")
        except OSError as error:
            raise typer.BadParameter(f"{output} cannot be written: {error.strerror}") from None
        tracks = sorted({row[0] for row in profile.rows})
        out.show(
            f"{output}: {len(profile.rows)} events on {len(tracks)} tracks ({', '.join(tracks)}), "
            f"{milliseconds(profile.latency_ms)}"
        )
        out.result(
            {
                "trace": str(output),
                "events": len(profile.rows),
                "tracks": tracks,
                "latency_ms": profile.latency_ms,
                "devices": profile.devices,
            }
        )


def arguments(row: DispatchTime) -> dict[str, Any]:
    """What a trace says about a dispatch when it is selected."""
    known = {
        "location": row.location or None,
        "bytes": row.bytes,
        "operations": row.operations,
        "GB/s": row.gb_s,
        "Gop/s": row.gops_s,
        "roofline_percent": row.roofline_percent,
        "bound": row.bound,
    }
    return {name: value for name, value in known.items() if value is not None}


def trace_document(
    rows: Sequence[Row], facts: Mapping[tuple[str, str], Mapping[str, Any]], name: str = "model"
) -> dict[str, Any]:
    """The trace of profile rows ``(device, label, start_ns, end_ns)``; time starts at the first row.

    ``facts`` are further arguments of events by device and label.
    """
    tracks = {device: number for number, device in enumerate(dict.fromkeys(row[0] for row in rows), start=1)}
    origin = min((row[2] for row in rows), default=0)
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": f"mansard: {name}"}}
    ]
    for device, number in tracks.items():
        events.append(
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": f"{device} queue"}}
        )
        events.append(
            {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": number, "args": {"sort_index": number}}
        )
    for device, label, start, end in rows:
        event = {
            "ph": "X",
            "name": label,
            "cat": device,
            "pid": 1,
            "tid": tracks[device],
            "ts": (start - origin) / 1000,
            "dur": (end - start) / 1000,
            "args": {"device": device, **facts.get((device, label), {})},
        }
        events.append(event)
    return {"traceEvents": events, "displayTimeUnit": "ns"}
