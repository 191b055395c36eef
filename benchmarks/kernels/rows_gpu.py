"""Row, window, elementwise and line kernels of a GPU against the time that their bytes take.

    python -m benchmarks.kernels.rows_gpu [--device vulkan] [--only TEXT] [--json FILE] [--bandwidth GB/S]

Each case is a graph of one op, or of a few that become one kernel, in shapes of MobileNetV2, ResNet-50,
MiniLM-L12 and Qwen3-0.6B, and of some larger ones. Its kernels run alone, each many times with a barrier
after every run; a kernel's time is the difference of two submissions of different length, divided by the runs
between them, and the shortest of several rounds over all cases. The time of a case is the sum of its kernels'
times. Bytes are those of its inputs and outputs, each once. ``floor_us`` is the time of a kernel that does
nothing, measured in the same way; ``bound_us`` is the time of the bytes at the bandwidth, plus the floor.
Small cases read what the run before left in the caches, as in a model. Rows: case, us, kernels, bytes,
bound_us, share (bound over time).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mansard import dims
from mansard.codegen.kernel import KernelBuilder
from mansard.compiler.identity import dispatch_key
from mansard.compiler.kernels import KernelCompiler
from mansard.compiler.targets import resolve_targets
from mansard.dtypes import DType
from mansard.hal import (
    BarrierCommand,
    BufferRef,
    DispatchCommand,
    MemoryKind,
    Point,
    Semaphore,
    Submission,
    registry,
)
from mansard.hal.buffer import Buffer
from mansard.hal.device import CommandBuffer, Device
from mansard.ir import Constant, Graph, GraphBuilder, IndexMap, Linear
from mansard.ir.dispatch import Dispatch
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar
from mansard.passes.fusion.fuse import fuse
from mansard.passes.fusion.packable import mark_packable
from mansard.passes.parallel.split_reduction import split_reductions
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps
from mansard.placement import PlacementOptions

F32, F16, I64 = DType.F32, DType.F16, DType.I64
ROUNDS, WARM_S, WAIT_S = 5, 0.5, 60.0
A0, A1 = Arg(0, F32), Arg(1, F32)


def call(name: str, *args: Scalar) -> Scalar:
    """An op on scalars of one type."""
    return Apply(name, args, args[-1].dtype)


# Graphs -------------------------------------------------------------------------------------------
def reduced(shape: tuple[int, ...], combiner: str) -> Graph:
    """A reduction of contiguous rows."""
    b = GraphBuilder()
    x = b.input("x", shape, F32)
    return b.build([b.generic([x], [IndexMap.identity(len(shape))], shape, A0, reduced=1, combiner=combiner)])


def normed(shape: tuple[int, ...], *, centred: bool) -> Graph:
    """A layer norm, or a root-mean-square norm."""
    b = GraphBuilder()
    rank = len(shape)
    full, row = IndexMap.identity(rank), IndexMap.identity(rank - 1)
    last = IndexMap.of_dims([rank - 1])
    x, gain = b.input("x", shape, F32), b.input("g", shape[-1:], F32)
    share = Const(1.0 / shape[-1], F32)
    if centred:
        total = b.generic([x], [full], shape, A0, reduced=1, combiner="add")
        x = b.generic([x, total], [full, row], shape, call("sub", A0, call("mul", A1, share)))
    squares = b.generic([x], [full], shape, call("mul", A0, A0), reduced=1, combiner="add")
    mean = call("add", call("mul", A0, share), Const(1e-6, F32))
    scale = b.generic([squares], [row], shape[:-1], call("rsqrt", mean))
    y = b.generic([x, scale], [full, row], shape, call("mul", A0, A1))
    return b.build([b.generic([y, gain], [full, last], shape, call("mul", A0, A1))])


def softmax(shape: tuple[int, ...]) -> Graph:
    """A softmax over the last dim."""
    b = GraphBuilder()
    x = b.input("x", shape, F32)
    full, row = IndexMap.identity(len(shape)), IndexMap.identity(len(shape) - 1)
    top = b.generic([x], [full], shape, A0, reduced=1, combiner="max")
    powers = b.generic([x, top], [full, row], shape, call("exp", call("sub", A0, A1)))
    total = b.generic([powers], [full], shape, A0, reduced=1, combiner="add")
    return b.build([b.generic([powers, total], [full, row], shape, call("div", A0, A1))])


def elementwise(shape: tuple[int, ...], name: str, dtype: DType = F32) -> Graph:
    """One op on one or two tensors."""
    b = GraphBuilder()
    inputs = [b.input(f"x{i}", shape, dtype) for i in range(2 if name == "add" else 1)]
    args = [Arg(i, dtype) for i in range(len(inputs))]
    return b.build(
        [b.generic(inputs, [IndexMap.identity(len(shape))] * len(inputs), shape, call(name, *args))]
    )


def transposed(shape: tuple[int, ...], dtype: DType = F32) -> Graph:
    """The last two dims exchanged."""
    b = GraphBuilder()
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    x = b.input("x", shape, dtype)
    return b.build([b.generic([x], [IndexMap.of_dims(order)], [shape[i] for i in order], Arg(0, dtype))])


def window(batch: int, channels: int, size: int, stride: int, combiner: str = "") -> Graph:
    """A 3x3 window with padding over channels-last images: a depthwise convolution, or pooling."""
    b = GraphBuilder()
    out = (size - 1) // stride + 1
    x = b.input("x", (batch, size, size, channels), F32)
    place = (
        Linear.dim(0), Linear(((1, stride), (4, 1)), -1), Linear(((2, stride), (5, 1)), -1), Linear.dim(3)
    )  # fmt: skip
    extents = (batch, out, out, channels, 3, 3)
    if combiner:
        fill = -math.inf if combiner == "max" else 0.0
        pooled = b.generic([x], [IndexMap(place, fill)], extents, A0, reduced=2, combiner=combiner)
        return b.build([pooled])
    weights = Constant.of(np.random.default_rng(0).standard_normal((channels, 3, 3)).astype(np.float32))
    w = b.constant("w", weights, (channels, 3, 3), F32)
    maps = [IndexMap(place, 0.0), IndexMap.of_dims([3, 4, 5])]
    y = b.generic([x, w], maps, extents, call("mul", A0, A1), reduced=2, combiner="add")
    clipped = call("min", call("max", A0, Const(0.0, F32)), Const(6.0, F32))
    return b.build([b.generic([y], [IndexMap.identity(4)], extents[:4], clipped)])


def averaged(batch: int, pixels: int, channels: int) -> Graph:
    """A global average pool of channels-last images."""
    b = GraphBuilder()
    x = b.input("x", (batch, pixels, channels), F32)
    maps = [IndexMap.of_dims([0, 2, 1])]
    total = b.generic([x], maps, (batch, channels, pixels), A0, reduced=1, combiner="add")
    share = call("mul", A0, Const(1.0 / pixels, F32))
    return b.build([b.generic([total], [IndexMap.identity(2)], (batch, channels), share)])


def gathered(rows: int, table: int, width: int) -> Graph:
    """An embedding."""
    b = GraphBuilder()
    i, t = b.input("i", (rows,), I64), b.input("t", (table, width), F32)
    place = (Arg(0, I64), Index(1))
    return b.build([b.generic([i, t], [IndexMap.of_dims([0]), None], (rows, width), Gather(1, place, F32))])


def ordered(shape: tuple[int, ...], limit: int | None = None) -> Graph:
    """A sort, or the largest of a line."""
    b = GraphBuilder()
    x = b.input("x", shape, F32)
    return b.build(b.sort(x, len(shape) - 1, limit is not None, limit=limit))


def running(shape: tuple[int, ...]) -> Graph:
    """A cumulative sum."""
    b = GraphBuilder()
    return b.build([b.scan(b.input("x", shape, F32), len(shape) - 1)])


def scattered(rows: int, total: int, width: int) -> Graph:
    """Rows written into a new copy of a table."""
    b = GraphBuilder()
    t, i = b.input("t", (total, width), F32), b.input("i", (rows, 1), I64)
    return b.build([b.scatter(t, i, b.input("u", (rows, width), F32))])


@dataclass(frozen=True)
class Case:
    """A graph under a name; ``bytes`` where not all of its inputs are read."""

    name: str
    graph: Graph
    bytes: int = 0

    def moved(self) -> int:
        """Bytes that have to be read and written."""
        values = (*self.graph.inputs, *self.graph.constants, *self.graph.outputs)
        return self.bytes or sum(dims.evaluate(v.type.bytes, {}) for v in values)


DEPTHWISE = (
    (32, 112, 1), (96, 112, 2), (144, 56, 1), (144, 56, 2), (192, 28, 1), (192, 28, 2), (384, 14, 1),
    (576, 14, 1), (576, 14, 2), (960, 7, 1),
)  # fmt: skip
"""Channels, size and stride of MobileNetV2's depthwise convolutions."""


