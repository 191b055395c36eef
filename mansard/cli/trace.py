"""``mansard trace``: a timeline of calls in the JSON format of Perfetto and Chrome.

The format is the Trace Event Format's "JSON object format": complete events (``ph: X``) with
microseconds, and metadata events (``ph: M``) that name processes and threads.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.cli.kernels import DispatchTime, dispatch_times
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

if TYPE_CHECKING:
    from mansard.runtime.profiling.device_timeline import TimelineRow


def trace(
    artifact: ArtifactArgument,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The trace to write.")],
    input_: InputOption = None,
    device: DeviceOption = None,
    limits: LimitsOption = None,
    requests: RequestsOption = 1,
    in_flight: InFlightOption = None,
    trusted_key: TrustedKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a compiled model and write what every device did when; open it in ui.perfetto.dev.

    Inputs that are not given are generated: random floats, zeros for other types, of the smallest allowed
    shape.
    """
    with Output(as_json) as out:
        model = open_model(artifact, device, in_flight, trusted_keys=trusted_key)
        inputs = gather_inputs(model.plan, input_, fill=True)
        model(*inputs)  # keeps recording and first-touch costs out of the trace
        profile = model.profile(*inputs, requests=requests, in_flight=in_flight)
        facts = {(t.device, t.dispatch): arguments(t) for t in dispatch_times(model.plan, [profile])}
        document = trace_document(profile.rows, facts, model.plan.name, profile.all_busy)
        write_trace(output, document)
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
                "requests": profile.requests,
                "latency_ms": profile.latency_ms,
                "all_busy_ms": profile.all_busy_ms,
                "devices": profile.devices,
            }
        )


def write_trace(path: Path, document: Mapping[str, Any]) -> None:
    """Write a trace; raises typer.BadParameter when it cannot be written."""
    try:
        path.write_text(json.dumps(document), encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise typer.BadParameter(f"{path} cannot be written: {reason}") from None


def arguments(row: DispatchTime) -> dict[str, Any]:
    """The details that a trace shows for a selected dispatch."""
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
    rows: Sequence[TimelineRow],
    facts: Mapping[tuple[str, str], Mapping[str, Any]],
    name: str = "model",
    all_busy: Sequence[tuple[int, int]] = (),
) -> dict[str, Any]:
    """The trace of profile rows; time starts at the first.

    ``facts`` are further arguments of events by device and label, ``all_busy`` the intervals in which every
    device was busy. Each of several requests has a track, from the start of its first command to the end of
    its last. Copies that a device ran concurrently with its kernels have a track of their own.
    """
    tracks = track_names(rows)
    shown = list(dict.fromkeys(tracks))
    events = _process(f"mansard: {name}", _DEVICES, shown)
    origin = min((row.start_ns for row in rows), default=0)
    for (device, label, start, end, request), name_of_track in zip(rows, tracks, strict=True):
        known = {"device": device, "request": request, **facts.get((device, label), {})}
        place = _DEVICES, 1 + shown.index(name_of_track)
        events.append(_event(label, device, place, (start - origin, end - origin), known))
    if len({row.slot for row in rows}) > 1:
        events += _process("all devices concurrently", _TOGETHER, ["all busy"])
        spans = [(start - origin, end - origin) for start, end in all_busy]
        events += [_event("all busy", "overlap", (_TOGETHER, 1), span, {}) for span in spans]
    requests = sorted({row.request for row in rows})
    if len(requests) > 1:
        events += _process("requests", _REQUESTS, [f"request {number}" for number in requests])
        for track, number in enumerate(requests, start=1):
            request_rows = [row for row in rows if row.request == number]
            span = (
                min(row.start_ns for row in request_rows) - origin,
                max(row.end_ns for row in request_rows) - origin,
            )
            events.append(_event(f"request {number}", "requests", (_REQUESTS, track), span, {}))
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def track_names(rows: Sequence[TimelineRow]) -> list[str]:
    """The track of every row: its device's queue, or its device's copies if one of these overlapped a
    kernel."""
    names = [f"{row.slot} queue" for row in rows]
    for device in dict.fromkeys(row.slot for row in rows):
        device_rows = [n for n, row in enumerate(rows) if row.slot == device]
        copies = [n for n in device_rows if rows[n].label.startswith(COPIES)]
        kernels = sorted((rows[n].start_ns, rows[n].end_ns) for n in device_rows if n not in copies)
        if any(_overlaps(rows[n], kernels) for n in copies):
            for n in copies:
                names[n] = f"{device} copies"
    return names


def _overlaps(row: TimelineRow, others: Sequence[tuple[int, int]]) -> bool:
    """Whether one of ``others``, in order of start, runs at the same time."""
    before = bisect.bisect_left(others, (row.end_ns, 0))
    return before > 0 and max(end for _, end in others[max(0, before - 2) : before]) > row.start_ns


COPIES = ("upload ", "download ", "transfer ")
"""The prefixes of the labels of copies (`mansard.plan.layout`)."""

_DEVICES, _TOGETHER, _REQUESTS = 1, 2, 3
"""Processes of the trace."""


def _process(name: str, number: int, tracks: Sequence[str]) -> list[dict[str, Any]]:
    """The events that name a process and its tracks and define their order."""
    named = [("process_name", 0, {"name": name}), ("process_sort_index", 0, {"sort_index": number})]
    for track, text in enumerate(tracks, start=1):
        named.append(("thread_name", track, {"name": text}))
        named.append(("thread_sort_index", track, {"sort_index": track}))
    return [{"ph": "M", "name": what, "pid": number, "tid": tid, "args": args} for what, tid, args in named]


def _event(
    name: str, category: str, place: tuple[int, int], span: tuple[int, int], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """A complete event on track ``place`` (process, thread), from and to nanoseconds."""
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": place[0],
        "tid": place[1],
        "ts": span[0] / 1000,
        "dur": (span[1] - span[0]) / 1000,
        "args": arguments,
    }
