"""What placement predicts of models, beside what calls take: on each device alone, and spread over all.

    python benchmarks/gpu.py prepare GRAPHS --models mobilenet_v2,minilm,resnet50 --batches 1,32
    python benchmarks/predicted.py GRAPHS --devices cpu,vulkan --json FILE [--dispatches] [--calibrate 5]

``GRAPHS`` holds imported graphs (``benchmarks/gpu.py prepare``). Every model is compiled for each device, and
for all together: placed for latency, for throughput, and each device with at least a third of the dispatches
(``shared``). Predicted are the latency and each device's busy time, by the profiles that ``mansard
calibrate`` measured; measured are the latency of calls one after the other (median and least, inputs and
outputs in host memory) and the least busy times of some profiled calls. ``--dispatches`` adds a row for every
dispatch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from mansard.api import Model
from mansard.artifact.plan import Plan
from mansard.artifact.resources import MemoryResources
from mansard.cli.simulate import chip_of
from mansard.compiler import CompileOptions, compile_graph
from mansard.ir import Graph
from mansard.placement import Placement
from mansard.placement.simulate import simulate
from mansard.placement.what_if import replay
from mansard.runtime.profile import Profile

MODELS = ("mobilenet_v2-1", "minilm-1", "resnet50-1", "mobilenet_v2-32", "minilm-32", "resnet50-32")


def predict(plan: Plan) -> dict[str, Any]:
    """Latency and busy times in ms on this machine, as ``mansard simulate`` tells them."""
    replayed = replay(plan, chip_of(plan, None).profiles, {})
    run = simulate(replayed.problem, replayed.labels)
    busy = {d.name: seconds * 1e3 for d, seconds in zip(plan.devices, run.busy, strict=True)}
    return {"latency_ms": run.seconds * 1e3, "busy_ms": busy, "copied_bytes": run.copied_bytes}


def measure(model: Model, inputs: Sequence[object], seconds: float) -> tuple[dict[str, Any], Profile]:
    """Latency of calls for some seconds, after as long as half of it that does not count, and the profile of
    the shortest of some calls."""
    end = time.perf_counter() + seconds / 2
    while time.perf_counter() < end:
        model(*inputs)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 10 or time.perf_counter() < end:
        begin = time.perf_counter()
        model(*inputs)
        times.append((time.perf_counter() - begin) * 1e3)
    profiles = [model.profile(*inputs) for _ in range(8)]
    best = min(profiles, key=lambda p: p.latency_ms)
    busy = {slot: device["busy_ms"] for slot, device in best.devices.items()}
    least = {s: min(p.devices[s]["busy_ms"] for p in profiles) for s in busy}
    return {
        "latency_ms": statistics.median(times), "least_ms": min(times), "busy_ms": least,
        "copies": best.copies.device, "copied_bytes": best.copies.device_bytes,
    }, best  # fmt: skip


def dispatches(plan: Plan, profile: Profile) -> list[dict[str, Any]]:
    """A row for every dispatch: what it does, the time that was predicted and the time it took."""
    took: dict[tuple[str, str], list[float]] = {}
    for slot, label, start, end, *_ in profile.rows:
        took.setdefault((slot, label), []).append((end - start) / 1e3)
    rows = []
    for d in plan.decisions:
        own = took.get((d.device, d.dispatch))
        cost = d.costs[d.device]
        rows.append({
            "dispatch": d.dispatch, "ops": d.ops, "device": d.device, "bytes": d.bytes, "dtype": d.dtype,
            "operations": d.operations, "predicted_us": float(cost) * 1e3, "us": own.pop(0) if own else None,
        })  # fmt: skip
    return rows


def placements(devices: Sequence[str]) -> dict[str, tuple[tuple[str, ...], Placement]]:
    """Targets and wishes by name: every device alone, and all together."""
    found: dict[str, tuple[tuple[str, ...], Placement]] = {}
    for name in devices:
        found[name] = ((name,), Placement(fallback="error"))
    found["latency"] = (tuple(devices), Placement())
    found["shared"] = (tuple(devices), Placement(min_share=1 / 3))
    found["throughput"] = (tuple(devices), Placement(objective="throughput"))
    return found


def run(
    name: str, graph: Graph, inputs: list[Any], options: argparse.Namespace, reference: list[Any]
) -> list[dict[str, Any]]:
    """Rows of one model; ``reference`` holds the output of the first placement."""
    rows = []
    for label, (targets, wish) in placements(options.devices.split(",")).items():
        if options.placements and label not in options.placements.split(","):
            continue
        begin = time.perf_counter()
        made = compile_graph(graph, CompileOptions(targets=targets, placement=wish))
        row: dict[str, Any] = {"model": name, "placement": label, "compile_s": time.perf_counter() - begin}
        row["predicted"] = predict(made.plan)
        with Model(made.plan, MemoryResources(made.executables, made.weights)) as model:
            output = model(*inputs)
            reference = reference or [output]
            row["measured"], profile = measure(model, inputs, options.seconds)
            counts = profile.dispatches
        row["ratio"] = row["predicted"]["latency_ms"] / row["measured"]["latency_ms"]
        row["error"] = float(np.abs(output - reference[0]).max() / np.abs(reference[0]).max())
        row["dispatches"] = dict(counts)
        if options.dispatches:
            row["rows"] = dispatches(made.plan, profile)
        shown = {k: v for k, v in row.items() if k != "rows"}
        print(json.dumps(shown), flush=True)
        rows.append(row)
    return rows


def imported(folder: Path, name: str, work: Path) -> tuple[Graph, list[Any]]:
    """A graph that ``benchmarks/gpu.py prepare`` wrote with its weights, and an input."""
    import gpu
    from harness import networks

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
    parser.add_argument("--work", type=Path, default=Path("/tmp/mansard-gpu"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.calibrate:
        from mansard.tuning.calibrate import calibrate

        calibrate(options.devices.split(","), options.calibrate)
    options.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.models.split(","):
        graph, inputs = imported(options.graphs, name, options.work)
        rows += run(name, graph, inputs, options, [])
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