def cases() -> Iterator[Case]:
    """Everything that is measured."""
    for batch in (1, 32):
        for channels, size, stride in DEPTHWISE:
            name = f"depthwise {batch}x{channels}x{size} stride {stride}"
            yield Case(name, window(batch, channels, size, stride))
        yield Case(f"max pool {batch}x64x112", window(batch, 64, 112, 2, "max"))
        yield Case(f"average pool {batch}x1280x7x7", averaged(batch, 49, 1280))
        yield Case(f"average pool {batch}x2048x7x7", averaged(batch, 49, 2048))
    for shape in ((128, 384), (4096, 384), (16384, 1024)):
        yield Case(f"layer norm {shape[0]}x{shape[1]}", normed(shape, centred=True))
    for rows in (1, 128, 2048):
        yield Case(f"rms norm {rows}x1024", normed((rows, 1024), centred=False))
    yield Case("rms norm 128x16x128", normed((128, 16, 128), centred=False))
    for rows, width in ((1536, 128), (4096, 1000), (66049, 21), (32, 32768), (1, 151936)):
        yield Case(f"softmax {rows}x{width}", softmax((rows, width)))
    yield Case("sum 10000000", reduced((10_000_000,), "add"))
    yield Case("argmax 1x151936", reduced((1, 151936), "argmax"))
    yield Case("argmax 1024x1000", reduced((1024, 1000), "argmax"))
    yield Case("add 256x1024", elementwise((256, 1024), "add"))
    yield Case("add 4096x4096", elementwise((4096, 4096), "add"))
    yield Case("add f16 4096x4096", elementwise((4096, 4096), "add", F16))
    yield Case("tanh 4096x4096", elementwise((4096, 4096), "tanh"))
    yield Case("transpose 4096x4096", transposed((4096, 4096)))
    yield Case("transpose f16 4096x4096", transposed((4096, 4096), F16))
    yield Case("transpose 12x128x384", transposed((12, 128, 384)))
    yield Case("embedding 128x384", gathered(128, 30522, 384), 128 * (8 + 2 * 4 * 384))
    yield Case("embedding 16384x1024", gathered(16384, 32768, 1024), 16384 * (8 + 2 * 4 * 1024))
    yield Case("top 50 of 1x151936", ordered((1, 151936), 50))
    yield Case("top 5 of 64x1000", ordered((64, 1000), 5))
    yield Case("sort 64x1024", ordered((64, 1024)))
    yield Case("sort 65536", ordered((65536,)))
    yield Case("running sum 1024x1024", running((1024, 1024)))
    yield Case("running sum 1048576", running((1 << 20,)))
    yield Case("scatter 1024 of 32768x1024", scattered(1024, 32768, 1024), 2 * 4 * 32768 * 1024)


