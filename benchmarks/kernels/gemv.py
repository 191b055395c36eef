"""Matrix-vector products with constant weights against the memory bandwidth of the cores that run them.

    python -m benchmarks.kernels.gemv [--threads 1,2] [--shapes 1024x2048,...] [--types f32,bf16,...]
        [--json FILE]

Each shape is K x N (reduced, columns); a type is that of the weights (f32, f16, bf16, i8), and the vector is
of the same type but for f16 (f32). A call makes the product with as many weights as no cache holds
together, and the time of each is its shortest over all rounds. The bandwidth is that of a kernel that
only reads, in pieces of the same size, over as much memory, in the same process and in turn. Thread counts
are measured in processes of their own. Rows: shape, type, threads, us, gb_s, stream_gb_s, share.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
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
from mansard.ir import Constant, Graph, GraphBuilder, IndexMap
from mansard.ir.scalar import Apply, Arg, Cast, Scalar

SHAPES = ("1024x1024", "1024x2048", "2048x1024", "1024x3072", "3072x1024", "1024x151936")
"""The layers and the head of Qwen3-0.6B."""
TYPES = ("f32", "f16", "bf16", "i8")
COLD_BYTES = 192 << 20
"""Weights of one call, several times any cache."""
TASK_BYTES = 64 << 10


def stream_kernel(lanes: int) -> Kernel:
    """Reads `TASK_BYTES` in each workgroup, one line after another, and stores one vector of their sum."""
    b = KernelBuilder("stream", [(DType.I32, False), (DType.I32, True)], 0)
    source, sums = b.bindings
    count = TASK_BYTES // 4
    first = b.mul(b.workgroup_id(0), b.idx(count))
    zeros = [b.const(0, DType.I32, lanes) for _ in range(4)]
    with b.for_(0, count, 4 * lanes, inits=zeros) as loop:
        places = [b.add(b.add(first, loop.index), b.idx(i * lanes)) for i in range(4)]
        loop.yield_(*(b.add(c, b.load(source, p, lanes)) for c, p in zip(loop.carried, places, strict=True)))
    x, y, z, w = loop.results
    b.store(sums, b.idx(0), b.add(b.add(x, y), b.add(z, w)))
    return b.build()


@contextmanager
def stream(piece: int) -> Iterator[Callable[[], list[int]]]:
    """A callable that reads `COLD_BYTES` in pieces and gives the nanoseconds of each."""
    compiler = backend("cpu")
    target = compiler.parse_target("cpu")
    lanes = target.lanes(DType.I32)
    (spec,) = compiler.compile([stream_kernel(lanes)], target)
    device = registry.open_device("cpu")
    executable = device.load(spec)
    count = max(1, COLD_BYTES // piece)
    source, sums = device.allocate(count * piece, MemoryKind.SHARED), device.allocate(256, MemoryKind.SHARED)
    source.view()[:] = 1
    refs = [(BufferRef(source, i * piece), BufferRef(sums)) for i in range(count)]
    grid = (piece // TASK_BYTES, 1, 1)
    commands = device.record(
        [DispatchCommand(executable, "stream", pair, (), grid) for pair in refs], profile=True
    )
    timeline, values = Semaphore("stream"), iter(range(1, 1 << 30))

    def measure() -> list[int]:
        done = Point(timeline, next(values))
        device.submit([Submission(commands, signal=(done,))])
        done.wait(60)
        return [row.end_ns - row.start_ns for row in commands.profile()]

    yield measure
    commands.close()
    executable.close()
    source.close()
    sums.close()


def gemv_graph(k: int, n: int, weights: DType, copies: int) -> Graph:
    """One vector of ``k`` times ``copies`` constants (n, k); sums in f32 (i32 for integers)."""
    vector = DType.F32 if weights is DType.F16 else weights
    total = DType.I32 if weights.is_int else DType.F32
    b = GraphBuilder("gemv")
    x = b.input("x", (1, k), vector)
    data = np.ones((n, k), weights.numpy)
    reads = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((1, 2))]

    def wide(index: int, dtype: DType) -> Scalar:
        return Arg(index, dtype) if dtype is total else Cast(Arg(index, dtype), total)

    body = Apply("mul", (wide(0, vector), wide(1, weights)), total)
    outputs = []
    for number in range(copies):
        w = b.constant("w", Constant.of(data.copy(), f"w{number}"), (n, k), weights)
        outputs.append(b.generic([x, w], reads, (1, n, k), body, reduced=1, combiner="add"))
    return b.build(outputs)


def _row(shape: str, kind: str, threads: int, rounds: int) -> dict[str, Any]:
    k, n = (int(s) for s in shape.split("x"))
    weights = DType(kind)
    piece = k * n * weights.itemsize
    copies = max(2, COLD_BYTES // piece)
    result = compile_graph(gemv_graph(k, n, weights, copies), CompileOptions(targets=("cpu",)))
    vector = np.ones((1, k), (DType.F32 if weights is DType.F16 else weights).numpy)
    best: list[int] = []
    reading: list[int] = []
    with (
        Model(result.plan, MemoryResources(result.executables, result.weights)) as model,
        stream(piece) as read,
    ):
        for _ in range(rounds):
            times = [end - start for _, _, start, end, _ in model.profile(vector).rows]
            best = [min(pair) for pair in zip(best or times, times, strict=True)]
            times = read()
            reading = [min(pair) for pair in zip(reading or times, times, strict=True)]
    took, alone = statistics.median(best), statistics.median(reading)
    return {
        "shape": shape,
        "type": kind,
        "threads": threads,
        "us": round(took / 1e3, 2),
        "gb_s": round(piece / took, 1),
        "stream_gb_s": round(piece / alone, 1),
        "share": round(alone / took, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    shapes, kinds = options.shapes.split(","), options.types.split(",")
    if options.worker:
        for shape in shapes:
            for kind in kinds:
                print(json.dumps(_row(shape, kind, int(options.threads), options.rounds)), flush=True)
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
        command += ["--types", options.types, "--rounds", str(options.rounds)]
        environment = {**os.environ, "MANSARD_NUM_THREADS": threads}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                row = json.loads(line)
                table.append(row)
                print(
                    f"{row['shape']:12} {row['type']:5} {row['threads']:2} threads {row['us']:10.2f} us"
                    f" {row['gb_s']:7.1f} GB/s  {100 * row['share']:5.1f} % of {row['stream_gb_s']}",
                    flush=True,
                )
        if process.returncode:
            raise SystemExit(process.returncode)
    if options.json:
        Path(options.json).write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
