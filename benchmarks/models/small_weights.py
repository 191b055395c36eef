"""Qwen3 decoders beside llama.cpp on CPUs, at the same width of weights: in turn, the shortest of all rounds.

    python -m benchmarks.models.small_weights [--model qwen3-moe] [--kind int4] [--activations]
        [--group-size 32] [--threads 2] [--clock wall] [--rounds 3] [--prompt 128]
        [--folder .cache/bench/small-weights] [--llama-python .cache/bench/venvs/llama.cpp/bin/python]
        [--json FILE]

Random weights in true shapes, of Qwen3-0.6B, of two layers of Qwen3-30B-A3B, or of six with a quarter of
their experts, of which half as many are chosen. bf16 and float12 are beside BF16, int8 beside Q8_0, int4
beside Q4_0; ``--activations`` also rounds what weights are multiplied with to 8 bits, as llama.cpp does.
``--group-size``: integers that share a scale, 32 as in llama.cpp's types.
Every measurement is a process of its own: prefill of ``--prompt`` tokens, then single tokens behind them, in
milliseconds, and the peak of its resident memory. ``--clock cpu`` counts the process's CPU time, which other
processes take less from.

What is measured is prepared in ``--folder`` and kept there: checkpoint, GGUF file, artifact.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from benchmarks.harness.gguf_file import write_gguf
from benchmarks.kernels.decode_gpu import MODELS as DENSE
from benchmarks.models.random_checkpoint import write_checkpoint

PROMPT, TOKENS, REPEATS = 128, 8, 3
GROUP = 32
"""Integers of llama.cpp's types that share a scale."""
CHUNK = 512
"""The most tokens of a prompt that are read at a time, by both."""
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
TYPES = {"bf16": "BF16", "float12": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
"""What llama.cpp has beside a kind of weights."""
EXPERTS = {
    **DENSE["qwen3-8b"], "model_type": "qwen3_moe", "hidden_size": 2048, "num_key_value_heads": 4,
    "moe_intermediate_size": 768, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "vocab_size": 32768, "tie_word_embeddings": True,
}  # fmt: skip
MODELS = {
    "qwen3-0.6b": DENSE["qwen3-0.6b"],
    "qwen3-moe": {**EXPERTS, "num_hidden_layers": 6, "num_experts": 32, "num_experts_per_tok": 4},
    "qwen3-30b-a3b": {**EXPERTS, "num_hidden_layers": 2, "num_experts": 128, "num_experts_per_tok": 8},
}
Times = dict[str, float]


def peak_mb() -> float:
    """The peak of this process's resident memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def ours(artifact: str, length: int, clock: Callable[[], float]) -> Times:
    """Milliseconds of prefill of so many tokens, and of a token."""
    from mansard.language import load_lm

    lm = load_lm(artifact, devices="cpu")
    random, vocabulary = np.random.default_rng(0), lm.description.vocabulary
    prefill, decode = [], []
    for _ in range(REPEATS):
        prompt = random.integers(0, vocabulary, length).tolist()
        tokens = lm.generate(prompt, 3 * TOKENS + 2, stop_at_end=False)
        prefill.append(_took(clock, lambda tokens=tokens: next(tokens)))
        steps = [_took(clock, lambda tokens=tokens: [next(tokens) for _ in range(TOKENS)]) for _ in range(3)]
        decode.append(min(steps) / TOKENS)
    return {"prefill_ms": min(prefill), "decode_ms": min(decode), "peak_mb": peak_mb()}


LLAMA = f"""
import json, sys, time
from pathlib import Path
import numpy as np
from llama_cpp import Llama
{inspect.getsource(peak_mb)}
path, threads, clock, length = sys.argv[1], int(sys.argv[2]), getattr(time, sys.argv[3]), int(sys.argv[4])
context, batch = max(512, length + 64), min({CHUNK}, max(256, length))
model = Llama(path, n_ctx=context, n_batch=batch, n_threads=threads, n_threads_batch=threads, verbose=False)
prompt = np.random.default_rng(1).integers(0, model.n_vocab(), length).tolist()
model.eval(prompt)
def took(past, tokens):
    model.n_tokens = past
    begin = clock()
    model.eval(tokens)
    return (clock() - begin) * 1e3
prefill = min(took(0, prompt) for _ in range({REPEATS}))
decode = min(sum(took(length + n, [5]) for n in range({TOKENS})) / {TOKENS} for _ in range({3 * REPEATS}))
print(json.dumps({{"prefill_ms": prefill, "decode_ms": decode, "peak_mb": peak_mb()}}))
"""


def _took(clock: Callable[[], float], work: Callable[[], object]) -> float:
    begin = clock()
    work()
    return (clock() - begin) * 1e3


def _child(command: list[str], threads: int) -> Times:
    environment = os.environ | {"MANSARD_NUM_THREADS": str(threads)}
    text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    result: Times = json.loads(text.splitlines()[-1])
    return result


def prepared(
    folder: Path, model: str, kind: str, activations: bool, length: int, group_size: int
) -> tuple[Path, Path]:
    """The artifact and the GGUF file of a kind of weights, made of one checkpoint where they are missing."""
    config, folder = dict(MODELS[model]), folder / model
    checkpoint = folder / "checkpoint"
    if not (checkpoint / "config.json").exists():
        checkpoint.mkdir(parents=True, exist_ok=True)
        write_checkpoint(checkpoint, config)
    other = folder / f"{TYPES[kind]}.gguf"
    if not other.exists():
        write_gguf(other, config, _tensors(checkpoint), TYPES[kind])
    suffix = ("-a8" if activations else "") + (f"-{length}" if length != PROMPT else "")
    suffix += f"-groups-of-{group_size}" if group_size != GROUP else ""
    artifact = folder / f"{kind}{suffix}.mansard"
    if not artifact.exists():
        import mansard

        how = None
        if kind == "float12":
            how = mansard.quantize(kind)
        elif kind != "bf16":
            how = mansard.quantize(kind, group_size=group_size, activations="int8" if activations else None)
        sizes = {"context": max(512, length + 64), "chunk": min(CHUNK, length)}
        with mansard.load_lm(checkpoint, devices="cpu", quantize=how, **sizes) as lm:
            lm.save(artifact)
    return artifact, other


def _tensors(checkpoint: Path) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, "numpy") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, file.get_tensor(name).view(ml_dtypes.bfloat16).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="qwen3-0.6b", choices=MODELS)
    parser.add_argument("--kind", default="int4", choices=TYPES)
    parser.add_argument("--activations", action="store_true")
    parser.add_argument("--group-size", type=int, default=GROUP)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", default="wall", choices=CLOCKS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=PROMPT)
    parser.add_argument("--folder", type=Path, default=Path(".cache/bench/small-weights"))
    parser.add_argument("--llama-python", default=".cache/bench/venvs/llama.cpp/bin/python")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--measure", metavar="ARTIFACT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(ours(options.measure, options.prompt, CLOCKS[options.clock])))
        return
    artifact, other = prepared(
        options.folder,
        options.model,
        options.kind,
        options.activations,
        options.prompt,
        options.group_size,
    )
    clock = options.clock
    module = [sys.executable, "-m", "benchmarks.models.small_weights", "--clock", clock]
    module += ["--prompt", str(options.prompt)]
    commands = {
        "mansard": [*module, "--measure", str(artifact)],
        "llama.cpp": [options.llama_python, "-c", LLAMA, str(other), str(options.threads)],
    }
    commands["llama.cpp"] += [CLOCKS[clock].__name__, str(options.prompt)]
    best: dict[str, Times] = {}
    result: dict[str, object] = {}
    for _ in range(options.rounds):
        for name, command in commands.items():
            times = _child(command, options.threads)
            best[name] = {key: min(t, best.get(name, times)[key]) for key, t in times.items()}
        ratios = {key: round(best["mansard"][key] / t, 3) for key, t in best["llama.cpp"].items()}
        result = {
            "model": options.model,
            "kind": options.kind,
            "activations": options.activations,
            "group_size": options.group_size,
            "threads": options.threads,
            "prompt": options.prompt,
        }
        result |= {"clock": clock, **best, "ratio": ratios}
        print(json.dumps(result), flush=True)
    if options.json:
        known = json.loads(options.json.read_text()) if options.json.exists() else []
        options.json.write_text(json.dumps([*known, result], indent=1) + "\n")


if __name__ == "__main__":
    main()
