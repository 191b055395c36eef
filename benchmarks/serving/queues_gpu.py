"""Calls in flight on one GPU, with one queue for kernels and with several.

    python -m benchmarks.models.gpu prepare GRAPHS --models mobilenet_v2,minilm,resnet50 --batches 1,32
    python -m benchmarks.serving.queues_gpu GRAPHS [--queues 1,4] [--json FILE]

Every number of queues has a process of its own. ``least_ms`` is that of calls one after the other,
``in_flight_ms`` the milliseconds per call with so many callers at a time (`run_async`); ``wrong`` counts the
answers of calls in flight that differ from that of a call by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.heterogeneous.__main__ import _repeated, _serve
from benchmarks.heterogeneous.models import Recommender
from benchmarks.placement.predicted import imported
from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.drivers.vulkan.instance import queues
from mansard.hal import registry
from mansard.ir import Graph
from mansard.placement import PlacementOptions

CALLERS = (1, 2, 4, 8)
MODELS = "mobilenet_v2-1,minilm-1,resnet50-1,minilm-32,resnet50-32,recommender"


def models(options: argparse.Namespace) -> Iterator[tuple[str, Graph, list[list[Any]]]]:
    """Names, graphs and the inputs of some calls."""
    for name in options.models.split(","):
        if name == "recommender":
            example = Recommender(64, 256).example()
            yield name, example.graph, [example.inputs(n) for n in range(8)]
        else:
            graph, inputs = imported(options.graphs, name, options.work)
            yield name, graph, [inputs]


def measure(model: Model, requests: list[list[Any]], seconds: float) -> dict[str, Any]:
    """Latency, time per call in flight, and how many answers of calls in flight are wrong."""
    expected = np.asarray(model(*requests[0]))

    async def all_calls() -> list[Any]:
        return await asyncio.gather(*(model.run_async(*requests[0]) for _ in range(40)))

    wrong = sum(not np.array_equal(np.asarray(answer), expected) for answer in asyncio.run(all_calls()))
    call_seconds = min(_repeated(lambda: model(*requests[0]), seconds))
    in_flight = {}
    for callers in CALLERS:
        count = max(2 * callers, min(1500, int(seconds * 1e3 / call_seconds)))
        asyncio.run(_serve(model, requests, count // 2, callers))
        in_flight[callers] = min(asyncio.run(_serve(model, requests, count, callers)) for _ in range(2))
    return {"least_ms": call_seconds, "in_flight_ms": in_flight, "wrong": wrong}


def child(options: argparse.Namespace) -> None:
    """The rows for one number of queues, a line each."""
    queues.COMPUTE_QUEUES = options.child
    device = registry.open_device(options.device)
    known = {"device": device.info.name, "queues": device.capabilities.compute_queues}
    for name, graph, requests in models(options):
        compiled = compile_graph(graph, CompileOptions((options.device,), PlacementOptions(fallback="error")))
        resources = MemoryResources(compiled.executables, compiled.weights)
        with Model(compiled.plan, resources, max_in_flight=max(CALLERS)) as model:
            print(
                json.dumps({"model": name, **known, **measure(model, requests, options.seconds)}), flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", type=Path)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--queues", default="1,4")
    parser.add_argument("--device", default="vulkan")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--work", type=Path, default=Path("/tmp/mansard-gpu"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.child is not None:
        child(options)
        return
    rows = []
    for count in options.queues.split(","):
        command = [sys.executable, *sys.argv, "--child", count]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            for line in running.stdout:
                print(line, end="", flush=True)
                rows.append(json.loads(line))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
