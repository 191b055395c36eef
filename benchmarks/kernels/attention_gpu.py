"""Attention on a GPU: prefill and decoding, beside PyTorch's scaled_dot_product_attention on the same GPU.

    python -m benchmarks.kernels.attention_gpu [--device vulkan] [--cases NAME,...] [--other] [--json FILE]
                                       [--markdown FILE]

Times are the device's own: from the first kernel's begin to the last one's end, the least of many, with a
barrier between any two. PyTorch (where it is installed with CUDA) is timed by events around replayed CUDA
graphs of several calls; dtype and shapes are the same, f32 without TF32. ``tflops`` counts 4 * rows * keys *
depth for each head, half of it with a causal mask; ``gb_s`` counts keys and values once. ``--other`` also
times the kernel without matrix units. Every result is compared with one in double precision at some rows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mansard import dims
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules import candidates, schedule
from mansard.codegen.schedules.choose import takes_attention
from mansard.compiler.targets import resolve_targets
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
    registry,
)
from mansard.hal import DispatchCommand as Launch
from mansard.ir import Graph, GraphBuilder
from mansard.ir.types import Value
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.fusion.fuse import fuse
from mansard.passes.parallel.split_attention import split_attention
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps
from mansard.placement import PlacementOptions

WARM_SECONDS, TIMED_SECONDS = 0.7, 0.25
POOL = 1_000_003
"""Random numbers made: making as many as the largest case has would take longer than all the rest."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One attention: heads of queries and of keys, rows, keys, elements of a key."""

    name: str
    batch: int
    heads: int
    key_heads: int
    rows: int
    keys: int
    depth: int
    dtype: DType
    causal: bool = False

    @property
    def operations(self) -> float:
        """Multiplications and additions."""
        count = 4.0 * self.batch * self.heads * self.rows * self.keys * self.depth
        return count / 2 if self.causal else count

    @property
    def key_bytes(self) -> int:
        """Bytes of keys and values."""
        return 2 * self.batch * self.key_heads * self.keys * self.depth * self.dtype.itemsize


F32, F16, BF16 = DType.F32, DType.F16, DType.BF16
CASES = (
    Case("prefill 4096", 1, 32, 32, 4096, 4096, 128, BF16, True),
    Case("prefill 4096 x4", 4, 16, 16, 4096, 4096, 128, BF16, True),
    Case("prefill 4096 f16", 1, 32, 32, 4096, 4096, 128, F16, True),
    Case("prefill 4096 d64", 1, 32, 32, 4096, 4096, 64, BF16, True),
    Case("qwen3 prefill 512", 1, 16, 8, 512, 512, 128, BF16, True),
    Case("qwen3 prefill 512 f32", 1, 16, 8, 512, 512, 128, F32, True),
    Case("minilm", 1, 12, 12, 128, 128, 32, F32),
    Case("minilm x32", 32, 12, 12, 128, 128, 32, F32),
    Case("decode 4096", 1, 16, 8, 1, 4096, 128, BF16),
    Case("decode 32768", 1, 16, 8, 1, 32768, 128, BF16),
    Case("decode 8192", 1, 32, 8, 1, 8192, 128, BF16),
    Case("decode 4096 x16", 16, 16, 8, 1, 4096, 128, BF16),
)


