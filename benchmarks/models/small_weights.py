"""Quantised language models beside llama.cpp: CPU time of one thread, in turn, the shortest of all rounds.

    python -m benchmarks.models.small_weights FOLDER --gguf q4_0.gguf --kind int4 [--activations] [--rounds 2]
        [--llama-python .cache/bench/venvs/llama.cpp/bin/python]

FOLDER is a Hugging Face folder, the GGUF file has the same shapes at the same width. Every measurement is a
process of its own: prefill of 128 tokens, then single tokens behind them. CPU time does not count what other
processes take from this one, but for caches and memory. Prints one JSON object for each round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

PROMPT, TOKENS, REPEATS = 128, 4, 3


def ours(artifact: str) -> dict[str, float]:
    """Milliseconds of prefill and of a token."""
    from mansard.language import load_lm

    lm = load_lm(artifact, devices="cpu")
    random, vocabulary = np.random.default_rng(0), lm.description.vocabulary
    prefill, decode = [], []
    for _ in range(REPEATS):
        prompt = random.integers(0, vocabulary, PROMPT).tolist()
        tokens = lm.generate(prompt, 3 * TOKENS + 2, stop_at_end=False)
        prefill.append(_took(lambda tokens=tokens: next(tokens)))
        steps = [_took(lambda tokens=tokens: [next(tokens) for _ in range(TOKENS)]) for _ in range(3)]
        decode.append(min(steps) / TOKENS)
    return {"prefill_ms": min(prefill), "decode_ms": min(decode)}


LLAMA = f"""
import json, sys, time
import numpy as np
from llama_cpp import Llama
model = Llama(sys.argv[1], n_ctx=512, n_batch=256, n_threads=1, n_threads_batch=1, verbose=False)
prompt = np.random.default_rng(1).integers(0, model.n_vocab(), {PROMPT}).tolist()
model.eval(prompt)
def took(past, tokens):
    model.n_tokens = past
    begin = time.process_time()
    model.eval(tokens)
    return (time.process_time() - begin) * 1e3
prefill = min(took(0, prompt) for _ in range({REPEATS}))
decode = min(took({PROMPT}, [5]) for _ in range({6 * REPEATS}))
print(json.dumps({{"prefill_ms": prefill, "decode_ms": decode}}))
"""


def _took(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return (time.process_time() - begin) * 1e3


def _child(command: list[str]) -> dict[str, float]:
    environment = os.environ | {"MANSARD_NUM_THREADS": "1"}
    text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(text.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--kind", default="int4", choices=("int4", "int8"))
    parser.add_argument("--activations", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--llama-python", default=".cache/bench/venvs/llama.cpp/bin/python")
    parser.add_argument("--artifact", type=Path, help="where the compiled model is kept")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(ours(options.folder)))
        return
    artifact = options.artifact or Path(f"{options.folder.rstrip('/')}.{options.kind}.mansard")
    if not artifact.exists():
        import mansard

        how = mansard.quantize(
            options.kind, group_size=32, activations="int8" if options.activations else None
        )
        with mansard.load_lm(options.folder, devices="cpu", context=512, chunk=128, quantize=how) as lm:
            lm.save(artifact)
    best: dict[str, dict[str, float]] = {}
    own = [sys.executable, "-m", "benchmarks.models.small_weights", str(artifact), "--gguf", "-", "--measure"]
    for _ in range(options.rounds):
        for name, command in (
            ("mansard", own),
            ("llama.cpp", [options.llama_python, "-c", LLAMA, options.gguf]),
        ):
            times = _child(command)
            best[name] = {key: min(t, best.get(name, times)[key]) for key, t in times.items()}
        ratios = {key: round(best["mansard"][key] / t, 3) for key, t in best["llama.cpp"].items()}
        print(json.dumps({**best, "ratio": ratios}), flush=True)


if __name__ == "__main__":
    main()
