"""A CPU and a GPU on one model, beside each of them alone, in the same run.

    python -m benchmarks.heterogeneous [--cases handoff,pipeline,memory,copies,split] [--json FILE]

``handoff``: what ``benchmarks.dispatch.handoff`` measures for the CPU, the GPU and the host. ``pipeline``: a
session recommender whose recurrent stage suits a CPU and whose scores suit a GPU, placed by hand and by the
placer, with requests in flight. ``memory``: weights of 4.8 GB, of which a limit lets half lie on the GPU.
``copies``: what calls copy on the way, counted, beside what the plan says. ``split``: one large product
partitioned over both, in the ratio that calls correct. Devices are calibrated first (``--calibrate SECONDS``;
0: as they are).

Of every way: ``latency_ms`` of calls one after the other (median; ``least_ms``), ``in_flight_ms`` per request
with ``--in-flight`` of them, ``busy_ms`` of each device per request (least of some profiled calls),
``in_batches_ms`` per request where 8 come as one batch, ``stages_ms`` likewise by part of the model,
``bound_ms``, that of the busiest device, ``efficiency``, bound over ``in_flight_ms``, and ``lockstep_ms`` per
request, the same plan one piece of work at a time. ``error`` is relative to the largest number that NumPy
expects. ``--small`` is a size for software devices. ``--torch`` adds PyTorch on the same models, on each
device and by hand on both (``benchmarks/heterogeneous/pytorch.py``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dispatch.handoff import measure as handoffs
from benchmarks.heterogeneous.models import Example, FeedForward, Product, Recommender
from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.hal import registry
from mansard.placement import PlacementOptions

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Way:
    """A name for devices and what placement is asked for."""

    name: str
    devices: tuple[str, ...]
    placement: PlacementOptions


@dataclass(frozen=True)
class Settings:
    """What the command line says."""

    gpu: str
    in_flight: int
    seconds: float
    small: bool
    torch: bool


def handoff(settings: Settings) -> Rows:
    """Latencies between devices, and to the host and back."""
    return handoffs([registry.open_device(name) for name in ("cpu", settings.gpu)], 200)


def pipeline(settings: Settings) -> Rows:
    """The recommender on the CPU, on the GPU, and on both."""
    sizes = [Recommender(16, 64, 1 << 14, 10)] if settings.small else RECOMMENDERS
    rows: Rows = []
    for size in sizes:
        example = size.example()
        by_hand = PlacementOptions(pins=((example.second, settings.gpu), ("*", "cpu")))
        placements = [
            *_alone(settings),
            Way("by hand", ("cpu", settings.gpu), by_hand),
            Way("placed for latency", ("cpu", settings.gpu), PlacementOptions()),
            Way("placed for throughput", ("cpu", settings.gpu), PlacementOptions(objective="throughput")),
        ]
        rows += [{"model": str(size), **measure(example, way, settings)} for way in placements]
        rows += _peers(size, example, settings)
    return rows


def memory(settings: Settings) -> Rows:
    """Weights above a limit of the GPU's memory."""
    size = FeedForward(256, 512, 4) if settings.small else FeedForward()
    limit = size.weight_bytes // 2
    both = PlacementOptions(memory=((settings.gpu, limit),))
    placements = [*_alone(settings), Way("limited", ("cpu", settings.gpu), both)]
    example, rows = size.example(), []
    for way in placements:
        row = {"model": str(size), "weight_bytes": size.weight_bytes, **measure(example, way, settings)}
        rows.append({**row, "limit_bytes": limit} if way.name == "limited" else row)
    return rows + _peers(size, example, settings)


def split(settings: Settings) -> Rows:
    """A product that both devices share."""
    size = Product(256, 256, 256) if settings.small else Product()
    example = size.example()
    both = Way("split", ("cpu", settings.gpu), PlacementOptions(split="all"))
    rows = [{"model": str(size), **measure(example, way, settings)} for way in (*_alone(settings), both)]
    return rows + _peers(size, example, settings)


