"""F32 matrix products with constant weights against the FMA peak of the cores that run them.

    python -m benchmarks.kernels.gemm [--threads 1,2] [--shapes 128x384x1536,...] [--rounds 30] [--cold]
        [--json FILE]

Each shape is M x K x N (rows, reduced, columns), compiled by `compile_graph` with bias and the epilogue
named behind a colon (none, relu6, residual, gelu; default none), and run through the executor; the time
is the shortest of the dispatch alone over all rounds, the shapes taken in turn. The peak is measured
in the same process by a kernel that does nothing but independent fused multiply-adds. Thread counts
are measured in processes of their own. With ``--cold`` a call makes the product with as many weights
as no cache holds together, as the layers of a model do. Rows: shape, threads, us, gflops, peak_gflops, share.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.codegen.kernel import Kernel, KernelBuilder
from mansard.compiler import CompileOptions, compile_graph
from mansard.compiler.targets import backend
from mansard.dtypes import DType
from mansard.hal import BufferRef, DispatchCommand, MemoryKind, Point, Semaphore, Submission, registry
from mansard.ir import Constant, Graph, GraphBuilder, IndexMap, Value
from mansard.ir.scalar import Apply, Arg, Const, Scalar

F32 = DType.F32
SHAPES = (
    # MobileNetV2 (1x1 convolutions: pixels x channels in x channels out)
    "12544x32x16", "12544x16x96", "3136x24x144", "3136x144x24", "784x32x192", "784x192x32", "196x64x384",
    "196x384x64", "196x576x96", "49x160x960", "49x960x160", "49x960x320", "49x320x1280",
    # ResNet-50
    "3136x64x256", "3136x256x64", "784x512x128", "784x128x512", "196x1024x256", "196x256x1024",
    "49x2048x512", "49x512x2048",
    # fully connected
    "1x2048x1000", "1x1280x1000",
    # MiniLM-L12 at 128 tokens, Qwen3-0.6B prefill of 128
    "128x384x384", "128x384x1536:gelu", "128x1536x384:residual", "128x1024x3072", "128x3072x1024",
    "128x1024x2048", "128x2048x1024",
    "1024x1024x1024",
)  # fmt: skip

COLD_BYTES = 96 << 20
"""Weights of one call with ``--cold``."""


def peak_kernel(lanes: int, steps: int) -> Kernel:
    """Independent chains of fused multiply-adds, enough to cover their latency: 12, of 2 * lanes each."""
    b = KernelBuilder("peak", [(F32, True)], 0)
    memory = b.bindings[0]
    x, y = (b.load(memory, b.idx(i * lanes), lanes) for i in range(2))
    chains = [b.load(memory, b.idx((i + 2) * lanes), lanes) for i in range(12)]
    with b.for_(0, steps, inits=chains) as loop:
        loop.yield_(*(b.fma(x, y, c) for c in loop.carried))
    for i, result in enumerate(loop.results):
        b.store(memory, b.idx((i + 2) * lanes), result)
    return b.build()


@contextmanager
def fma_peak() -> Iterator[Any]:
    """A callable that gives GFLOP/s of FMA on all threads of the CPU device, measured once per call."""
    steps, workgroups = 20000, 16
    compiler = backend("cpu")
    target = compiler.parse_target("cpu")
    lanes = target.lanes(F32)
    (spec,) = compiler.compile([peak_kernel(lanes, steps)], target)
    device = registry.open_device("cpu")
    executable = device.load(spec)
    buffer = device.allocate(14 * lanes * 4, MemoryKind.SHARED)
    buffer.view()[:] = 0
    commands = device.record(
        [DispatchCommand(executable, "peak", (BufferRef(buffer),), (), (workgroups, 1, 1))], profile=True
    )
    timeline = Semaphore("peak")
    values = iter(range(1, 1 << 30))

    def measure() -> float:
        done = Point(timeline, next(values))
        device.submit([Submission(commands, signal=(done,))])
        done.wait(60)
        (row,) = commands.profile()
        return 2.0 * 12 * lanes * steps * workgroups / (row.end_ns - row.start_ns)

    yield measure
    commands.close()
    executable.close()
    buffer.close()


def _apply(name: str, *args: Scalar) -> Apply:
    return Apply(name, args, F32)


def _gelu(x: Scalar) -> Scalar:
    erf = _apply("erf", _apply("mul", x, Const(0.7071067811865476, F32)))
    half = _apply("mul", x, Const(0.5, F32))
    return _apply("mul", half, _apply("add", erf, Const(1.0, F32)))


def gemm_graph(m: int, k: int, n: int, epilogue: str = "none", copies: int = 1) -> Graph:
    """x (m, k) times a constant (k, n), plus a bias, then the epilogue; so often, with other weights.

    The model's outputs are the sums of the products: these stay in the arena, as inside a model.
    """
    b = GraphBuilder("gemm")
    x = b.input("x", (m, k), F32)
    residual = b.input("r", (m, n), F32) if epilogue == "residual" else None
    products = [_product(b, x, n, epilogue, residual, number) for number in range(copies)]
    same, a0 = IndexMap.identity(2), Arg(0, F32)
    return b.build([b.generic([y], [same], (m, n), a0, reduced=2, combiner="add") for y in products])


def _product(b: GraphBuilder, x: Value, n: int, epilogue: str, residual: Value | None, number: int) -> Value:
    m, k = x.type.shape
    rng = np.random.default_rng(number)
    w = b.constant("w", Constant.of(rng.standard_normal((k, n)).astype(np.float32), "w"), (k, n), F32)
    bias = b.constant("b", Constant.of(rng.standard_normal(n).astype(np.float32), "b"), (n,), F32)
    a0, a1 = Arg(0, F32), Arg(1, F32)
    reads = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1))]
    y = b.generic([x, w], reads, (m, n, k), _apply("mul", a0, a1), reduced=1, combiner="add")
    same, column = IndexMap.identity(2), IndexMap.of_dims((1,))
    y = b.generic([y, bias], [same, column], (m, n), _apply("add", a0, a1))
    if epilogue == "relu6":
        clamp = _apply("min", _apply("max", a0, Const(0.0, F32)), Const(6.0, F32))
        return b.generic([y], [same], (m, n), clamp)
    if residual is not None:
        return b.generic([y, residual], [same, same], (m, n), _apply("add", a0, a1))
    if epilogue == "gelu":
        return b.generic([y], [same], (m, n), _gelu(a0))
    if epilogue == "none":
        return y
    raise SystemExit(f"unknown epilogue {epilogue!r}: none, relu6, residual or gelu")


def _model(shape: str, cold: bool = False) -> tuple[Model, list[np.ndarray], float]:
    sizes, _, epilogue = shape.partition(":")
    m, k, n = (int(s) for s in sizes.split("x"))
    graph = gemm_graph(m, k, n, epilogue or "none", -(-COLD_BYTES // (4 * k * n)) if cold else 1)
    result = compile_graph(graph, CompileOptions(targets=("cpu",)))
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(tuple(v.type.shape)).astype(np.float32) for v in graph.inputs]
    return Model(result.plan, MemoryResources(result.executables, result.weights)), inputs, 2.0 * m * k * n


def _times(model: Model, inputs: list[np.ndarray]) -> list[int]:
    """Nanoseconds of each product of one call."""
    return [end - start for _, label, start, end, _ in model.profile(*inputs).rows if "contraction" in label]


def measure(shapes: list[str], threads: int, rounds: int, cold: bool) -> list[dict[str, Any]]:
    """Every shape and the peak, in turn, on the CPU device of this process."""
    models = {shape: _model(shape, cold) for shape in shapes}
    best: dict[str, list[int]] = {}
    peak = 0.0
    with fma_peak() as measure_peak:
        for _ in range(rounds):
            peak = max(peak, measure_peak())
            for shape, (model, inputs, _) in models.items():
                for _ in range(1 if cold else 3):
                    times = _times(model, inputs)
                    best[shape] = [min(pair) for pair in zip(best.get(shape, times), times, strict=True)]
    took = {shape: statistics.median(times) for shape, times in best.items()}
    return [
        {
            "shape": shape,
            "threads": threads,
            "us": round(took[shape] / 1e3, 2),
            "gflops": round(flops / took[shape], 1),
            "peak_gflops": round(peak, 1),
            "share": round(flops / took[shape] / peak, 3),
        }
        for shape, (_, _, flops) in models.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--cold", action="store_true", help="read every weight from memory, not from a cache")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        rows = measure(options.shapes.split(","), int(options.threads), options.rounds, options.cold)
        print(json.dumps(rows))
        return
    table: list[dict[str, Any]] = []
    for threads in options.threads.split(","):
        command = [
            sys.executable,
            "-m",
            __spec__.name,
            "--worker",
            "--threads",
            threads,
            "--shapes",
            options.shapes,
        ]
        command += ["--rounds", str(options.rounds), *(["--cold"] if options.cold else [])]
        environment = {**os.environ, "MANSARD_NUM_THREADS": threads}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
        rows = json.loads(done.stdout)
        for row in rows:
            print(
                f"{row['shape']:24} {row['threads']:2} threads {row['us']:10.2f} us"
                f" {row['gflops']:8.1f} GFLOP/s  {100 * row['share']:5.1f} % of {row['peak_gflops']}"
            )
        table += rows
    if options.json:
        Path(options.json).write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
