"""Matrix products on a GPU's matrix units, beside cuBLAS where PyTorch with CUDA is installed.

    python -m benchmarks.kernels.gemm_gpu [--device vulkan] [--shapes MxNxK,...] [--types bf16,f16,i8]
        [--json FILE]

x (M, K) times w, which lies as (K, N) or as (N, K), summed in f32 (i8: in i32); results are of the factors'
type (i8: i32). Some rows of every result are compared with NumPy's. Times are the device's own: the shortest
and the median dispatch of a recording, with barriers between. ``units`` is what the matrix units give with
nothing to read: a kernel of products alone. Rows: shape, type, layout, us, median_us, tflops, share (of
units), error (the largest, relative to the largest result), cublas_tflops.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernels.gemv_gpu import Kernels
from mansard.codegen.kernel import KernelBuilder, matrix
from mansard.codegen.schedules.gpu.gemm.matrix_tile import shape_for
from mansard.dtypes import DType
from mansard.hal import (
    BarrierCommand,
    Buffer,
    BufferRef,
    Command,
    CopyCommand,
    MemoryKind,
    Point,
    Semaphore,
    Submission,
)
from mansard.hal import DispatchCommand as Launch
from mansard.ir import Graph, GraphBuilder, IndexMap
from mansard.ir.scalar import Apply, Arg, Cast

SHAPES = ("4096x4096x4096", "8192x8192x8192")
CHAINS, STEPS = 16, 4096
"""Independent sums and products of each in a subgroup of the kernel that measures the units."""
WARM_SECONDS = 0.2
"""Work before anything is timed, so that the device runs at its full clock."""
NUMBERS = 1_000_003
"""Random numbers that matrices repeat: no two rows of one are alike."""


def product(m: int, n: int, k: int, dtype: DType, transposed: bool) -> Graph:
    """x (m, k) times w, (n, k) if ``transposed``."""
    b = GraphBuilder("gemm")
    x, w = b.input("x", (m, k), dtype), b.input("w", (n, k) if transposed else (k, n), dtype)
    wide = DType.F32 if dtype.is_float else DType.I32
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((1, 2) if transposed else (2, 1))]
    body = Apply("mul", (Cast(Arg(0, dtype), wide), Cast(Arg(1, dtype), wide)), wide)
    y = b.generic([x, w], maps, (m, n, k), body, reduced=1, combiner="add")
    if dtype.is_float:
        y = b.generic([y], [IndexMap.identity(2)], (m, n), Cast(Arg(0, wide), dtype))
    return b.build([y])


def upload(kernels: Kernels, array: np.ndarray[Any, Any]) -> Buffer:
    """The array in device memory."""
    staged = kernels.device.allocate(array.nbytes, MemoryKind.SHARED)
    staged.view()[: array.nbytes] = array.reshape(-1).view(np.uint8)
    buffer = kernels.buffer(array.nbytes)
    kernels.run([CopyCommand(BufferRef(staged), BufferRef(buffer), array.nbytes)])
    staged.close()
    return buffer


def timed(kernels: Kernels, command: Command, repeats: int) -> list[float]:
    """Microseconds of each of some runs of a command, by the device's clock."""
    recorded = kernels.device.record(
        [c for _ in range(repeats) for c in (command, BarrierCommand())], profile=True
    )
    done = Point(Semaphore("gemm"), 1)
    kernels.device.submit([Submission(recorded, signal=(done,))])
    done.wait(120)
    times = [(row.end_ns - row.start_ns) / 1e3 for row in recorded.profile()]
    recorded.close()
    return times


