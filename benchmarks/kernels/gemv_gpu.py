"""Matrix-vector products on a GPU against the bandwidth of its memory, and one weight tensor above 8 GB.

    python -m benchmarks.kernels.gemv_gpu [--device vulkan] [--peak GB/S] [--large] [--shapes K x N,...]
        [--json FILE]

Weights (N, K) of f32, f16, bf16, i8 and i4 (with an f16 scale for every 32) with a vector of f32 (bf16 for
bf16). Every dispatch reads weights of its own, and all of them together more than any cache holds, with a
barrier between any two. The time of one is what a recording of twice as many takes longer, by the host's
clock and at the shortest of some rounds, over their number: launches and barriers count, submission does
not. Rows: shape, type, rows, mb, us, gb_s, share (of --peak, the memory's bandwidth by its data sheet; H200:
4800).

``--large`` reads a tensor of more than 2**32 elements and 8 GB: a kernel fills it with small numbers that
depend on the position, the product is made, and every output is compared with the one computed by NumPy. Its
time is that of the shortest of 20 dispatches by the device's clock.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mansard import dims
from mansard.codegen.backend import Backend
from mansard.codegen.kernel import Kernel, KernelBuilder
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules import schedule
from mansard.compiler.targets import resolve_targets
from mansard.dtypes import DType
from mansard.hal import (
    BarrierCommand,
    Buffer,
    BufferRef,
    Command,
    CommandBuffer,
    Device,
    Executable,
    FillCommand,
    MemoryKind,
    Point,
    Semaphore,
    Submission,
    registry,
)
from mansard.hal import DispatchCommand as Launch
from mansard.ir import Graph, GraphBuilder, IndexMap
from mansard.ir.dispatch import Dispatch
from mansard.ir.scalar import Apply, Arg, Cast, Scalar
from mansard.passes.fusion.fuse import fuse
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps
from mansard.placement import PlacementOptions

SHAPES = ("1024x2048", "2048x1024", "1024x3072", "3072x1024", "1024x151936", "16384x16384")
"""The layers and the head of Qwen3-0.6B, and a large square."""
TYPES = ("f32", "f16", "bf16", "i8", "i4")
COLD_BYTES = 1 << 30
"""Weights of one recording, several times any cache."""
MAX_COPIES = 400
LARGE = (263168, 16384)
"""4.3e9 elements: 8.6 GB in f16, and some above 2**32."""
PERIOD = 31
FILLERS = 4096
"""Workgroups that fill the large tensor."""
GROUP = 32
"""Positions that share a scale of 4-bit weights."""
MIN_SECONDS = 3e-3
"""Work of a recording whose time is taken."""
WARM_SECONDS = 0.7
"""Work before anything is timed, so that the device runs at its full clock."""


def product(rows: int, n: int, k: int, weights: DType, vector: DType) -> Graph:
    """x (rows, k) times w (n, k), summed in f32; 4-bit weights have a scale for every `GROUP` of k."""
    b = GraphBuilder("gemv")
    total = DType.F32

    def wide(index: int, dtype: DType) -> Scalar:
        return Arg(index, dtype) if dtype is total else Cast(Arg(index, dtype), total)

    if weights.bits < 8:
        x = b.input("x", (rows, k // GROUP, GROUP), vector)
        w, scale = b.input("w", (n, k // GROUP, GROUP), weights), b.input("s", (n, k // GROUP), DType.F16)
        real = Apply("mul", (wide(1, weights), wide(2, DType.F16)), total)
        maps = [IndexMap.of_dims(dims_) for dims_ in ((0, 2, 3), (1, 2, 3), (1, 2))]
        extents = (rows, n, k // GROUP, GROUP)
        body = Apply("mul", (wide(0, vector), real), total)
        return b.build([b.generic([x, w, scale], maps, extents, body, reduced=2, combiner="add")])
    x, w = b.input("x", (rows, k), vector), b.input("w", (n, k), weights)
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((1, 2))]
    body = Apply("mul", (wide(0, vector), wide(1, weights)), total)
    return b.build([b.generic([x, w], maps, (rows, n, k), body, reduced=1, combiner="add")])


def fill_kernel(n: int, k: int, dtype: DType) -> Kernel:
    """w[i, j] = ((7 i + 3 j) mod 31 - 15) / 16, exact in every float type; a workgroup fills rows in turn.

    All but addresses is 32-bit arithmetic on single numbers: nothing of what is to be tested.
    """
    b = KernelBuilder("kernel", [(dtype, True)], 0, workgroup=(256, 1, 1), index=DType.I64)
    i32 = DType.I32
    with b.for_(b.workgroup_id(0), n, FILLERS) as rows:
        sevens = b.mul(b.cast(rows.index, i32), b.const(7, i32))
        first = b.mul(rows.index, b.idx(k))
        with b.for_(b.local_id(0), k, 256) as places:
            place = b.add(sevens, b.mul(b.cast(places.index, i32), b.const(3, i32)))
            small = b.sub(b.binary("rem", place, b.const(PERIOD, i32)), b.const(15, i32))
            number = b.mul(b.cast(small, DType.F32), b.const(1 / 16, DType.F32))
            b.store(b.bindings[0], b.add(first, places.index), b.cast(number, dtype))
    return b.build()


@dataclass
class Kernels:
    """Compiles single dispatches for a device and runs them."""

    device: Device
    backend: Backend
    target: KernelTarget

    @classmethod
    def of(cls, name: str) -> Kernels:
        (target, *_) = resolve_targets([name], PlacementOptions(fallback="error"))
        return cls(registry.open_device(name), target.backend, target.kernel)

    def __post_init__(self) -> None:
        self._timeline, self._turns = Semaphore("gemv"), itertools.count(1)
        self._warm = False

    def buffer(self, size: int, pattern: int | None = None) -> Buffer:
        """Device memory, filled with a 32-bit pattern."""
        buffer = self.device.allocate(size, MemoryKind.DEVICE)
        if pattern is not None:
            self.run([FillCommand(BufferRef(buffer), size // 4 * 4, pattern)])
        return buffer

    def launch(
        self, graph: Graph, buffers: Sequence[Sequence[BufferRef]], parameters: Parameters | None = None
    ) -> list[Command]:
        """The graph's one dispatch for each set of buffers, one after the other."""
        launch = self.launcher(single(graph), parameters)
        return [command for refs in buffers for command in (launch(refs), BarrierCommand())]

    def launcher(
        self, dispatch: Dispatch, parameters: Parameters | None = None
    ) -> Callable[[Sequence[BufferRef]], Launch]:
        """What makes a launch of a dispatch's kernel with its operands and results."""
        scheduled = schedule(dispatch, self.target, "kernel", parameters)
        loaded = self.load(scheduled.kernel)
        params = tuple(dims.evaluate(p, {}) for p in scheduled.params)
        x, y, z = (dims.evaluate(g, {}) for g in scheduled.grid)
        return lambda refs: Launch(loaded, "kernel", tuple(refs), params, (x, y, z))

    def load(self, kernel: Kernel) -> Executable:
        """A kernel on the device."""
        return self.device.load(self.backend.compile_kernel(kernel, self.target))

    def run(self, commands: Sequence[Command]) -> None:
        """Run commands once."""
        recorded = self.device.record(commands)
        self._submit(recorded)
        recorded.close()

    def time(self, commands: Sequence[Command], rounds: int) -> float:
        """Nanoseconds that commands take, without their submission; they are repeated for `MIN_SECONDS`."""
        recorded = self.device.record(commands)
        repeats = max(1, int(MIN_SECONDS / min(self._submit(recorded) for _ in range(2))))
        recorded.close()
        once, twice = (self.device.record([*commands] * times * repeats) for times in (1, 2))
        if not self._warm:
            end = time.perf_counter() + WARM_SECONDS
            while time.perf_counter() < end:
                self._submit(twice)
            self._warm = True
        best = [min(self._submit(recorded) for _ in range(rounds)) for recorded in (once, twice)]
        for recorded in (once, twice):
            recorded.close()
        return 1e9 * (best[1] - best[0]) / repeats

    def device_time(self, commands: Sequence[Command], rounds: int) -> float:
        """Nanoseconds of the shortest command by the device's clock."""
        recorded = self.device.record(commands, profile=True)
        times: list[float] = []
        for _ in range(rounds):
            self._submit(recorded)
            times += [row.end_ns - row.start_ns for row in recorded.profile()]
        recorded.close()
        return min(times)

    def _submit(self, recorded: CommandBuffer) -> float:
        done, started = Point(self._timeline, next(self._turns)), time.perf_counter()
        self.device.submit([Submission(recorded, signal=(done,))])
        done.wait(120)
        return time.perf_counter() - started

    def read(self, buffer: Buffer, dtype: DType, count: int) -> np.ndarray[Any, Any]:
        """The first elements of a buffer."""
        from mansard.hal import CopyCommand

        size = count * dtype.itemsize
        staging = self.device.allocate(size, MemoryKind.SHARED)
        self.run([CopyCommand(BufferRef(buffer), BufferRef(staging), size)])
        array = np.array(staging.view()[:size]).view(dtype.numpy)
        staging.close()
        return array


