"""What priorities, deadlines and large batches do, on simulated devices that run in real time.

    python -m benchmarks.serving [--call-ms 2] [--repeat 60] [--json]

`urgent`    single calls of one model while another keeps `in_flight` calls on the same device all the time:
            their latency with the priority of the others, and with a higher one. Nothing interrupts what
            runs, so an urgent call takes between one and two calls, and one like the others `in_flight` + 1.
`deadline`  how much later than its deadline a call fails when its device hangs, blocking and awaited.
`batches`   a batch of `rows` calls over two devices, one half of the model on each: cut into calls in flight
            together, and one call after another. The bound is rows + 1 halves.

Times are milliseconds. The devices are simulated NPUs (`examples/npu_plugin`); a half takes `call_ms`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.overlap.case import compiled, go_first, simulate_npus
from benchmarks.overlap.simulated import SIDE, part, pipeline
from mansard.api import Model
from mansard.dtypes import DType
from mansard.errors import DeadlineExceededError
from mansard.hal.threaded import ThreadedDevice
from mansard.placement import PlacementOptions

IN_FLIGHT = 8
ROWS = 32
DEADLINE_MS = 20.0


def main() -> None:
    """Run the cases and print them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--call-ms", type=float, default=2.0)
    parser.add_argument("--repeat", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = simulate_npus([options.call_ms, options.call_ms])
    figures = {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "runs": go_first()},
        "call_ms": options.call_ms,
        "urgent": urgent(names[0], options.repeat),
        "deadline": deadline(names[0], options.repeat // 4),
        "batches": chunked_run(names, options.call_ms),
    }
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    for name, row in figures.items():
        print(f"{name:9} {row}")


def urgent(device: str, repeat: int) -> dict[str, object]:
    """Latencies of calls beside those of another model."""
    model, other = (compiled(pipeline(1, 1), [device], PlacementOptions(), IN_FLIGHT) for _ in range(2))
    x = sample()
    with model, other:
        latencies = {f"priority_{p}": asyncio.run(_latencies(model, other, x, p, repeat)) for p in (0, 1)}
    return {"in_flight": IN_FLIGHT, **latencies}


async def _latencies(
    model: Model, other: Model, x: np.ndarray, priority: int, repeat: int
) -> dict[str, float]:
    stop = asyncio.Event()

    async def load() -> None:
        while not stop.is_set():
            await other.run_async(x)

    tasks = [asyncio.ensure_future(load()) for _ in range(2 * IN_FLIGHT)]
    await model.run_async(x)
    took = []
    for _ in range(repeat):
        start = time.perf_counter()
        await model.run_async(x, priority=priority)
        took.append(time.perf_counter() - start)
    stop.set()
    await asyncio.gather(*tasks)
    return summary(took)


def deadline(name: str, repeat: int) -> dict[str, object]:
    """How late the error comes while the device hangs."""
    with compiled(pipeline(1, 1), [name], PlacementOptions(), 2 * repeat + 1) as model:
        x, late = sample(), {"blocking": list[float](), "awaited": list[float]()}
        model(x)
        device = model.bind().slots[0].device
        assert isinstance(device, ThreadedDevice)
        device.inject(hang=True)
        for _ in range(repeat):
            start = time.perf_counter()
            try:
                model(x, deadline=DEADLINE_MS / 1e3)
            except DeadlineExceededError:
                late["blocking"].append(time.perf_counter() - start - DEADLINE_MS / 1e3)
            late["awaited"].append(asyncio.run(_lateness(model, x)))
        device.release()
        model(x)
    return {"deadline_ms": DEADLINE_MS, **{how: summary(took) for how, took in late.items()}}


async def _lateness(model: Model, x: np.ndarray) -> float:
    start = time.perf_counter()
    try:
        await model.run_async(x, deadline=DEADLINE_MS / 1e3)
    except DeadlineExceededError:
        return time.perf_counter() - start - DEADLINE_MS / 1e3
    raise AssertionError("the device hangs, and the call has ended")


def chunked_run(names: Sequence[str], call_ms: float) -> dict[str, float]:
    """One batch through two devices."""
    pins = tuple((part(n).text, name) for n, name in enumerate(names))
    with compiled(pipeline(2, 1), names, PlacementOptions(pins=pins), 4) as model:
        x = np.concatenate([sample()] * ROWS)
        model.run_in_batches(x)
        chunked, alone = [], []
        for _ in range(5):
            start = time.perf_counter()
            joined = model.run_in_batches(x)
            chunked.append(time.perf_counter() - start)
            start = time.perf_counter()
            rows = [model(x[SIDE * n : SIDE * (n + 1)]) for n in range(ROWS)]
            alone.append(time.perf_counter() - start)
            assert np.array_equal(np.concatenate(rows), joined)
    bound = (ROWS + 1) * call_ms
    best = min(chunked) * 1e3
    return {
        "rows": ROWS,
        "bound_ms": bound,
        "together_ms": round(best, 2),
        "one_by_one_ms": round(min(alone) * 1e3, 2),
        "efficiency": round(bound / best, 3),
    }


def sample() -> np.ndarray:
    """An input of the models."""
    return np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(DType.BF16.numpy)


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Of times, in milliseconds."""
    ordered = sorted(1e3 * s for s in seconds)
    middle, tail = statistics.median(ordered), ordered[math.ceil(0.9 * (len(ordered) - 1))]
    return {"median": round(middle, 2), "p90": round(tail, 2)}


if __name__ == "__main__":
    main()
