"""Steps of decoding on a GPU, kernel by kernel.

    python -m benchmarks.kernels.decode_gpu [--device vulkan] [--model qwen3-0.6b] [--context 1000]
        [--steps 50] [--capacity 1024] [--layers N] [--vocabulary N] [--peak GB/S] [--check] [--json FILE]
        [--sequences N] [--verify 1,2,4,8] [--quantize int4 [--activations int8]
        [--group-size 128]]

Weights are random, in their true shapes. A step is one token at position ``--context`` of each sequence,
greedily sampled, or with ``--verify`` the verification of so many rows, one number after another. For
every kernel: how often a step runs it, its device time in microseconds (the sum of the medians), the bytes of
its constants, and GB/s of them. Then a step: the sum of its kernels, from the first to the last by the
device's clock while profiled, a call by the host's, and one of several in flight, as texts have them (the
least and the median of some runs of ``--steps``). The bound is the time to read weights and cache once
at ``--peak`` (an H200 reads 4660 GB/s). ``--check`` first compares two layers over some steps with the CPU's.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.frontends.decoders.checkpoint import Checkpoint
from mansard.frontends.decoders.decoder import DecoderOptions, build_decoder
from mansard.frontends.decoders.families import describe
from mansard.ir.types import Constant, TensorType
from mansard.language.compilation import TYPICAL_WINDOW
from mansard.passes.products.quantisation import Quantisation, quantisation
from mansard.placement import PlacementOptions
from mansard.plan.plan import BarrierStep, DispatchStep
from mansard.runtime.calls.pending_call import PendingCall

Array = npt.NDArray[Any]

CHECKED_STEPS = 4
ROUNDS = 20
"""Profiled steps."""
IN_FLIGHT = 3
"""Steps submitted before the first of them has ended."""
RUNS = 16
BLOCK = 1 << 20
"""Random numbers, which large weights repeat: to make them takes no time."""


def _config(hidden: int, inner: int, layers: int, heads: int, *, tied: bool = True) -> dict[str, Any]:
    """A Qwen3 configuration."""
    return {
        "model_type": "qwen3", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 40960, "hidden_act": "silu",
        "tie_word_embeddings": tied, "attention_bias": False,
    }  # fmt: skip


MODELS = {
    "qwen3-0.6b": _config(1024, 3072, 28, 16),
    "qwen3-1.7b": _config(2048, 6144, 28, 16),
    "qwen3-8b": _config(4096, 12288, 36, 32, tied=False),
}


class RandomWeights(Checkpoint):
    """Weights of a configuration's shapes."""

    def __init__(self, config: Mapping[str, Any], dtype: DType) -> None:
        self.config, self.generation, self.path, self.dtype = config, {}, Path("random"), dtype
        hidden, inner, vocabulary = (config[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
        depth = config["head_dim"]
        queries, keys = (config[k] * depth for k in ("num_attention_heads", "num_key_value_heads"))
        self.shapes = {
            "embed_tokens": (vocabulary, hidden), "lm_head": (vocabulary, hidden),
            "q_proj": (queries, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden),
            "o_proj": (hidden, queries),
            "gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner),
            "q_norm": (depth,), "k_norm": (depth,), "norm": (hidden,), "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }  # fmt: skip
        self.numbers = np.random.default_rng(0).standard_normal(BLOCK).astype(np.float32)

    def tensor_type(self, name: str) -> TensorType:
        """Its shape, by the last part of the name."""
        return TensorType(self.shapes[name.split(".")[-2]], self.dtype)

    def constant(self, name: str) -> Constant:
        """Random numbers; those of a norm are near 1."""
        shape, start = self.shapes[name.split(".")[-2]], sum(map(ord, name))

        def load() -> Array:
            numbers = self.numbers[start:]
            scaled = numbers / np.sqrt(shape[-1]) if len(shape) > 1 else 1 + numbers[: shape[0]] / 10
            return np.resize(scaled.astype(self.dtype.numpy), shape)

        return Constant(name, load)

    def close(self) -> None:
        """There are no files."""


def compiled(
    config: Mapping[str, Any],
    device: str,
    capacity: int,
    role: Any,
    *,
    length: int | Dim = 1,
    sequences: int = 1,
    quantize: Quantisation | None = None,
) -> Model:
    """A decoder of random bf16 weights for one device."""
    weights = RandomWeights(config, DType.BF16)
    graph = build_decoder(
        weights,
        describe(config),
        DecoderOptions(context=capacity, role=role, length=length, sequences=sequences, restricted=False),
    )
    options = CompileOptions(
        targets=(device,),
        placement=PlacementOptions(fallback="error"),
        cache=False,
        quantisation=quantize,
    )
    result = compile_graph(graph, options)
    return Model(result.plan, MemoryResources(result.executables, result.weights))


def check(config: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Logits of two layers over some steps beside the CPU's, as a part of the largest."""
    small = {**config, "num_hidden_layers": 2, "vocab_size": 4096}
    worst, same = 0.0, 0
    with compiled(small, "cpu", 1024, "logits") as cpu, compiled(small, device, 1024, "logits") as gpu:
        for step in range(CHECKED_STEPS):
            inputs = {"tokens": np.array([[7 * step]]), "positions": np.array([step]), "last": np.array([0])}
            expected, actual = (np.asarray(m(**inputs)) for m in (cpu, gpu))
            worst = max(worst, float(np.abs(expected - actual).max() / np.abs(expected).max()))
            same += int(expected.argmax() == actual.argmax())
    return {"largest_difference": float(f"{worst:.1e}"), "same_tokens": same, "of": CHECKED_STEPS}


def step_inputs(model: Model, position: int, rows: int = 1) -> dict[str, Array]:
    """One token of each sequence at a position, or so many ``rows`` of a varying number; greedy."""
    inputs: dict[str, Array] = {}
    for spec in model.inputs:
        shape = [int(d) if isinstance(d, int) or str(d).isdigit() else rows for d in spec.shape]
        inputs[spec.name] = np.zeros(shape, spec.dtype.numpy)
    inputs["positions"][:] = position
    if "settings" in inputs:
        inputs["settings"][:] = (0.0, 1.0, 0.0, 1.0)
    return inputs


def kernels(model: Model) -> dict[str, tuple[str, int]]:
    """By label of a dispatch: its kernel, and the bytes of the constants that it reads."""
    sizes = {v.id: v.bytes for v in model.plan.values if v.kind == "constant"}
    rows = {}
    for segment in model.plan.devices[0].segments:
        for step in segment.steps:
            if isinstance(step, DispatchStep):
                read = {b.value for b in step.bindings}
                rows[step.label] = step.entry, sum(int(str(sizes[v])) for v in read if v in sizes)
    return rows


def measure(model: Model, position: int, steps: int, rows: int = 1) -> dict[str, Any]:
    """The times of a step, and of its kernels."""
    inputs = step_inputs(model, position, rows)
    for _ in range(3):
        model(**inputs)
    walls, spans, sums = [], [], []
    for _ in range(steps):
        start = time.perf_counter()
        model(**inputs)
        walls.append(time.perf_counter() - start)
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        rows = model.profile(**inputs).rows
        spans.append((max(r.end_ns for r in rows) - min(r.start_ns for r in rows)) / 1e3)
        sums.append(sum(r.end_ns - r.start_ns for r in rows) / 1e3)
        for row in rows:
            times[row.label].append((row.end_ns - row.start_ns) / 1e3)
    plan_steps = [s for g in model.plan.devices[0].segments for s in g.steps]
    return {
        "dispatches": sum(isinstance(s, DispatchStep) for s in plan_steps),
        "barriers": sum(isinstance(s, BarrierStep) for s in plan_steps),
        "kernels_us": round(statistics.median(sums), 1),
        "span_us": round(statistics.median(spans), 1),
        "call_us": round(statistics.median(walls) * 1e6, 1),
        "in_flight_us": in_flight_us(model, inputs, steps),
        "kernels": _by_kernel(kernels(model), times),
    }


def in_flight_us(model: Model, inputs: Mapping[str, Array], steps: int) -> list[float]:
    """Microseconds of each of so many steps, several of which are in flight: the least and the median of
    `RUNS` runs behind one that is not timed."""
    session, times = model.bind(), []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        pending: deque[PendingCall] = deque()
        for _ in range(steps):
            if len(pending) == IN_FLIGHT:
                pending.popleft().result()
            pending.append(session.begin(session.signature.prepare((), inputs)))
        while pending:
            pending.popleft().result()
        times.append((time.perf_counter() - start) / steps * 1e6)
    return [round(f(times[1:]), 1) for f in (min, statistics.median)]


def _by_kernel(
    known: Mapping[str, tuple[str, int]], times: Mapping[str, list[float]]
) -> list[dict[str, Any]]:
    by_kernel: dict[str, dict[str, Any]] = {}
    for label, values in times.items():
        entry, size = known.get(label, (label, 0))
        one = by_kernel.setdefault(entry, {"kernel": entry, "first": label, "count": 0, "us": 0.0, "mb": 0.0})
        one["count"] += 1
        one["us"] += statistics.median(values)
        one["mb"] += size / 1e6
    for one in by_kernel.values():
        one["each_us"] = round(one["us"] / one["count"], 2)
        one["gb_s"] = round(one["mb"] / one["us"] * 1e3) if one["us"] else 0
        one["us"], one["mb"] = round(one["us"], 1), round(one["mb"], 1)
    return sorted(by_kernel.values(), key=lambda one: -one["us"])


def bound_us(config: Mapping[str, Any], context: int, peak: float) -> float:
    """Microseconds to read all weights once, and the cache up to a position, at ``peak`` GB/s."""
    matrices = {n: s for n, s in RandomWeights(config, DType.BF16).shapes.items() if len(s) == 2}
    head = math.prod(matrices.pop("lm_head"))
    layer = sum(math.prod(shape) for name, shape in matrices.items() if name != "embed_tokens")
    layer += 2 * context * config["num_key_value_heads"] * config["head_dim"]
    return round(2 * (config["num_hidden_layers"] * layer + head) / peak / 1e3, 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="vulkan")
    parser.add_argument("--model", default="qwen3-0.6b", choices=MODELS)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--vocabulary", type=int)
    parser.add_argument("--context", type=int, default=1000)
    parser.add_argument("--capacity", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--peak", type=float, default=4660)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--verify", metavar="ROWS,...", help="verifications instead of steps")
    parser.add_argument("--quantize", choices=("int8", "int4", "float12"))
    parser.add_argument("--activations", choices=("int8",), help="with --quantize: what these are rounded to")
    parser.add_argument("--group-size", type=int, help="with --quantize: weights that share a scale")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    config = MODELS[options.model]
    changes = {"num_hidden_layers": options.layers, "vocab_size": options.vocabulary}
    config = {**config, **{name: value for name, value in changes.items() if value}}
    report: dict[str, Any] = {"model": options.model, "layers": config["num_hidden_layers"]}
    if options.check:
        report["check"] = check(config, options.device)
        print("check", report["check"], flush=True)
    counts = [int(n) for n in options.verify.split(",")] if options.verify else []
    window = Dim("window", 1, max(counts), typical=min(TYPICAL_WINDOW, max(counts))) if counts else 1
    quantize = None
    if options.quantize:
        quantize = quantisation(
            options.quantize, activations=options.activations, group_size=options.group_size
        )
    start = time.perf_counter()
    with compiled(
        config, options.device, options.capacity, "verify" if counts else "decode",
        length=window, sequences=options.sequences, quantize=quantize,
    ) as model:  # fmt: skip
        report["compile_s"] = round(time.perf_counter() - start, 1)
        start = time.perf_counter()
        model(**step_inputs(model, 0))
        report["first_call_s"] = round(time.perf_counter() - start, 1)
        report["bound_us"] = bound_us(config, options.context, options.peak)
        measured = [
            {"rows": rows, **measure(model, options.context - rows, options.steps, rows)}
            for rows in counts or [1]
        ]
    for one in measured:
        for kernel in one["kernels"]:
            print(" ".join(f"{name} {value}" for name, value in kernel.items()))
        print({**report, **{name: value for name, value in one.items() if name != "kernels"}}, flush=True)
    report["steps"] = measured
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