def single(graph: Graph) -> Dispatch:
    """The one dispatch that a graph becomes."""
    (dispatch,) = fuse(run_passes(graph, canonical_steps())).dispatches
    return dispatch


def row(kernels: Kernels, shape: str, kind: str, rows: int, peak: float, rounds: int) -> dict[str, Any]:
    """One line of the table."""
    k, n = (int(s) for s in shape.split("x"))
    weights = DType(kind)
    vector = DType.BF16 if weights is DType.BF16 else DType.F32
    size = n * k * weights.bits // 8
    copies = max(2, min(MAX_COPIES, COLD_BYTES // size))
    pitch = -(-size // 256) * 256
    data = kernels.buffer(copies * pitch, 0x3C003C00)
    x, y = kernels.buffer(rows * k * 4, 0), kernels.buffer(rows * n * 4)
    scales = 2 * n * k // GROUP if weights.bits < 8 else 0
    more = kernels.buffer(max(copies * scales, 256), 0)
    sets = [
        [
            BufferRef(x),
            BufferRef(data, i * pitch),
            *([BufferRef(more, i * scales)] if scales else []),
            BufferRef(y),
        ]
        for i in range(copies)
    ]
    size += scales
    took = kernels.time(kernels.launch(product(rows, n, k, weights, vector), sets), rounds) / copies
    more.close()
    for used in (data, x, y):
        used.close()
    return {
        "shape": shape,
        "type": kind,
        "rows": rows,
        "mb": round(size / 1e6, 2),
        "us": round(took / 1e3, 2),
        "gb_s": round(size / took, 1),
        "share": round(size / took / peak, 3),
    }


def large(kernels: Kernels, kind: str, peak: float, shape: tuple[int, int] = LARGE) -> dict[str, Any]:
    """Fill, multiply and check a tensor of more than 2**32 elements; raises SystemExit if it is
    wrong."""
    n, k = shape
    weights = DType(kind)
    size = n * k * weights.itemsize
    data, y = kernels.buffer(size), kernels.buffer(n * 4)
    filler = kernels.load(fill_kernel(n, k, weights))
    kernels.run([Launch(filler, "kernel", (BufferRef(data),), (), (FILLERS, 1, 1))])
    vector = np.random.default_rng(1).integers(-8, 9, k).astype(np.float32)
    staged = kernels.device.allocate(k * 4, MemoryKind.SHARED)
    staged.view()[: k * 4] = vector.view(np.uint8)
    commands = kernels.launch(
        product(1, n, k, weights, DType.F32), [(BufferRef(staged), BufferRef(data), BufferRef(y))]
    )
    kernels.time(commands * 4, 1)  # at full clock
    took = kernels.device_time(commands * 4, 5)
    actual = kernels.read(y, DType.F32, n)
    phases = (7 * np.arange(n)) % PERIOD
    table = ((np.arange(PERIOD)[:, None] + 3 * np.arange(k)) % PERIOD - 15) / 16.0
    expected = (table @ vector.astype(np.float64))[phases]
    wrong = int((np.abs(actual - expected) > 1e-3 * np.abs(expected).max()).sum())
    past = n - 2**32 // k
    if wrong:
        at = int(np.argmax(np.abs(actual - expected) > 1e-3 * np.abs(expected).max()))
        raise SystemExit(f"{wrong} of {n} outputs are wrong; first {at}: {actual[at]}, not {expected[at]}")
    return {
        "shape": f"{k}x{n}",
        "type": kind,
        "rows": 1,
        "mb": round(size / 1e6, 2),
        "us": round(took / 1e3, 2),
        "gb_s": round(size / took, 1),
        "share": round(size / took / peak, 3),
        "outputs_checked": n,
        "outputs_past_2_32_elements": past,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="vulkan")
    parser.add_argument("--peak", type=float, default=4800.0, help="GB/s of the memory")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--rows", default="1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    kernels = Kernels.of(options.device)
    table: list[dict[str, Any]] = []

    def show(result: dict[str, Any]) -> None:
        table.append(result)
        print(
            f"{result['shape']:14} {result['type']:5} rows {result['rows']} {result['mb']:9.2f} MB"
            f" {result['us']:9.2f} us {result['gb_s']:7.1f} GB/s  {100 * result['share']:5.1f} %",
            flush=True,
        )

    if options.large:
        for kind in ("f16", "bf16"):
            show(large(kernels, kind, options.peak))
    for shape, kind in itertools.product(filter(None, options.shapes.split(",")), options.types.split(",")):
        for rows in options.rows.split(","):
            show(row(kernels, shape, kind, int(rows), options.peak, options.rounds))
    if options.json:
        head = {"device": kernels.device.info.name, "driver": kernels.device.info.driver_version}
        Path(options.json).write_text(json.dumps({**head, "rows": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
