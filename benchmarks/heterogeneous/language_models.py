"""A language model whose weights exceed what a GPU may hold, beside the CPU alone and beside copying.

    python -m benchmarks.heterogeneous.language_models [--gpu vulkan] [--model qwen3-0.6b] [--experts]
        [--limit 0.5] [--rounds 5] [--json FILE] [--traces FOLDER]

Random weights in true shapes (``--experts``: a mixture of experts whose router prefers some), bf16. The GPU
may hold ``--limit`` of the weights. Ways: the CPU alone; the GPU alone, without the limit, for comparison;
``layers``, both devices, as the planner divides layers; ``experts``, both devices, the most chosen experts of
a text on the GPU. Rounds take the ways in turn; a ratio is the median of the rounds' ratios to the CPU alone.

``copied`` is the GPU with the limit alone, which has to copy what it cannot hold for every token: the copy
of so many bytes from the host's memory to the device is measured, as is a step with all weights there; the
two overlapped in full (the larger) are the least that any such program takes, their sum what one takes that
copies before it computes. On a device that shares the host's memory nothing needs to be copied, and the row
says what a copy would take.

Devices should be calibrated before (``mansard calibrate``). ``--traces`` writes the timeline of a decode step
of each way, for ui.perfetto.dev.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernels.decode_gpu import MODELS
from benchmarks.models.random_checkpoint import write_checkpoint
from mansard.hal import (
    BufferRef,
    CopyCommand,
    MemoryKind,
    Point,
    QueueKind,
    Semaphore,
    Submission,
    registry,
)
from mansard.language import LanguageModel, load_lm

EXPERTS = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "num_hidden_layers": 12,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 32768,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 40960,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_bias": False,
}
"""Layers of Qwen3-30B-A3B with half of its experts, a quarter of its layers, a smaller vocabulary."""
PROMPT, TOKENS, CONTEXT = 128, 24, 512


def opened(folder: Path, **placed: Any) -> LanguageModel:
    """A language model for this measurement."""
    return load_lm(folder, context=CONTEXT, chunk=PROMPT, **placed)


def generated(lm: LanguageModel, prompt: list[int]) -> tuple[float, float, list[int]]:
    """Milliseconds of the prompt and of a token after it, and the tokens."""
    tokens = [token.id for token in lm.generate(prompt, TOKENS, stop_at_end=False)]
    return 1e3 * lm.stats.first_token, 1e3 / lm.stats.decode_rate, tokens


def copy_ms(gpu: str, size: int) -> float:
    """Milliseconds of copying so many bytes from the host's memory to the device, the least of some."""
    device = registry.open_device(gpu)
    part = min(size, 256 << 20)
    source = device.allocate(part, MemoryKind.SHARED, "source")
    target = device.allocate(part, MemoryKind.DEVICE, "target")
    source.view()[:] = 1
    copies = [CopyCommand(BufferRef(source), BufferRef(target), part)] * max(1, size // part)
    least = float("inf")
    for copy in range(5):
        done = Point(Semaphore(f"copy {copy}"), 1)
        commands = device.record(copies, queue=QueueKind.TRANSFER)
        began = time.perf_counter()
        device.submit([Submission(commands, (), (done,))])
        done.wait()
        least = min(least, time.perf_counter() - began)
        commands.close()
    for buffer in (source, target):
        buffer.close()
    return 1e3 * least * size / (part * len(copies))


def write_trace(lm: LanguageModel, path: Path) -> None:
    """The timeline of a decode step."""
    from mansard.cli.trace import trace_document

    decode = lm.model.method("decode")
    inputs = {
        "positions": np.array([PROMPT]),
        "settings": np.array([[0, 1, 0, 1]], np.float32),
        "draws": np.zeros((1, 3), np.int64),
    }
    profile = decode.profile(**inputs)
    document = trace_document(profile.rows, {}, path.stem, profile.all_busy)
    path.write_text(json.dumps(document), encoding="utf-8")


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Times of every way, and ratios to the CPU alone."""
    generator = np.random.default_rng(0)
    gpu, both = options.gpu, [options.gpu, "cpu"]
    began = time.perf_counter()
    models = {"cpu alone": opened(folder, devices="cpu")}
    vocabulary = models["cpu alone"].description.vocabulary
    prompt = generator.integers(0, vocabulary, PROMPT).tolist()
    weights = sum(part.weights for part in models["cpu alone"].explain().parts)
    limit = int(options.limit * weights)
    models["gpu alone, no limit"] = opened(folder, devices=gpu)
    models["layers"] = opened(folder, devices=both, memory={gpu: limit})
    if options.experts:
        counts = models["cpu alone"].expert_counts(generator.integers(0, vocabulary, CONTEXT).tolist())
        models["experts"] = opened(
            folder, devices=both, memory={gpu: limit}, expert_device=gpu, expert_counts=counts
        )
    result: dict[str, Any] = {
        "weight_bytes": weights,
        "limit_bytes": limit,
        "compile_s": time.perf_counter() - began,
        "ways": {},
    }
    rounds: dict[str, list[tuple[float, float, list[int]]]] = {name: [] for name in models}
    for _ in range(options.rounds + 1):
        for name, lm in models.items():
            rounds[name].append(generated(lm, prompt))
            prompt = (
                [*prompt[1:], int(generator.integers(0, vocabulary))] if name == list(models)[-1] else prompt
            )
    base = rounds["cpu alone"][1:]
    for name, lm in models.items():
        mine = rounds[name][1:]
        agree = [
            a == b
            for one, other in zip(mine, base, strict=True)
            for a, b in zip(one[2], other[2], strict=True)
        ]
        explanation = lm.explain()
        result["ways"][name] = {
            "prompt_ms": statistics.median(row[0] for row in mine),
            "token_ms": statistics.median(row[1] for row in mine),
            "token_ratio": statistics.median(
                one[1] / other[1] for one, other in zip(mine, base, strict=True)
            ),
            "prompt_ratio": statistics.median(
                one[0] / other[0] for one, other in zip(mine, base, strict=True)
            ),
            "same_tokens": sum(agree) / len(agree),
            "devices": {
                part.device: {
                    "layers": part.layer_ranges,
                    "weights": part.weights,
                    "states": part.states,
                    "time": dict(part.time),
                }
                for part in explanation.parts
            },
            "predicted_ms": getattr(explanation.prediction, "latency_ms", None),
            "memory": lm.memory().summary(),
        }
        if explanation.experts is not None:
            result["ways"][name]["experts"] = str(explanation.experts)
            result["ways"][name]["hits"] = lm.expert_hits([*prompt, *mine[-1][2]])
        if options.traces:
            options.traces.mkdir(parents=True, exist_ok=True)
            write_trace(lm, options.traces / f"{name.replace(' ', '-').replace(',', '')}.json")
    for lm in models.values():
        lm.close()
    copied = copy_ms(gpu, weights - limit)
    step = result["ways"]["gpu alone, no limit"]["token_ms"]
    result["copied"] = {
        "copy_ms": copied,
        "overlapped_ms": max(copied, step),
        "one_after_the_other_ms": copied + step,
        "shares_memory": registry.open_device(gpu).capabilities.unified_memory,
    }
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="vulkan")
    parser.add_argument("--model", default="qwen3-0.6b", choices=MODELS)
    parser.add_argument("--experts", action="store_true", help="a mixture of experts instead")
    parser.add_argument(
        "--limit", type=float, default=0.5, help="the part of the weights that the GPU may hold"
    )
    parser.add_argument("--layers", type=int, help="fewer layers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="a size for software devices")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--traces", type=Path)
    options = parser.parse_args()
    config: dict[str, Any] = dict(EXPERTS if options.experts else MODELS[options.model])
    if options.small:
        config |= {"hidden_size": 512, "intermediate_size": 1536, "vocab_size": 8192, "num_hidden_layers": 6}
        config |= {"num_experts": 32, "moe_intermediate_size": 256} if options.experts else {}
    if options.layers:
        config["num_hidden_layers"] = options.layers
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), config)
        result = {"model": config["model_type"] if options.experts else options.model, "config": config}
        result |= measure(Path(folder), options)
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
