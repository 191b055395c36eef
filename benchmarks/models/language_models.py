"""Generation with a language model of true shapes and random weights, beside transformers in the same run.

    python -m benchmarks.models.language_models [--device vulkan] [--model qwen3-0.6b] [--context 1024]
        [--prompt 128,2048] [--tokens 64] [--quantize int4 [--activations int8] [--group-size 128]]
        [--peer] [--json FILE]

Times of `mansard.load_lm`: compiling from a folder, the first token after loading, prefill of each prompt
(seconds until its token is known, the least of some), and tokens a second after it, at a cache filled to
``--context``.
``--peer`` runs transformers on CUDA, in a process of its own: prefill, and decoding with a static cache
compiled to CUDA graphs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernels.decode_gpu import MODELS
from benchmarks.models.random_checkpoint import write_checkpoint

ROUNDS = 5
WARM_S = 3.0
"""Texts are generated for so long at least: idle GPUs may take a second of work to reach their clock."""
CONFIGS = {
    **MODELS,
    "qwen3-30b-a3b": {
        **MODELS["qwen3-8b"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 48, "num_key_value_heads": 4, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
}  # fmt: skip


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Mansard's times for a checkpoint."""
    import mansard

    began = time.perf_counter()
    quantize = options.quantize
    if quantize:
        quantize = mansard.quantize(quantize, activations=options.activations, group_size=options.group_size)
    capacity = max(options.context, *options.prompt) + options.tokens + 8
    lm = mansard.load_lm(
        folder,
        devices=options.device,
        context=capacity,
        chunk=max(options.prompt),
        quantize=quantize,
        cache=False,
    )
    result: dict[str, Any] = {"compile_s": time.perf_counter() - began, "stages_s": dict(lm.model.timings)}
    generator = np.random.default_rng(0)

    def prompt(length: int) -> list[int]:
        return generator.integers(0, lm.description.vocabulary, length).tolist()

    began = time.perf_counter()
    next(lm.generate(prompt(16), 1))
    result["first_token_s"] = time.perf_counter() - began
    for length in options.prompt:
        times = []
        for _ in range(ROUNDS):
            next(lm.generate(prompt(length), 1))
            times.append(lm.stats.first_token)
        result[f"prefill_{length}_ms"] = 1e3 * min(times[1:])
    rates = []
    began = time.perf_counter()
    while len(rates) < 3 or time.perf_counter() - began < WARM_S:
        for _token in lm.generate(prompt(options.context), options.tokens, stop_at_end=False):
            pass
        rates.append(lm.stats.decode_rate)
    result["decode_ms"] = 1e3 / max(rates)
    result["memory"] = lm.memory().summary()
    lm.close()
    return result


def measure_transformers(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Times of transformers on CUDA: a static cache, decode steps compiled to CUDA graphs."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, device_map="cuda"
    ).eval()
    capacity = max(options.context, *options.prompt) + options.tokens + 8
    result: dict[str, Any] = {}
    with torch.no_grad():
        for length in options.prompt:
            ids = torch.randint(0, model.config.vocab_size, (1, length), device="cuda")
            times = []
            for _ in range(ROUNDS + 1):
                cache = transformers.StaticCache(model.config, max_cache_len=capacity)
                torch.cuda.synchronize()
                began = time.perf_counter()
                model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits.argmax(-1).item()
                times.append(time.perf_counter() - began)
            result[f"prefill_{length}_ms"] = 1e3 * min(times[1:])
        cache = transformers.StaticCache(model.config, max_cache_len=capacity)
        ids = torch.randint(0, model.config.vocab_size, (1, options.context), device="cuda")
        token = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits.argmax(-1)
        step = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)

        def decode(token: Any, position: int) -> Any:
            where = torch.tensor([[position]], device="cuda")
            return (
                step(token, past_key_values=cache, position_ids=where, use_cache=True)
                .logits.argmax(-1)
                .clone()
            )

        for position in range(options.context, options.context + 6):
            token = decode(token, position)
        torch.cuda.synchronize()
        began, steps = time.perf_counter(), options.tokens - 8
        for position in range(options.context + 6, options.context + 6 + steps):
            token = decode(token, position)
        torch.cuda.synchronize()
        result["decode_ms"] = 1e3 * (time.perf_counter() - began) / steps
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="vulkan")
    parser.add_argument("--model", default="qwen3-0.6b", choices=CONFIGS)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prompt", type=lambda text: [int(n) for n in text.split(",")], default=[128, 2048])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--quantize", help="int8, int4 or float12: small weights")
    parser.add_argument("--activations", choices=("int8",), help="with --quantize: what these are rounded to")
    parser.add_argument("--group-size", type=int, help="with --quantize: weights that share a scale")
    parser.add_argument("--layers", type=int, help="fewer layers, to try the program")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = dict(CONFIGS[options.model])
    if options.layers:
        config["num_hidden_layers"] = options.layers
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), config)
        result = {"model": options.model, "mansard": measure(Path(folder), options)}
        print(json.dumps(result["mansard"], indent=1), flush=True)
        if options.peer:
            with multiprocessing.get_context("spawn").Pool(1) as process:
                result["transformers"] = process.apply(measure_transformers, (Path(folder), options))
            print(json.dumps(result["transformers"], indent=1), flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