def copies(settings: Settings) -> Rows:
    """Copies of calls of models that change device, beside those that the plan names."""
    rows: Rows = []
    recommender, blocks = Recommender(16, 64, 1 << 14, 10), FeedForward(256, 512, 4)
    both = ("cpu", settings.gpu)
    cases = {
        "recommender": (
            recommender.example(),
            PlacementOptions(pins=(("catalogue", settings.gpu), ("*", "cpu"))),
        ),
        "blocks, every other": (blocks.example(), PlacementOptions(pins=_every_other(blocks, settings.gpu))),
    }
    for name, (example, placement) in cases.items():
        compiled = compile_graph(example.graph, CompileOptions(targets=both, placement=placement))
        calls = 10
        with Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights)) as model:
            model(*example.inputs(0))
            before = model.stats.device_copies, model.stats.device_bytes
            host = model.stats.host_copies, model.stats.host_bytes
            for number in range(calls):
                error = _error(model(*example.inputs(number)), example.expected(example.inputs(number)))
            after = model.stats
            transfers = [
                step
                for device in compiled.plan.devices
                for segment in device.segments
                for step in segment.steps
                if type(step).__name__ == "TransferStep"
            ]
            prediction = compiled.plan.prediction
            rows.append({
                "model": name, "calls": calls, "error": error, "transfers_in_plan": len(transfers),
                "predicted_bytes": prediction.copied_bytes if prediction else None,
                "device_copies": (after.device_copies - before[0]) / calls,
                "device_bytes": (after.device_bytes - before[1]) / calls,
                "host_copies": (after.host_copies - host[0]) / calls,
                "host_bytes": (after.host_bytes - host[1]) / calls,
                "input_bytes": sum(x.nbytes for x in example.inputs(0)),
                "output_bytes": int(example.expected(example.inputs(0)).nbytes),
            })  # fmt: skip
    return rows


def _peers(size: Recommender | FeedForward | Product, example: Example, settings: Settings) -> Rows:
    """Rows of PyTorch, where it was asked for."""
    if not settings.torch:
        return []
    from benchmarks.heterogeneous import pytorch as peers

    if isinstance(size, Recommender):
        calls = peers.recommender(size, example)
    else:
        calls = peers.feed_forward(size, example) if isinstance(size, FeedForward) else peers.product(example)
    rows = peers.rows(example, calls, settings.in_flight, settings.seconds)
    for row in rows:
        print(json.dumps(row), flush=True)
    return [{"model": str(size), **row} for row in rows]


def measure(example: Example, way: Way, settings: Settings) -> dict[str, Any]:
    """A row of one way; what fails has a row with the error."""
    begin = time.perf_counter()
    try:
        artifact = compile_graph(example.graph, CompileOptions(targets=way.devices, placement=way.placement))
        compiled = time.perf_counter() - begin
        resources = MemoryResources(artifact.executables, artifact.weights)
        with Model(artifact.plan, resources, max_in_flight=settings.in_flight) as model:
            row = _measured(model, example, settings)
            row["stages_ms"] = _stages(model, example)
    except Exception as error:
        traceback.print_exc()
        return {"way": way.name, "failed": str(error)}
    prediction = artifact.plan.prediction
    assert prediction is not None
    row["predicted"] = {
        "latency_ms": prediction.latency_ms, "cost_ms": prediction.cost_ms, "bound_ms": prediction.bound_ms,
        "objective": prediction.objective, "method": prediction.method,
    }  # fmt: skip
    row_of_way: dict[str, Any] = {"way": way.name, "compile_s": compiled, **row}
    print(json.dumps(row_of_way), flush=True)
    return row_of_way