def units(kernels: Kernels, dtype: DType) -> float:
    """TFLOP/s (TOP/s) of products with nothing to read, in subgroups enough to fill the device."""
    shape = shape_for(dtype, kernels.target)
    if shape is None:
        raise SystemExit(f"{kernels.target.name} has no matrices of {dtype.value}")
    size, subgroups = kernels.target.subgroup[0], 4
    b = KernelBuilder("units", [(DType.I32, True)], 0, workgroup=(size * subgroups, 1, 1), index=DType.I32)
    memory = b.shared(DType.I32, 256, 4)
    stride = b.idx(shape.k * dtype.bits // 128)
    left = matrix.load(b, matrix.a_type(dtype, shape.m, shape.k), memory, b.idx(0), stride)
    right = matrix.load(b, matrix.b_type(dtype, shape.k, shape.n), memory, b.idx(0), stride, by="columns")
    zero = matrix.fill(b, matrix.c_type(shape.accumulator, shape.m, shape.n))
    with b.for_(0, STEPS // 8, inits=[zero] * CHAINS) as loop:
        sums = list(loop.carried)
        for _ in range(8):
            sums = [matrix.multiply(b, left, right, s) for s in sums]
        loop.yield_(*sums)
    line = b.idx(shape.n // 4)
    for total in loop.results:
        matrix.store(b, memory, b.idx(0), line, total)
    b.barrier()
    b.store(b.bindings[0], b.local_id(0), b.extract(b.load(memory, b.local_id(0)), 0))
    loaded = kernels.device.load(kernels.backend.compile_kernel(b.build(), kernels.target))
    out, groups = kernels.buffer(4096), 8 * kernels.target.compute_units
    command = Launch(loaded, "units", (BufferRef(out),), (), (groups, 1, 1))
    _warm(lambda: timed(kernels, command, 4))
    operations = 2 * shape.m * shape.n * shape.k * CHAINS * STEPS * subgroups * groups
    return operations / min(timed(kernels, command, 8)) / 1e6


def _warm(work: Callable[[], object]) -> None:
    end = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < end:
        work()


def row(kernels: Kernels, shape: str, dtype: DType, transposed: bool, peak: float) -> dict[str, Any]:
    """One line of the table."""
    m, n, k = (int(s) for s in shape.split("x"))
    generator = np.random.default_rng(0)
    arrays = [_random(generator, dtype, s) for s in ((m, k), (n, k) if transposed else (k, n))]
    result = dtype if dtype.is_float else DType.I32
    x, w = (upload(kernels, a) for a in arrays)
    y = kernels.buffer(m * n * result.itemsize)
    command = kernels.launch(product(m, n, k, dtype, transposed), [[BufferRef(b) for b in (x, w, y)]])[0]
    _warm(lambda: timed(kernels, command, 3))
    times = timed(kernels, command, 20)
    error = _error(kernels, y, arrays, transposed, result)
    for used in (x, w, y):
        used.close()
    rate = 2 * m * n * k / min(times) / 1e6
    return {
        "shape": shape,
        "type": dtype.value,
        "layout": "nk" if transposed else "kn",
        "us": round(min(times), 1),
        "median_us": round(statistics.median(times), 1),
        "tflops": round(rate, 1),
        "share": round(rate / peak, 3),
        "error": float(f"{error:.1e}"),
        "cublas_tflops": _cublas(m, n, k, dtype, transposed),
    }


def _random(generator: np.random.Generator, dtype: DType, shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    if dtype.is_float:
        numbers = (generator.standard_normal(NUMBERS, np.float32) * 0.5).astype(dtype.numpy)
    else:
        numbers = generator.integers(-128, 128, NUMBERS, np.int8)
    return np.resize(numbers, shape)


def _error(
    kernels: Kernels, y: Buffer, arrays: Sequence[np.ndarray[Any, Any]], transposed: bool, result: DType
) -> float:
    x, w = arrays
    m, n = x.shape[0], w.shape[0 if transposed else 1]
    wide: Any = np.float32 if result.is_float else np.float64
    rows = sorted({0, m // 2 + m // 7, m - 1})
    second = w.astype(wide)
    expected = x[rows].astype(wide) @ (second.T if transposed else second)
    staging = kernels.device.allocate(len(rows) * n * result.itemsize, MemoryKind.SHARED)
    size = n * result.itemsize
    kernels.run(
        [CopyCommand(BufferRef(y, r * size), BufferRef(staging, i * size), size) for i, r in enumerate(rows)]
    )
    actual = (
        np.array(staging.view()[: len(rows) * size]).view(result.numpy).reshape(len(rows), n).astype(wide)
    )
    staging.close()
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def _cublas(m: int, n: int, k: int, dtype: DType, transposed: bool) -> float | None:
    """TFLOP/s of torch.matmul on the first CUDA device; None where there is none."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available() or not dtype.is_float:
        return None
    kind = torch.bfloat16 if dtype is DType.BF16 else torch.float16
    x = torch.randn(m, k, device="cuda", dtype=kind)
    w = (
        torch.randn(n, k, device="cuda", dtype=kind).T
        if transposed
        else torch.randn(k, n, device="cuda", dtype=kind)
    )
    _warm(lambda: (torch.matmul(x, w), torch.cuda.synchronize()))
    best = float("inf")
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.matmul(x, w)
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end))
    return round(2 * m * n * k / best / 1e9, 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="vulkan")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--types", default="bf16,f16,i8")
    parser.add_argument("--layouts", default="nk,kn")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    kernels = Kernels.of(options.device)
    table: list[dict[str, Any]] = []
    peaks: dict[str, float] = {}
    names = (options.types.split(","), options.shapes.split(","), options.layouts.split(","))
    for kind, shape, layout in itertools.product(*names):
        dtype = DType(kind)
        if kind not in peaks:
            peaks[kind] = units(kernels, dtype)
            print(f"{kind}: units {peaks[kind]:.0f} TFLOP/s", flush=True)
        result = row(kernels, shape, dtype, layout == "nk", peaks[kind])
        table.append(result)
        print(" ".join(f"{name} {value}" for name, value in result.items()), flush=True)
    if options.json:
        head = {"device": kernels.device.info.name, "driver": kernels.device.info.driver_version}
        written = {**head, "units_tflops": {k: round(v, 1) for k, v in peaks.items()}, "rows": table}
        Path(options.json).write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
