"""Copies beside kernels on a GPU with memory of its own: what a transfer queue is worth, and what is copied.

    python -m benchmarks.overlap.copies_gpu [--side 2048] [--parts 6] [--runs 30] [--json]

Two models of square f32 matrices. `batch` has products of inputs and results of their own: the next input
comes and the last result leaves while one is computed. `handoffs` goes from the CPU to the GPU and back, in
two chains: while rows of one are normed on the CPU, the other is multiplied on the GPU. Each is measured with
the device's transfer queue and without it, in turn: `call_ms` are the shortest calls' on the host's clock,
and `in_flight_ms` the same per call with several threads that call. `devices_ms` are profiled calls from
submission on, to be compared with calls in lockstep; where the transfer queue takes no times, their copies
are in the kernels' queue. `copied_bytes` is what devices copied in a call and `planned_bytes` what the plan
says they should, `host_bytes` what the host copied.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.dtypes import DType
from mansard.hal.registry import open_device
from mansard.ir import Constant, Graph, GraphBuilder, IndexMap, Location, Value
from mansard.ir.scalar import Apply, Arg
from mansard.placement import PlacementOptions

F32 = DType.F32


def batch(side: int, parts: int) -> Graph:
    """Products of inputs of their own with one constant."""
    b = GraphBuilder("batch")
    b.location = Location("on vulkan")
    w = _constant(b, side)
    return b.build([_product(b, b.input(f"x{n}", (side, side), F32), w) for n in range(parts)])


def handoffs(side: int, parts: int) -> Graph:
    """Two chains, each in turn normed by rows on the CPU and multiplied by a constant on the GPU."""
    b = GraphBuilder("handoffs")
    w = _constant(b, side)
    chains = [b.input(f"x{n}", (side, side), F32) for n in range(2)]
    for _ in range(parts // 2):
        for n, x in enumerate(chains):
            b.location = Location("on cpu")
            largest = b.generic(
                [x], [IndexMap.identity(2)], (side, side), Arg(0, F32), reduced=1, combiner="max"
            )
            maps = [IndexMap.identity(2), IndexMap.of_dims((0,))]
            body = Apply("sub", (Arg(0, F32), Arg(1, F32)), F32)
            normed = b.generic([x, largest], maps, (side, side), body)
            squares = Apply("mul", (Arg(0, F32), Arg(0, F32)), F32)
            total = b.generic([normed], maps[:1], (side, side), squares, reduced=1, combiner="add")
            normed = b.generic([normed, total], maps, (side, side), Apply("div", body.args, F32))
            b.location = Location("on vulkan")
            chains[n] = _product(b, normed, w)
    return b.build(chains)


def _constant(b: GraphBuilder, side: int) -> Value:
    data = np.random.default_rng(0).standard_normal((side, side)).astype(np.float32) / np.float32(side)
    return b.constant("w", Constant.of(data, "w"), (side, side), F32)


def _product(b: GraphBuilder, x: Value, w: Value) -> Value:
    side = x.type.shape[0]
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1))]
    body = Apply("mul", (Arg(0, F32), Arg(1, F32)), F32)
    return b.generic([x, w], maps, (side, side, side), body, reduced=1, combiner="add")


GRAPHS: dict[str, Callable[[int, int], Graph]] = {"batch": batch, "handoffs": handoffs}


def shortest(model: Model, inputs: list[Any], runs: int) -> float:
    """Milliseconds of the shortest call."""
    best = float("inf")
    for _ in range(runs):
        begin = time.perf_counter()
        model(*inputs)
        best = min(best, time.perf_counter() - begin)
    return best * 1e3


def in_flight(model: Model, inputs: list[Any], runs: int, at_once: int = 4) -> float:
    """Milliseconds per call when ``at_once`` threads call, each ``runs`` times; the best of three rounds."""
    best = float("inf")
    for _ in range(4):  # the first makes what calls need
        threads = [threading.Thread(target=shortest, args=(model, inputs, runs)) for _ in range(at_once)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = min(best, (time.perf_counter() - begin) / (runs * at_once))
    return best * 1e3


def measure(name: str, side: int, parts: int, runs: int) -> dict[str, Any]:
    """One model, with the transfer queue and without."""
    graph = GRAPHS[name](side, parts)
    targets = ("vulkan",) if name == "batch" else ("cpu", "vulkan")
    placement = PlacementOptions(pins=tuple((f"on {device}", device) for device in targets))
    compiled = compile_graph(graph, CompileOptions(targets, placement))
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal((side, side)).astype(np.float32) for _ in graph.inputs]
    device = open_device("vulkan")
    able = device.capabilities
    models, outputs = [], []
    for apart in (able.transfer_queue, False):
        device.capabilities = dataclasses.replace(able, transfer_queue=apart)
        model = Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights))
        outputs.append(model(*inputs))
        models.append(model)
    device.capabilities = able
    for one, other in zip(*outputs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    best = [float("inf")] * 2
    for _ in range(4):
        best = [min(b, shortest(m, inputs, -(-runs // 4))) for b, m in zip(best, models, strict=True)]
    stats, prediction = models[0].stats, compiled.plan.prediction

    def devices_ms(model: Model, **how: bool) -> float:
        return min(model.profile(*inputs, **how).latency_ms for _ in range(5))

    row = {
        "model": name,
        "device": device.info.name,
        "transfer_queue": able.transfer_queue,
        "value_bytes": 4 * side * side,
        "call_ms": best[0],
        "call_without_transfer_queue_ms": best[1],
        "in_flight_ms": in_flight(models[0], inputs, -(-runs // 4)),
        "devices_ms": devices_ms(models[0]),
        "devices_without_transfer_queue_ms": devices_ms(models[1]),
        "devices_in_lockstep_ms": devices_ms(models[0], lockstep=True),
        "copies": stats.device_copies // stats.calls,
        "copied_bytes": stats.device_bytes // stats.calls,
        "planned_bytes": prediction.copied_bytes if prediction else None,
        "host_bytes": stats.host_bytes // stats.calls,
    }
    for model in models:
        model.close()
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=2048)
    parser.add_argument("--parts", type=int, default=6)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [measure(name, options.side, options.parts, options.runs) for name in GRAPHS]
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        for row in rows:
            print(
                ", ".join(
                    f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}"
                    for key, value in row.items()
                )
            )
    return int(any(row["copied_bytes"] != row["planned_bytes"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