# Measuring ----------------------------------------------------------------------------------------
class Bench:
    """Kernels on a device, on buffers that all cases share."""

    def __init__(self, device: str) -> None:
        (self.target,) = resolve_targets([device], PlacementOptions(fallback="error"))
        self.compiler = KernelCompiler(self.target.backend, self.target.kernel, None)
        self.device: Device = registry.open_device(device)
        self._timeline, self._submitted = Semaphore("bench"), 0
        self._buffers: dict[tuple[int, int], Buffer] = {}

    def buffer(self, place: int, size: int) -> Buffer:
        """The buffer of a size for a place among a kernel's arguments."""
        key = (place, max(256, size))
        if key not in self._buffers:
            self._buffers[key] = self.device.allocate(key[1], MemoryKind.DEVICE)
        return self._buffers[key]

    def seconds(self, commands: CommandBuffer) -> float:
        """From submission to completion."""
        self._submitted += 1
        point = Point(self._timeline, self._submitted)
        started = time.perf_counter()
        self.device.submit([Submission(commands, signal=(point,))])
        point.wait(WAIT_S)
        return time.perf_counter() - started

    def kernel(self, dispatch: Dispatch) -> Timed:
        """A dispatch's kernel, ready to be timed."""
        compiled = self.compiler.compile(dispatch, dispatch_key(dispatch))
        bindings = []
        for place, value in enumerate((*dispatch.inputs, *dispatch.outputs)):
            size = dims.evaluate(value.type.bytes, {})
            if place in compiled.packed:
                size = math.prod(compiled.packed[place].shape) * value.type.dtype.itemsize
            bindings.append(BufferRef(self.buffer(place, size)))
        x, y, z = (dims.evaluate(d, {}) for d in compiled.grid)
        params = tuple(dims.evaluate(p, {}) for p in compiled.params)
        return Timed(
            self,
            DispatchCommand(
                self.device.load(compiled.spec), compiled.name, tuple(bindings), params, (x, y, z)
            ),
        )

    def nothing(self) -> Timed:
        """A kernel of one workgroup that stores one number."""
        b = KernelBuilder("nothing", [(DType.I32, True)], 0, index=DType.I32)
        b.store(b.bindings[0], b.idx(0), b.const(0, DType.I32))
        spec = self.target.backend.compile_kernel(b.build(), self.target.kernel)
        refs = (BufferRef(self.buffer(0, 256)),)
        return Timed(self, DispatchCommand(self.device.load(spec), "nothing", refs, (), (1, 1, 1)))