class Runner:
    """Compiles attentions for a device and runs them."""

    def __init__(self, name: str) -> None:
        (target, *_) = resolve_targets([name], PlacementOptions(fallback="error"))
        self.backend, self.target = target.backend, target.kernel
        self.device = registry.open_device(name)
        self.timeline, self.turn, self.warm = Semaphore("attention"), 0, False

    def run(self, commands: Sequence[Command], *, profile: bool = False) -> list[tuple[int, int]]:
        """Run commands; begin and end of each in nanoseconds when profiled."""
        recorded = self.device.record(list(commands), profile=profile)
        self.turn += 1
        done = Point(self.timeline, self.turn)
        self.device.submit([Submission(recorded, signal=(done,))])
        done.wait(60)
        rows = [(r.start_ns, r.end_ns) for r in recorded.profile()] if profile else []
        recorded.close()
        return rows

    def upload(self, array: Array) -> Buffer:
        """An array in the device's memory."""
        staging = self.device.allocate(array.nbytes, MemoryKind.SHARED)
        staging.view()[: array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        buffer = self.device.allocate(array.nbytes)
        self.run([CopyCommand(BufferRef(staging), BufferRef(buffer), array.nbytes)])
        staging.close()
        return buffer

    def download(self, buffer: Buffer, like: Value) -> Array:
        """A buffer's contents."""
        shape = like.type.concrete({})
        size = int(np.prod(shape)) * like.type.dtype.itemsize
        staging = self.device.allocate(size, MemoryKind.SHARED)
        self.run([CopyCommand(BufferRef(buffer), BufferRef(staging), size)])
        array = np.array(staging.view()[:size]).view(like.type.dtype.numpy).reshape(shape)
        staging.close()
        return array

    def time(self, steps: Sequence[Command]) -> float:
        """Microseconds of the steps, the least of many runs."""
        kernels = sum(isinstance(step, Launch) for step in steps)
        shortest, end = float("inf"), time.perf_counter() + TIMED_SECONDS + (0 if self.warm else WARM_SECONDS)
        self.warm = True
        repeat = 2
        while time.perf_counter() < end:
            begun = time.perf_counter()
            rows = self.run(list(steps) * repeat, profile=True)
            for first in range(0, len(rows), kernels):
                shortest = min(shortest, (rows[first + kernels - 1][1] - rows[first][0]) / 1e3)
            if time.perf_counter() - begun < 0.01 and repeat < 64:
                repeat *= 2
        return shortest


def graph_of(case: Case) -> Graph:
    """The attention as a model's graph has it."""
    b = GraphBuilder("attention")
    q = b.input("q", (case.batch, case.heads, case.rows, case.depth), case.dtype)
    k, v = (b.input(n, (case.batch, case.key_heads, case.keys, case.depth), case.dtype) for n in "kv")
    return b.build([b.attention(q, k, v, None, case.depth**-0.5, case.causal)])


def inputs_of(case: Case) -> dict[str, Array]:
    """Normally distributed queries, keys and values; the numbers repeat after some heads."""
    pool = np.random.default_rng(1).standard_normal(POOL, np.float32).astype(case.dtype.numpy)
    arrays = {}
    for name, heads, rows in (
        ("q", case.heads, case.rows),
        ("k", case.key_heads, case.keys),
        ("v", case.key_heads, case.keys),
    ):
        arrays[name] = np.resize(np.roll(pool, len(arrays) * 1000), (case.batch, heads, rows, case.depth))
    return arrays


def error_of(case: Case, arrays: dict[str, Array], result: Array) -> float:
    """The largest difference from double precision at some rows, over the largest value there."""
    result = result.reshape(case.batch, case.heads, case.rows, case.depth)
    worst = 0.0
    for batch, head, row in (
        (0, 0, 0),
        (case.batch - 1, case.heads - 1, case.rows - 1),
        (0, 1, case.rows // 2),
    ):
        keys = min(case.keys, row + 1) if case.causal else case.keys
        key_head = head // (case.heads // case.key_heads)
        q, k, v = (
            a.astype(np.float64)
            for a in (
                arrays["q"][batch, head, row],
                arrays["k"][batch, key_head, :keys],
                arrays["v"][batch, key_head, :keys],
            )
        )
        scores = k @ q * case.depth**-0.5
        weights = np.exp(scores - scores.max())
        expected = weights @ v / weights.sum()
        difference = np.abs(result[batch, head, row].astype(np.float64) - expected).max()
        worst = max(worst, float(difference / np.abs(expected).max()))
    return worst


def mansard_rows(runner: Runner, case: Case, *, other: bool) -> list[dict[str, Any]]:
    """The default kernels of a case, and those without matrix units where asked for and there are others."""
    target: KernelTarget = runner.target
    graph = run_passes(graph_of(case), canonical_steps())
    graph = eliminate_dead(split_attention(graph, 4 * target.compute_units))
    fused = fuse(graph, attention=lambda form: takes_attention(form, target))
    arrays = inputs_of(case)
    buffers = {value: runner.upload(arrays[value.name]) for value in graph.inputs}
    for dispatch in fused.dispatches:
        for value in dispatch.outputs:
            size = int(np.prod(value.type.concrete({}))) * value.type.dtype.itemsize
            buffers[value] = runner.device.allocate(size)
    tried: list[Parameters | None] = [None]
    units = [c for c in candidates(fused.dispatches[0], target) if "matrix" in c.to_dict()]
    if other and units:
        tried.append(next(c for c in candidates(fused.dispatches[0], target) if "matrix" not in c.to_dict()))
    rows = []
    for parameters in tried:
        steps: list[Command] = []
        for number, dispatch in enumerate(fused.dispatches):
            scheduled = schedule(dispatch, target, "kernel", None if number else parameters)
            loaded = runner.device.load(runner.backend.compile_kernel(scheduled.kernel, target))
            refs = tuple(BufferRef(buffers[v]) for v in (*dispatch.inputs, *dispatch.outputs))
            x, y, z = (dims.evaluate(g, {}) for g in scheduled.grid)
            params = tuple(dims.evaluate(p, {}) for p in scheduled.params)
            steps += [Launch(loaded, "kernel", refs, params, (x, y, z)), BarrierCommand()]
        micros = runner.time(steps)
        (output,) = graph.outputs
        result = runner.download(buffers[fused.base(output)], fused.base(output))
        kind = "matrix units" if units and parameters is None else "f32"
        rows.append({
            "case": case.name, "peer": "mansard", "kernel": kind, "kernels": len(fused.dispatches),
            "us": micros, "error": error_of(case, arrays, result), **rates(case, micros),
        })  # fmt: skip
    for buffer in buffers.values():
        buffer.close()
    return rows


def rates(case: Case, micros: float) -> dict[str, float]:
    """Operations and bytes in a second."""
    return {"tflops": case.operations / micros / 1e6, "gb_s": case.key_bytes / micros / 1e3}


def torch_row(case: Case) -> dict[str, Any] | None:
    """PyTorch on the same GPU; None without it."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    dtype = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}[case.dtype]
    heads = ((case.heads, case.rows), (case.key_heads, case.keys), (case.key_heads, case.keys))
    q, k, v = (torch.randn(case.batch, h, n, case.depth, device="cuda", dtype=dtype) for h, n in heads)

    def call() -> None:
        grouped = case.heads != case.key_heads
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=grouped)

    for _ in range(5):
        call()
    torch.cuda.synchronize()
    graph, count = torch.cuda.CUDAGraph(), 5
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    shortest, end = float("inf"), time.perf_counter() + TIMED_SECONDS
    while time.perf_counter() < end:
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        shortest = min(shortest, 1e3 * start.elapsed_time(stop) / count)
    return {
        "case": case.name, "peer": "torch", "kernel": "sdpa", "kernels": 0, "us": shortest, "error": 0.0,
        **rates(case, shortest),
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = ["| case | peer | kernel | µs | TFLOP/s | GB/s | error |", "|---|---|---|---:|---:|---:|---:|"]
    for r in rows:
        shown = f"{r['us']:.1f} | {r['tflops']:.1f} | {r['gb_s']:.0f} | {r['error']:.1e}"
        lines.append(f"| {r['case']} | {r['peer']} | {r['kernel']} | {shown} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the cases, printing each row when it is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="vulkan")
    parser.add_argument("--cases", default="", help="names, separated by commas (default: all)")
    parser.add_argument("--other", action="store_true", help="also without matrix units")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    names = options.cases.split(",") if options.cases else [case.name for case in CASES]
    cases = [case for case in CASES if case.name in names]
    torch_row(cases[0])  # before the device is opened: cuDNN's attention may fail later (docs/gpus.md)
    runner, rows = Runner(options.device), []
    for case in cases:
        peer = torch_row(case)
        for row in (*mansard_rows(runner, case, other=options.other), *([peer] if peer else [])):
            rows.append(row)
            print(json.dumps(row), flush=True)
            device = {"device": runner.device.info.name, "driver": runner.device.info.driver}
            if options.json:
                options.json.write_text(json.dumps({**device, "rows": rows}, indent=1) + "\n")
            if options.markdown:
                options.markdown.write_text(table(rows))


if __name__ == "__main__":
    main()
