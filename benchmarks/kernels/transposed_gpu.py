"""Results in the order of a transpose on a GPU: stored by the kernel that computes them, or by a second one.

    python -m benchmarks.kernels.transposed_gpu [--device vulkan] [--json FILE]

Times are the device's own, each the shortest of some dispatches of a recording with barriers between; two
kernels are the sum of both, without the pause between them. Results are compared with each other.
Rows: result, us (one kernel), two_us, ratio, error (relative to the largest result).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernels.gemm_gpu import WARM_SECONDS, timed, upload
from benchmarks.kernels.gemv_gpu import Kernels
from benchmarks.kernels.layers_gpu import Layer, multiplied
from mansard import dims
from mansard.dtypes import DType
from mansard.hal import Buffer, BufferRef
from mansard.ir import Graph, GraphBuilder, IndexMap
from mansard.ir.dispatch import Dispatch
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index, Scalar
from mansard.passes.fusion.fuse import fuse
from mansard.testing.graphs import transposed

F32 = DType.F32


def convolution(layer: Layer, dtype: DType = F32) -> Graph:
    """The results of a convolution, rounded to ``dtype`` as its operands are, channels first."""
    b = GraphBuilder("layer")
    y = layer.sums(b, dtype)
    if dtype is not F32:
        y = b.generic([y], [IndexMap.identity(4)], y.type.shape, Cast(Arg(0, F32), dtype))
    return b.build([transposed(b, y, (0, 3, 1, 2))])


def product(rows: int, depth: int, columns: int, dtype: DType = F32) -> Graph:
    """A matrix product as columns of rows."""
    b = GraphBuilder("product")
    x, w = b.input("x", (rows, depth), dtype), b.input("w", (depth, columns), dtype)
    body = multiplied(dtype)
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1))]
    y = b.generic([x, w], maps, (rows, columns, depth), body, reduced=1, combiner="add")
    if dtype is not F32:
        y = b.generic([y], [IndexMap.identity(2)], (rows, columns), Cast(Arg(0, F32), dtype))
    return b.build([transposed(b, y, (1, 0))])


def resized(size: int, channels: int, out: int) -> Graph:
    """An image enlarged linearly along both dims, as networks for segmentation end; channels first."""
    b, i64 = GraphBuilder("resize"), DType.I64
    x = b.input("x", (size, size, channels), F32)
    real = Const((size - 1) / (out - 1), F32)
    places = [Apply("mul", (Cast(Index(d), F32), real), F32) for d in range(2)]
    first = [Apply("min", (Cast(p, i64), Const(size - 2, i64)), i64) for p in places]
    parts = [Apply("sub", (p, Cast(f, F32)), F32) for p, f in zip(places, first, strict=True)]

    def row(step: int) -> Scalar:
        y = Apply("add", (first[0], Const(step, i64)), i64)
        left = Gather(0, (y, first[1], Index(2)), F32)
        right = Gather(0, (y, Apply("add", (first[1], Const(1, i64)), i64), Index(2)), F32)
        return _between(left, right, parts[1])

    body = _between(row(0), row(1), parts[0])
    y = b.generic([x], [None], (out, out, channels), body)
    return b.build([transposed(b, y, (2, 0, 1))])


def _between(low: Scalar, high: Scalar, part: Scalar) -> Scalar:
    difference = Apply("sub", (high, low), F32)
    return Apply("add", (low, Apply("mul", (difference, part), F32)), F32)


def elementwise(rows: int, columns: int, functions: int) -> Graph:
    """Columns of rows of so many functions of their elements."""
    b = GraphBuilder("map")
    y = b.input("x", (rows, columns), F32)
    for _ in range(functions):
        y = b.generic([y], [IndexMap.identity(2)], (rows, columns), Apply("tanh", (Arg(0, F32),), F32))
    return b.build([transposed(b, y, (1, 0))])


BF16 = DType.BF16
GRAPHS: dict[str, Callable[[], Graph]] = {
    "posenet heatmaps 17x17x1024 -> 17": lambda: convolution(Layer(1, 17, 1024, 17)),
    "posenet offsets 17x17x1024 -> 34": lambda: convolution(Layer(1, 17, 1024, 34)),
    "u-net 128x128x64 -> 2": lambda: convolution(Layer(1, 128, 64, 2)),
    "u-net 256x256x32 -> 4": lambda: convolution(Layer(1, 256, 32, 4)),
    "classes 33x33x256 -> 21": lambda: convolution(Layer(1, 33, 256, 21)),
    "3x3 56x56x64": lambda: convolution(Layer(1, 56, 64, 64, 3)),
    "3x3 14x14x256": lambda: convolution(Layer(1, 14, 256, 256, 3)),
    "1x1 56x56x64 -> 256": lambda: convolution(Layer(1, 56, 64, 256)),
    "1x1 14x14x1024 -> 256": lambda: convolution(Layer(1, 14, 1024, 256)),
    "32 of 3x3 56x56x64": lambda: convolution(Layer(32, 56, 64, 64, 3)),
    "3x3 56x56x64 bf16": lambda: convolution(Layer(1, 56, 64, 64, 3), BF16),
    "32 of 1x1 28x28x512 -> 128 bf16": lambda: convolution(Layer(32, 28, 512, 128), BF16),
    "32 of 3x3 56x56x64 bf16": lambda: convolution(Layer(32, 56, 64, 64, 3), BF16),
    "product 2048x2048x2048": lambda: product(2048, 2048, 2048),
    "product 2048x2048x2048 bf16": lambda: product(2048, 2048, 2048, BF16),
    "product 4096x16x4096": lambda: product(4096, 16, 4096),
    "product 4x1024x4096": lambda: product(4, 1024, 4096),
    "resize 33 -> 257 of 21": lambda: resized(33, 21, 257),
    "8 tanh 1024x4096": lambda: elementwise(1024, 4096, 8),
    "8 tanh 66049x21": lambda: elementwise(66049, 21, 8),
    "2 tanh 4096x4096": lambda: elementwise(4096, 4096, 2),
}


def measure(kernels: Kernels, name: str, graph: Graph) -> dict[str, Any]:
    """One line of the table."""
    generator = np.random.default_rng(0)
    values: dict[Any, Buffer] = {}
    for value in graph.inputs:
        array = generator.standard_normal(value.type.shape, np.float32)
        values[value] = upload(kernels, array.astype(value.type.dtype.numpy))
    times, results = [], []

    def stored(dispatch: Dispatch) -> bool:
        return kernels.backend.stores_transposed(dispatch, kernels.target)

    for accept in (stored, lambda dispatch: False):
        total = 0.0
        program = fuse(graph, transposes=accept)
        for dispatch in program.dispatches:
            for value in (*dispatch.inputs, *dispatch.outputs):
                if value not in values:
                    values[value] = kernels.buffer(dims.evaluate(value.type.elements, {}) * 4)
            refs = [BufferRef(values[v]) for v in (*dispatch.inputs, *dispatch.outputs)]
            command = kernels.launcher(dispatch)(refs)
            timed(kernels, command, 3)
            total += min(timed(kernels, command, 12))
        out = graph.outputs[0]
        count = dims.evaluate(out.type.elements, {})
        array = kernels.read(values.pop(out), out.type.dtype, count)
        results.append(array.astype(np.float32))
        times.append((round(total, 2), len(program.dispatches)))
    for buffer in values.values():
        buffer.close()
    error = np.abs(results[0] - results[1]).max() / np.abs(results[1]).max()
    return {
        "result": name,
        "kernels": times[0][1],
        "us": times[0][0],
        "two_us": times[1][0],
        "ratio": round(times[0][0] / times[1][0], 2),
        "error": float(f"{error:.1e}"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="vulkan")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    kernels = Kernels.of(options.device)
    end, rows = time.perf_counter() + WARM_SECONDS, []
    first = next(iter(GRAPHS.values()))
    while time.perf_counter() < end:
        measure(kernels, "to warm up", first())
    head = {"device": kernels.device.info.name, "driver": kernels.device.info.driver_version}
    for name, make in GRAPHS.items():
        rows.append(measure(kernels, name, make()))
        print(" ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
