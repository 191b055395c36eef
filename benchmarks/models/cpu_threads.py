"""How the CPU device scales with threads, beside PyTorch on the same cores in the same run.

    python -m benchmarks.models.cpu_threads [--threads 1,2,4,8,16] [--graphs GRAPHS --models minilm-1]
        [--json FILE]

Products are M x K x N with constant weights: square ones as bound by arithmetic, those of one row by reading
weights. ``GRAPHS`` holds imported graphs (``benchmarks.models.gpu prepare``); PyTorch runs the same networks,
as they are. Each number of threads has a process of its own. Times are the least of some. Rows: case,
threads, peer, ms, and gflops or gb_s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PRODUCTS = ("128x384x1536", "512x512x512", "1024x1024x1024", "2048x2048x2048", "1x8192x8192")
_SECONDS = 0.6


def least_ms(call: Callable[[], object], seconds: float = _SECONDS) -> float:
    """The least time of a call."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def _products(shapes: list[str]) -> list[dict[str, Any]]:
    import torch

    from benchmarks.kernels.gemm import gemm_graph
    from mansard.api import Model
    from mansard.artifact.resources import MemoryResources
    from mansard.compiler import CompileOptions, compile_graph

    rows = []
    for shape in shapes:
        m, k, n = (int(s) for s in shape.split("x"))
        compiled = compile_graph(gemm_graph(m, k, n), CompileOptions(targets=("cpu",)))
        x = np.random.default_rng(1).standard_normal((m, k), np.float32)
        with Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights)) as model:
            model(x)
            end, best = time.perf_counter() + _SECONDS, float("inf")
            while time.perf_counter() < end:
                spans = [r[3] - r[2] for r in model.profile(x).rows if "contraction" in r[1]]
                best = min(best, sum(spans) / 1e6)
            rows.append(_row(shape, "mansard", best, m, k, n))
        a, w, bias = torch.from_numpy(x), torch.randn(k, n), torch.randn(n)
        with torch.inference_mode():
            out = torch.empty(m, n)
            took = least_ms(lambda: torch.addmm(bias, a, w, out=out))  # noqa: B023
            rows.append(_row(shape, "torch", took, m, k, n))
    return rows


def _row(shape: str, peer: str, ms: float, m: int, k: int, n: int) -> dict[str, Any]:
    figures = {"gb_s": round(4e-6 * k * n / ms, 1)} if m == 1 else {"gflops": round(2e-6 * m * k * n / ms, 1)}
    return {"case": shape, "peer": peer, "ms": round(ms, 4), **figures}


def _models(graphs: Path, names: list[str], work: Path) -> list[dict[str, Any]]:
    import torch

    from benchmarks.models.gpu import _module
    from benchmarks.placement.predicted import imported
    from mansard.api import Model
    from mansard.artifact.resources import MemoryResources
    from mansard.compiler import CompileOptions, compile_graph

    rows = []
    for name in names:
        graph, (x,) = imported(graphs, name, work)
        compiled = compile_graph(graph, CompileOptions(targets=("cpu",)))
        with Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights)) as model:
            model(x)
            row = {"case": name, "peer": "mansard", "ms": round(least_ms(lambda: model(x)), 3)}  # noqa: B023
            profiles = [model.profile(x) for _ in range(10)]
            busy = min(next(iter(p.devices.values()))["busy_ms"] for p in profiles)
            rows.append({**row, "busy_ms": round(busy, 3)})
        module, tensor = _module(name.rpartition("-")[0], work), torch.from_numpy(x)
        with torch.inference_mode():
            rows.append({"case": name, "peer": "torch", "ms": round(least_ms(lambda: module(tensor)), 3)})  # noqa: B023
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", default="1,2,4,8,16")
    parser.add_argument("--products", default=",".join(PRODUCTS))
    parser.add_argument("--graphs", type=Path)
    parser.add_argument("--models", default="")
    parser.add_argument("--work", type=Path, default=Path("/tmp/mansard-gpu"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        import torch

        torch.set_num_threads(int(options.threads))
        rows = _products([s for s in options.products.split(",") if s])
        names = [name for name in options.models.split(",") if name]
        print(json.dumps(rows + (_models(options.graphs, names, options.work) if names else [])))
        return
    table = []
    for threads in options.threads.split(","):
        command = [
            sys.executable,
            "-m",
            __spec__.name,
            "--worker",
            "--threads",
            threads,
            "--products",
            options.products,
        ]
        command += ["--models", options.models, "--work", str(options.work)]
        command += ["--graphs", str(options.graphs)] if options.graphs else []
        environment = {**os.environ, "MANSARD_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
        for row in json.loads(done.stdout.splitlines()[-1]):
            table.append({"threads": int(threads), **row})
            print(json.dumps(table[-1]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
