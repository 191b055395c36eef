"""Speculative against plain decoding of one language model, in turn in the same process.

    python -m benchmarks.models.speculation [--layers 8] [--draft-layers 2] [--vocabulary 32000]
        [--deep 0.1] [--tokens 96] [--device cpu] [--draft-device cpu] [--dtype bf16] [--rounds 5]
        [--json FILE]

The model has the shape of Qwen3-0.6B with fewer layers and tokens, and random weights; the draft is
its first layers. ``--deep`` scales what the layers behind those add, and so how often the two agree: the
share is printed, and the text is checked to be the same with and without speculation. The times of a
verification by rows are CPU time where ``--device`` is cpu, else elapsed time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.kernels.decode_gpu import MODELS
from benchmarks.models.random_checkpoint import write_checkpoint

CONTEXT, PROMPT = 512, 64
REPEATS = 15


def write_pair(folder: Path, options: argparse.Namespace) -> tuple[Path, Path]:
    """The folders of a model, and of its first layers."""
    layers, draft_layers = options.layers, options.draft_layers
    sizes = {"num_hidden_layers": layers, "vocab_size": options.vocabulary}
    config = {**MODELS["qwen3-0.6b"], **sizes}
    target, draft = folder / "target", folder / "draft"
    target.mkdir()
    draft.mkdir()
    write_checkpoint(target, config)
    for layer in range(draft_layers, layers):
        path = target / f"model-{layer:03}.safetensors"
        tensors = load_file(path)
        for name in tensors:
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                scaled = tensors[name].astype(np.float32) * options.deep
                tensors[name] = scaled.astype(ml_dtypes.bfloat16)
        save_file(tensors, path, {"format": "pt"})
    for path in target.iterdir():
        if path.name != "config.json":
            (draft / path.name).symlink_to(path)
    settings = json.loads((target / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**settings, "num_hidden_layers": draft_layers}))
    return target, draft


def verification_costs(lm: Any, clock: Callable[[], float]) -> dict[str, float]:
    """Milliseconds of a decode step, and of verifications by rows; the least of some."""
    decode, verify = lm.model.method("decode"), lm.model.method("verify")
    drawn = {"settings": np.array([[0, 1, 0, 1]], np.float32), "draws": np.array([[0, 0, 1]])}
    where = {"positions": np.array([2 * PROMPT]), **drawn}
    random = np.random.default_rng(0)
    calls: dict[str, Callable[[], object]] = {"decode": lambda: decode(**where)}
    for rows in range(1, lm.description.proposals + 2):
        tokens = random.integers(0, lm.description.vocabulary, (1, rows))
        calls[f"verify {rows}"] = lambda tokens=tokens: verify(tokens=tokens, **where)
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(REPEATS):
        for name, call in calls.items():
            began = clock()
            call()
            least[name] = min(least[name], 1e3 * (clock() - began))
    return {name: round(value, 3) for name, value in least.items()}


def compare(lm: Any, prompt: list[int], options: argparse.Namespace, **drawn: Any) -> dict[str, Any]:
    """Decode rates with and without speculation, in turn, and whether the texts are equal."""

    def run(speculate: bool) -> tuple[list[int], float]:
        tokens = [token.id for token in lm.generate(prompt, options.tokens, speculate=speculate, **drawn)]
        return tokens, lm.stats.decode_rate

    run(True)
    plain, windows, equal = [], [], True
    for _ in range(options.rounds):
        expected, rate = run(False)
        plain.append(rate)
        tokens, rate = run(True)
        windows.append(rate)
        equal = equal and tokens == expected
    stats = lm.stats.speculation
    ratios = [b / a for a, b in zip(plain, windows, strict=True)]
    return {
        "plain_tokens_s": round(max(plain), 2),
        "speculative_tokens_s": round(max(windows), 2),
        "ratio": round(max(windows) / max(plain), 3),
        "median_ratio": round(statistics.median(ratios), 3),
        "acceptance": round(stats.acceptance, 3),
        "tokens_per_window": round(stats.tokens_per_window, 2),
        "single_steps": stats.single,
        "equal": equal,
        "distinct_tokens": len(set(expected)),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The whole comparison."""
    import mansard

    clock = time.process_time if options.device == "cpu" else time.perf_counter
    random = np.random.default_rng(1)
    prompt = random.integers(0, options.vocabulary, PROMPT).tolist()
    repeated = random.integers(0, options.vocabulary, PROMPT // 4).tolist() * 4
    result: dict[str, Any] = {"options": {key: str(value) for key, value in vars(options).items()}}
    with tempfile.TemporaryDirectory() as name:
        target, draft = write_pair(Path(name), options)
        given: dict[str, Any] = {"context": CONTEXT, "chunk": 128, "devices": options.device}
        if options.dtype in ("f32", "bf16"):
            given["dtype"] = options.dtype
        else:
            given["quantize"] = options.dtype
        with mansard.load_lm(target, draft=draft, draft_devices=options.draft_device, **given) as lm:
            result["milliseconds"] = verification_costs(lm, clock)
            result["draft, greedy"] = compare(lm, prompt, options)
            result["draft, drawn"] = compare(lm, prompt, options, temperature=0.8, top_k=40, seed=3)
        with mansard.load_lm(target, draft="ngram", **given) as lm:
            result["ngram, repetitive"] = compare(lm, repeated, options)
            result["ngram, drawn"] = compare(lm, prompt, options, temperature=1.0, seed=3)
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--draft-layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--deep", type=float, default=0.1)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--draft-device", default="cpu")
    parser.add_argument("--dtype", default="bf16", choices=("f32", "bf16", "int8", "int4"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = measure(options)
    text = json.dumps(result, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