def _measured(model: Model, example: Example, settings: Settings) -> dict[str, Any]:
    requests = [example.inputs(number) for number in range(8)]
    error = max(_error(model(*example.inputs(n)), example.answer(n)) for n in range(2))
    times = _repeated(lambda: model(*requests[0]), settings.seconds)
    latency = statistics.median(times)
    count = max(2 * settings.in_flight, min(2000, int(settings.seconds * 1e3 / min(times))))
    clients = settings.in_flight
    asyncio.run(_serve(model, requests, count, clients))
    served = min(asyncio.run(_serve(model, requests, count, clients)) for _ in range(3))
    batch = [np.concatenate(parts) for parts in zip(*requests, strict=True)]
    batched = statistics.median(_repeated(lambda: model.run_in_batches(*batch), settings.seconds)) / 8
    profiles = [model.profile(*requests[0]) for _ in range(6)]
    slots = list(profiles[0].devices)
    busy = {slot: min(p.devices[slot]["busy_ms"] for p in profiles) for slot in slots}
    some = max(2, min(200, count // 4))
    in_step = model.profile(*requests[0], requests=some, in_flight=1, lockstep=True)
    pipelined = model.profile(*requests[0], requests=some, in_flight=settings.in_flight)
    ledger = [row for row in model.memory() if row.what == "weights"]
    weights = {
        slot.name: sum(r.bytes for r in ledger if r.device == slot.name) for slot in model.bind().slots
    }
    bound = max(busy.values())
    return {
        "error": error, "latency_ms": latency, "least_ms": min(times), "in_flight": settings.in_flight,
        "in_flight_ms": served, "in_batches_ms": batched, "busy_ms": busy, "bound_ms": bound,
        "efficiency": bound / served,
        "lockstep_ms": in_step.latency_ms / some, "profiled_in_flight_ms": pipelined.latency_ms / some,
        "all_busy_percent": 100 * pipelined.all_busy_ms / pipelined.latency_ms,
        "dispatches": dict(profiles[0].dispatches), "weights": weights,
        "shares": [str(share) for share in model.shares],
    }  # fmt: skip


def _stages(model: Model, example: Example) -> dict[str, float]:
    """Milliseconds of the dispatches of each part of the model and device; the least of some calls."""
    part = {(d.device, d.dispatch): d.location for d in model.plan.decisions}
    stages: dict[str, float] = {}
    for _ in range(6):
        sums: dict[str, float] = {}
        for row in model.profile(*example.inputs(0)).rows:
            name = f"{part.get((row.slot, row.label), 'copies')} on {row.slot}"
            name = name if name.startswith(("session", "catalogue", "copies")) else f"on {row.slot}"
            sums[name] = sums.get(name, 0.0) + (row.end_ns - row.start_ns) / 1e6
        stages = {name: min(ms, stages.get(name, ms)) for name, ms in sums.items()}
    return stages


async def _serve(model: Model, requests: Sequence[list[Any]], count: int, clients: int) -> float:
    """Milliseconds per request of ``count`` by clients that each wait for an answer before they ask again."""
    begin = time.perf_counter()
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            await model.run_async(*requests[number % len(requests)])

    await asyncio.gather(*(client() for _ in range(clients)))
    return (time.perf_counter() - begin) / count * 1e3


def _repeated(call: Callable[[], object], seconds: float) -> list[float]:
    """Milliseconds of calls for some seconds, after as many that do not count: a GPU that has idled takes
    that long to raise its clock."""
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 5 or time.perf_counter() < begin + 2 * seconds:
        started = time.perf_counter()
        call()
        ended = time.perf_counter()
        if ended > begin + seconds or len(times) < 5:
            times.append((ended - started) * 1e3)
    return times[5:] or times


def _alone(settings: Settings) -> list[Way]:
    gpu = settings.gpu
    return [Way("cpu", ("cpu",), PlacementOptions()), Way("gpu", (gpu,), PlacementOptions(fallback="error"))]


def _every_other(blocks: FeedForward, gpu: str) -> tuple[tuple[str, str], ...]:
    devices = (gpu, "cpu")
    return tuple((f"block{n}", devices[n % 2]) for n in range(blocks.blocks))


def _error(output: Any, expected: Any) -> float:
    return float(np.abs(output - expected).max() / np.abs(expected).max())


CASES: dict[str, Callable[[Settings], Rows]] = {
    "handoff": handoff, "pipeline": pipeline, "memory": memory, "copies": copies, "split": split,
}  # fmt: skip
RECOMMENDERS = [Recommender(64, 256), Recommender(128, 256)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--gpu", default="vulkan")
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.5, help="to time each way")
    parser.add_argument("--calibrate", type=float, default=3.0, metavar="SECONDS", help="for each device")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--torch", action="store_true", help="PyTorch beside it")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    settings = Settings(options.gpu, options.in_flight, options.seconds, options.small, options.torch)
    result: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "devices": {name: registry.open_device(name).info.name for name in ("cpu", options.gpu)},
    }
    if options.calibrate > 0:
        from mansard.calibration import measure as calibrate
        from mansard.calibration import to_toml

        result["profiles"] = to_toml(calibrate(["cpu", options.gpu], options.calibrate))
    for name in options.cases.split(","):
        result[name] = CASES[name](settings)
        if name in ("handoff", "copies"):
            print(json.dumps({name: result[name]}), flush=True)
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
