"""F32 layers of networks on a GPU without matrix units, beside PyTorch's on the same device (TF32 off).

    python -m benchmarks.kernels.layers_gpu [--device vulkan] [--tiles N] [--layers NAME,...] [--json FILE]

Products with weights (K, N) and a bias, and convolutions, channels last here and as cuDNN likes it there, at
batch 1 and 32. Mansard's times are the device's own, the shortest dispatch of a recording with barriers
between; PyTorch's the shortest of some replays of a graph of 20 calls, over 20. Results are compared with
NumPy's at some places. With ``--tiles`` the first N tiles of the schedule are timed too, as tuning would.
Rows: layer, us, tflops, torch_us, error (relative to the largest result), tile, best_us, best_tile.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernels.gemm_gpu import WARM_SECONDS, timed, upload
from benchmarks.kernels.gemv_gpu import Kernels
from mansard.codegen.loop_nest import Nest
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.gpu.gemm import tiled
from mansard.dtypes import DType
from mansard.hal import BufferRef, CopyCommand, MemoryKind
from mansard.ir import Graph, GraphBuilder, IndexMap, Linear, Value
from mansard.ir.scalar import Apply, Arg, Cast, Scalar
from mansard.passes.fusion.fuse import fuse

F32 = DType.F32
SUM = Apply("add", (Arg(0, F32), Arg(1, F32)), F32)
Array = np.ndarray[Any, np.dtype[np.float32]]


def multiplied(dtype: DType) -> Scalar:
    """The product of two operands of a type, in f32."""
    x, y = (Arg(i, dtype) if dtype is F32 else Cast(Arg(i, dtype), F32) for i in range(2))
    return Apply("mul", (x, y), F32)


@dataclass(frozen=True)
class Layer:
    """A convolution with a bias: ``batch`` images of ``size`` squared, windows of ``window`` squared.

    A product of M rows is one of M images of one pixel.
    """

    batch: int
    size: int
    channels: int
    filters: int
    window: int = 1
    stride: int = 1

    @property
    def out(self) -> int:
        """Rows and columns of a result."""
        return (self.size + 2 * (self.window // 2) - self.window) // self.stride + 1

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        depth = self.window**2 * self.channels
        return 2 * self.batch * self.out**2 * self.filters * depth

    def graph(self) -> Graph:
        """x (batch, size, size, channels), w (window, window, channels, filters), bias (filters)."""
        b = GraphBuilder("layer")
        y = self.sums(b)
        bias = b.input("b", (self.filters,), F32)
        maps = [IndexMap.identity(4), IndexMap.of_dims((3,))]
        return b.build([b.generic([y, bias], maps, y.type.shape, SUM)])

    def sums(self, b: GraphBuilder, dtype: DType = F32) -> Value:
        """The convolution of inputs ``x`` and ``w`` of a type, in f32."""
        padding = self.window // 2
        x = b.input("x", (self.batch, self.size, self.size, self.channels), dtype)
        w = b.input("w", (self.window, self.window, self.channels, self.filters), dtype)
        at = [Linear(((o, self.stride), (k, 1)), -padding) for o, k in ((1, 4), (2, 5))]
        reads = IndexMap((Linear.dim(0), *at, Linear.dim(6)), 0.0 if padding else None)
        extents = (self.batch, self.out, self.out, self.filters, self.window, self.window, self.channels)
        weights = IndexMap.of_dims((4, 5, 6, 3))
        return b.generic([x, w], [reads, weights], extents, multiplied(dtype), reduced=3, combiner="add")

    def expected(self, x: Array, w: Array, bias: Array, image: int, row: int, column: int) -> Array:
        """The results of one pixel."""
        total = bias.astype(np.float64)
        for ky in range(self.window):
            for kx in range(self.window):
                y, z = (o * self.stride + k - self.window // 2 for o, k in ((row, ky), (column, kx)))
                if 0 <= y < self.size and 0 <= z < self.size:
                    total = total + x[image, y, z].astype(np.float64) @ w[ky, kx]
        return total.astype(np.float32)


LAYERS = {
    "minilm qkv": Layer(128, 1, 384, 1152), "minilm output": Layer(128, 1, 384, 384),
    "minilm up": Layer(128, 1, 384, 1536), "minilm down": Layer(128, 1, 1536, 384),
    "minilm-32 qkv": Layer(4096, 1, 384, 1152), "minilm-32 output": Layer(4096, 1, 384, 384),
    "minilm-32 up": Layer(4096, 1, 384, 1536), "minilm-32 down": Layer(4096, 1, 1536, 384),
    "resnet 7x7": Layer(1, 224, 3, 64, 7, 2), "resnet 3x3 56": Layer(1, 56, 64, 64, 3),
    "resnet 3x3 28": Layer(1, 28, 128, 128, 3), "resnet 3x3 14": Layer(1, 14, 256, 256, 3),
    "resnet 3x3 7": Layer(1, 7, 512, 512, 3), "resnet 1x1 56": Layer(1, 56, 64, 256),
    "resnet 1x1 14": Layer(1, 14, 1024, 256), "resnet 1x1 7": Layer(1, 7, 512, 2048),
    "resnet-32 3x3 56": Layer(32, 56, 64, 64, 3), "resnet-32 3x3 14": Layer(32, 14, 256, 256, 3),
    "resnet-32 3x3 7": Layer(32, 7, 512, 512, 3), "resnet-32 1x1 28": Layer(32, 28, 512, 128),
    "mobilenet 112": Layer(1, 112, 32, 16), "mobilenet 56": Layer(1, 56, 24, 144),
    "mobilenet 14": Layer(1, 14, 576, 96), "mobilenet 7": Layer(1, 7, 960, 160),
    "square 2048": Layer(2048, 1, 2048, 2048), "square 4096": Layer(4096, 1, 4096, 4096),
}  # fmt: skip


def measure(kernels: Kernels, name: str, layer: Layer, tiles: int) -> dict[str, Any]:
    """One line of the table."""
    generator, graph = np.random.default_rng(0), layer.graph()
    arrays = [_random(generator, v.type.shape) for v in graph.inputs]
    buffers = [upload(kernels, a) for a in arrays]
    y = kernels.buffer(layer.batch * layer.out**2 * layer.filters * 4)
    bound = [[BufferRef(b) for b in (*buffers, y)]]
    (dispatch,) = fuse(graph).dispatches
    nest = Nest(dispatch)
    row: dict[str, Any] = {"layer": name}
    if tiled.applies(nest, kernels.target):
        times: dict[Parameters, float] = {}
        for parameters in tiled.candidates(nest, kernels.target)[: max(1, tiles)]:
            command = kernels.launch(graph, bound, parameters)[0]
            timed(kernels, command, 3)
            times[parameters] = min(timed(kernels, command, 12))
        default, best = next(iter(times)), min(times, key=lambda p: times[p])
        row["us"], row["tile"] = round(times[default], 2), str(default)
        if tiles > 1:
            row.update(best_us=round(times[best], 2), best_tile=str(best))
    else:
        command = kernels.launch(graph, bound)[0]
        timed(kernels, command, 3)
        row["us"] = round(min(timed(kernels, command, 12)), 2)
    row["tflops"] = round(layer.operations / row["us"] / 1e6, 2)
    row["error"] = float(f"{_error(kernels, layer, y, arrays):.1e}")
    row["torch_us"] = _torch(layer)
    for used in (*buffers, y):
        used.close()
    return row


def _random(generator: np.random.Generator, shape: Any) -> Array:
    values = generator.standard_normal(shape, np.float32)
    return values * np.float32(1 / np.sqrt(np.prod(shape[:-1]))) if len(shape) > 1 else values


def _error(kernels: Kernels, layer: Layer, y: Any, arrays: list[Array]) -> float:
    size, last = layer.filters * 4, layer.out - 1
    staging = kernels.device.allocate(size, MemoryKind.SHARED)
    worst = 0.0
    for image, row, column in (
        (0, 0, 0),
        (layer.batch // 2, last // 2, last // 3),
        (layer.batch - 1, last, last),
    ):
        at = (image * layer.out + row) * layer.out + column
        kernels.run([CopyCommand(BufferRef(y, at * size), BufferRef(staging), size)])
        expected = layer.expected(*arrays, image, row, column)
        got = np.array(staging.view()[:size]).view(np.float32)
        worst = max(worst, float(np.abs(got - expected).max() / np.abs(expected).max()))
    staging.close()
    return worst


def _torch(layer: Layer) -> float | None:
    """Microseconds of PyTorch's layer on the first CUDA device; None where there is none."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    bias = torch.randn(layer.filters, device="cuda")
    if layer.size == 1:
        x = torch.randn(layer.batch, layer.channels, device="cuda")
        w = torch.randn(layer.filters, layer.channels, device="cuda")
        call = lambda: torch.nn.functional.linear(x, w, bias)  # noqa: E731
    else:
        shape = (layer.batch, layer.channels, layer.size, layer.size)
        x = torch.randn(shape, device="cuda")
        w = torch.randn(layer.filters, layer.channels, layer.window, layer.window, device="cuda")
        step, padding = layer.stride, layer.window // 2
        call = lambda: torch.nn.functional.conv2d(x, w, bias, step, padding)  # noqa: E731
    with torch.inference_mode():
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                call()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        best = float("inf")
        for _ in range(5):
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            best = min(best, start.elapsed_time(end))
    return round(best * 1e3 / 20, 2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="vulkan")
    parser.add_argument("--tiles", type=int, default=1)
    parser.add_argument("--layers", default=",".join(LAYERS))
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    kernels = Kernels.of(options.device)
    first = LAYERS[options.layers.split(",")[0]]
    end, rows = time.perf_counter() + WARM_SECONDS, []
    while time.perf_counter() < end:
        measure(kernels, "to warm up", first, 1)
    head = {"device": kernels.device.info.name, "driver": kernels.device.info.driver_version}
    for name in options.layers.split(","):
        rows.append(measure(kernels, name, LAYERS[name], options.tiles))
        print(" ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