class Timed:
    """A command recorded a few times and many times over; ``us`` is its shortest time so far."""

    def __init__(self, bench: Bench, command: DispatchCommand) -> None:
        self._bench = bench
        self.us = math.inf
        once = bench.device.record([command, BarrierCommand()])
        slow = min(bench.seconds(once) for _ in range(2)) > 2e-3
        once.close()
        self._runs = (1, 3) if slow else (10, 60)
        self._recorded = [bench.device.record([command, BarrierCommand()] * runs) for runs in self._runs]

    def measure(self) -> None:
        """One more round."""
        few, many = (min(self._bench.seconds(r) for _ in range(2)) for r in self._recorded)
        self.us = min(self.us, (many - few) / (self._runs[1] - self._runs[0]) * 1e6)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="vulkan")
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--bandwidth", type=float, default=4800.0, help="GB/s that the bytes are held against"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bench = Bench(options.device)
    nothing = bench.nothing()
    work: list[tuple[Case, list[Timed]]] = []
    for case in cases():
        if options.only in case.name:
            graph = run_passes(case.graph, (*canonical_steps(), split_reductions))
            dispatches = mark_packable(fuse(graph)).dispatches
            work.append((case, [bench.kernel(d) for d in dispatches]))
    started = time.perf_counter()
    while time.perf_counter() - started < WARM_S:
        for _, kernels in work:
            kernels[0].measure()
    for _ in range(ROUNDS):
        nothing.measure()
        for _, kernels in work:
            for kernel in kernels:
                kernel.measure()
    rows = []
    for case, kernels in work:
        us = sum(k.us for k in kernels)
        bound = case.moved() / (options.bandwidth * 1e3) + len(kernels) * nothing.us
        rows.append({
            "case": case.name, "us": round(us, 2), "kernels": len(kernels), "bytes": case.moved(),
            "bound_us": round(bound, 2), "share": round(bound / us, 3),
        })  # fmt: skip
        text = f"{us:9.2f} us  {len(kernels):2d} kernels  bound {bound:8.2f} us  {bound / us:6.1%}"
        print(f"{case.name:34s} {text}", flush=True)
    print(f"a kernel that does nothing: {nothing.us:.2f} us")
    if options.json:
        result = {"device": bench.device.info.name, "floor_us": round(nothing.us, 3), "rows": rows}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
