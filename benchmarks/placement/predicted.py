"""What placement predicts of models, beside what calls take: on each device alone, and spread over all.

    python -m benchmarks.models.gpu prepare GRAPHS --models mobilenet_v2,minilm,resnet50 --batches 1,32
    python -m benchmarks.placement.predicted GRAPHS --devices cpu,vulkan --json FILE [--dispatches]
        [--calibrate 5]

``GRAPHS`` holds imported graphs (``benchmarks.models.gpu prepare``). Every model is compiled for each device,
and for all together: placed for latency, for throughput, and each device with at least a third of the
dispatches (``shared``). Predicted are the latency and each device's busy time, by the profiles that ``mansard
calibrate`` measured; measured are the latency of calls one after the other (median and least, inputs and
outputs in host memory) and the least busy times of some profiled calls. The load of the busiest queue, which
is what placement for throughput makes least, is predicted beside the time per request with 8 in flight.

A GPU that calls keep busy for a part of the time only lowers its clock, and its kernels take longer than in
calibration. ``--awake`` measures once more with fills on every GPU between calls, for twice as long as a call
takes. ``--dispatches`` adds a row for every dispatch, ``--timeline`` what ran from when to when in the
shortest profiled call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.cli.simulate import chip_of
from mansard.compiler import CompileOptions, compile_graph
from mansard.hal import (
    BarrierCommand,
    BufferRef,
    Command,
    Device,
    FillCommand,
    MemoryKind,
    Point,
    Semaphore,
    Submission,
    registry,
)
from mansard.ir import Graph
from mansard.placement import PlacementOptions
from mansard.placement.plan_workload import replay
from mansard.placement.simulate import simulate
from mansard.plan.plan import Plan
from mansard.runtime.profiling.profile import Profile

STARTED = time.perf_counter()
IN_FLIGHT = 8
_FILLED, _MAX_FILLS = 32 << 20, 1 << 14
MODELS = ("mobilenet_v2-1", "minilm-1", "resnet50-1", "mobilenet_v2-32", "minilm-32", "resnet50-32")


def predict(plan: Plan) -> dict[str, Any]:
    """Latency, busy times and the busiest queue's load in ms on this machine, as ``mansard simulate`` tells
    them."""
    replayed = replay(plan, chip_of(plan, None).profiles, {})
    run = simulate(replayed.problem, replayed.labels)
    busy = {d.name: seconds * 1e3 for d, seconds in zip(plan.devices, run.busy, strict=True)}
    load = max(replayed.problem.queue_loads(run.load))
    return {
        "latency_ms": run.seconds * 1e3, "load_ms": load * 1e3, "busy_ms": busy,
        "copied_bytes": run.copied_bytes,
    }  # fmt: skip


class Fills:
    """Work for a GPU between calls, so that its clock stays where it is."""

    def __init__(self, device: Device, seconds: float) -> None:
        self._device, self._done, self._turn = device, Semaphore("fills"), 0
        self._target = device.allocate(_FILLED, MemoryKind.DEVICE, "fills")
        self._record(64)
        self.run()
        begin = time.perf_counter()
        self.run()
        each = (time.perf_counter() - begin) / 64
        self._recorded.close()
        self._record(min(_MAX_FILLS, math.ceil(seconds / each)))

    def _record(self, count: int) -> None:
        commands: list[Command] = [FillCommand(BufferRef(self._target), _FILLED), BarrierCommand()] * count
        self._recorded = self._device.record(commands)

    def run(self) -> None:
        """Run all fills."""
        self._turn += 1
        point = Point(self._done, self._turn)
        self._device.submit([Submission(self._recorded, signal=(point,))])
        point.wait(60.0)

    def close(self) -> None:
        """Free what was used."""
        self._recorded.close()
        self._target.close()


def per_request(model: Model, inputs: Sequence[object], seconds: float) -> float:
    """Milliseconds per request with `IN_FLIGHT` of them at a time."""

    async def main() -> float:
        count, begin = 0, time.perf_counter()

        async def client() -> None:
            nonlocal count
            while count < 2 * IN_FLIGHT or time.perf_counter() - begin < seconds:
                count += 1
                await model.run_async(*inputs)

        await asyncio.gather(*(client() for _ in range(IN_FLIGHT)))
        return (time.perf_counter() - begin) / count * 1e3

    asyncio.run(main())
    return asyncio.run(main())


def measure(
    model: Model, inputs: Sequence[object], seconds: float, between: Callable[[], None] = lambda: None
) -> tuple[dict[str, Any], Profile]:
    """Latency of calls for some seconds, after as long as half of it that does not count, and the profile of
    the shortest of some calls; ``between`` runs before each."""
    end = time.perf_counter() + seconds / 2
    while time.perf_counter() < end:
        model(*inputs)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 10 or time.perf_counter() < end:
        between()
        begin = time.perf_counter()
        model(*inputs)
        times.append((time.perf_counter() - begin) * 1e3)
    profiles = []
    for _ in range(8):
        between()
        profiles.append(model.profile(*inputs))
    best = min(profiles, key=lambda p: p.latency_ms)
    busy = {slot: device["busy_ms"] for slot, device in best.devices.items()}
    busy_min = {s: min(p.devices[s]["busy_ms"] for p in profiles) for s in busy}
    return {
        "latency_ms": statistics.median(times), "least_ms": min(times), "busy_ms": busy_min,
        "copies": best.copies.device, "copied_bytes": best.copies.device_bytes,
    }, best  # fmt: skip


def awake(
    model: Model, inputs: Sequence[object], took: float, options: argparse.Namespace
) -> tuple[dict[str, Any], Profile]:
    """As `measure`, of calls that take about ``took`` seconds, with fills on every GPU between them."""
    with ExitStack() as stack:
        fills = []
        for name in options.devices.split(","):
            device = registry.open_device(name)
            if device.info.kind in ("discrete", "integrated", "virtual"):
                fills.append(Fills(device, 2 * took))
                stack.callback(fills[-1].close)

        def between() -> None:
            for fill in fills:
                fill.run()

        return measure(model, inputs, options.seconds, between)


def timeline(profile: Profile) -> list[tuple[str, str, float, float]]:
    """(Device slot, what, start and end in us since the first start) of all commands."""
    origin = min((row.start_ns for row in profile.rows), default=0)
    return [
        (row.slot, row.label, (row.start_ns - origin) / 1e3, (row.end_ns - origin) / 1e3)
        for row in sorted(profile.rows, key=lambda row: row.start_ns)
    ]


def dispatches(plan: Plan, profile: Profile) -> list[dict[str, Any]]:
    """A row for every dispatch: what it does, the time that was predicted and the time it took."""
    took: dict[tuple[str, str], list[float]] = {}
    for slot, label, start, end, *_ in profile.rows:
        took.setdefault((slot, label), []).append((end - start) / 1e3)
    rows = []
    for d in plan.decisions:
        times = took.get((d.device, d.dispatch))
        cost = d.costs[d.device]
        rows.append({
            "dispatch": d.dispatch, "ops": d.ops, "device": d.device, "bytes": d.bytes, "dtype": d.dtype,
            "operations": d.operations, "kind": d.kind, "predicted_us": float(cost) * 1e3,
            "us": times.pop(0) if times else None,
        })  # fmt: skip
    return rows


def placements(devices: Sequence[str]) -> dict[str, tuple[tuple[str, ...], PlacementOptions]]:
    """Targets and placement options by name: every device alone, and all together."""
    choices: dict[str, tuple[tuple[str, ...], PlacementOptions]] = {}
    for name in devices:
        choices[name] = ((name,), PlacementOptions(fallback="error"))
    choices["latency"] = (tuple(devices), PlacementOptions())
    choices["shared"] = (tuple(devices), PlacementOptions(min_share=1 / 3))
    choices["throughput"] = (tuple(devices), PlacementOptions(objective="throughput"))
    return choices


def run(
    name: str, graph: Graph, inputs: list[Any], options: argparse.Namespace, reference: list[Any]
) -> list[dict[str, Any]]:
    """Rows of one model; ``reference`` holds the output of the first placement."""
    rows = []
    for label, (targets, placement) in placements(options.devices.split(",")).items():
        if options.placements and label not in options.placements.split(","):
            continue
        begin = time.perf_counter()
        compiled = compile_graph(graph, CompileOptions(targets=targets, placement=placement))
        row: dict[str, Any] = {"model": name, "placement": label, "compile_s": time.perf_counter() - begin}
        row["predicted"] = predict(compiled.plan)
        resources = MemoryResources(compiled.executables, compiled.weights)
        with Model(compiled.plan, resources, max_in_flight=IN_FLIGHT) as model:
            output = model(*inputs)
            reference = reference or [output]
            row["measured"], profile = measure(model, inputs, options.seconds)
            counts = profile.dispatches
            row["measured"]["in_flight_ms"] = per_request(model, inputs, options.seconds)
            if options.awake:
                row["awake"], profile = awake(model, inputs, row["measured"]["latency_ms"] / 1e3, options)
        row["ratio"] = row["predicted"]["latency_ms"] / row["measured"]["latency_ms"]
        row["error"] = float(np.abs(output - reference[0]).max() / np.abs(reference[0]).max())
        row["dispatches"] = dict(counts)
        if options.dispatches:
            row["rows"] = dispatches(compiled.plan, profile)
        if options.timeline:
            row["timeline"] = timeline(profile)
        shown = {k: v for k, v in row.items() if k not in ("rows", "timeline")}
        print(f"{time.perf_counter() - STARTED:.0f} s", json.dumps(shown), flush=True)
        rows.append(row)
    return rows


def imported(folder: Path, name: str, work: Path) -> tuple[Graph, list[Any]]:
    """A graph that ``benchmarks/models/gpu.py prepare`` wrote with its weights, and an input."""
    from benchmarks.harness import networks
    from benchmarks.models import gpu
    from mansard.frontends.pytorch.weights import constant_of
    from mansard.ir.graph_data import graph_from_bytes

    network, _, batch = name.rpartition("-")
    if not (work / network / "float32.pt").exists():
        networks.prepare(network, work)
    weights = gpu._module(network, work).state_dict()
    constants = {key: constant_of(tensor, key) for key, tensor in weights.items()}
    graph = graph_from_bytes((folder / f"{name}.graph").read_bytes(), constants)
    return graph, [gpu._batched(network, work, int(batch))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--devices", default="cpu,vulkan")
    parser.add_argument("--placements", default="", help="only these: a device, latency, shared, throughput")
    parser.add_argument("--seconds", type=float, default=1.0, help="to time each")
    parser.add_argument("--calibrate", type=float, metavar="SECONDS", help="calibrate each device first")
    parser.add_argument("--dispatches", action="store_true", help="a row for every dispatch too")
    parser.add_argument("--awake", action="store_true", help="once more with fills on GPUs between calls")
    parser.add_argument("--timeline", action="store_true", help="what ran from when to when, too")
    parser.add_argument("--work", type=Path, default=Path("/tmp/mansard-gpu"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.calibrate:
        from mansard.calibration.measure import calibrate

        calibrate(options.devices.split(","), options.calibrate)
        print(f"{time.perf_counter() - STARTED:.0f} s: calibrated", flush=True)
    options.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.models.split(","):
        graph, inputs = imported(options.graphs, name, options.work)
        rows += run(name, graph, inputs, options, [])
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
