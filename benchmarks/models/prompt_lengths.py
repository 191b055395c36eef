"""Prompts of random lengths: one artifact beside one for each length, and beside padding to the longest.

    python -m benchmarks.models.prompt_lengths [--layers 2] [--longest 2048] [--count 10] [--json FILE]

A decoder of Qwen3-0.6B's layers with random weights reads prompts of random lengths and of lengths around
powers of two, each with the artifact of `mansard.load_lm` (pieces of ``--chunk`` tokens), with an artifact
compiled for that one length (and decoding, or for prefill only, whose weights then have another layout), and
padded to the longest length with the artifact for that. CPU time of one thread, in turn, the shortest of some
rounds: other processes count little in it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernels.decode_gpu import MODELS
from benchmarks.models.random_checkpoint import write_checkpoint

ROUNDS = 4
VOCABULARY = 4096
"""The projection to logits, of one token, would be as long as all layers of a short prompt."""
AROUND = (16, 64, 512, 1024)
"""Lengths of which the next one is measured, too."""


def milliseconds(work: Callable[[], object]) -> float:
    """CPU time of a call."""
    began = time.process_time()
    work()
    return 1e3 * (time.process_time() - began)


def prefill_of(folder: Path, length: int, context: int, whole: bool = True) -> Callable[[list[int]], object]:
    """Prefill with an artifact for prompts of one length; shorter ones are padded. If ``whole``, it decodes
    as well, with the same weights."""
    from mansard import compiler
    from mansard.api.compilation import model_of
    from mansard.frontends.decoders.checkpoint import open_checkpoint
    from mansard.frontends.decoders.decoder import DecoderOptions, build_decoder
    from mansard.frontends.decoders.families import describe

    checkpoint = open_checkpoint(folder)
    graphs = {
        role: build_decoder(checkpoint, describe(checkpoint.config), DecoderOptions(context, size, role=role))
        for role, size in (("prefill", length), ("decode", 1))[: 1 + whole]
    }
    model = model_of(compiler.compile_methods(graphs, compiler.CompileOptions(targets=("cpu",))))
    settings, draws = np.array([[0, 1, 0, 1]], np.float32), np.zeros((1, 3), np.int64)

    def run(ids: list[int]) -> object:
        tokens = np.zeros((1, length), np.int64)
        tokens[0, : len(ids)] = ids
        return model(
            tokens=tokens,
            positions=np.array([0]),
            last=np.array([len(ids) - 1]),
            settings=settings,
            draws=draws,
        )

    return run


def measure(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The times of each length."""
    import mansard

    random = np.random.default_rng(options.seed)
    lengths = {int(n) for n in random.integers(1, options.longest + 1, options.count)}
    rows = []
    drawn = set(lengths)
    lengths |= {n + more for n in AROUND for more in (0, 1) if n + more <= options.longest}
    context = options.longest + 1
    lm = mansard.load_lm(folder, devices="cpu", context=context, chunk=options.chunk)
    padded = prefill_of(folder, options.longest, context)
    for length in sorted(lengths):
        ids = random.integers(0, VOCABULARY, length).tolist()
        alone = prefill_of(folder, length, context)
        only = prefill_of(folder, length, context, whole=False)
        ways: dict[str, Callable[[], object]] = {
            "one": lambda ids=ids: next(lm.generate([(ids[0] + 1) % VOCABULARY, *ids[1:]], 1)),  # type: ignore[misc]
            "alone": lambda ids=ids, alone=alone: alone(ids),  # type: ignore[misc]
            "only": lambda ids=ids, only=only: only(ids),  # type: ignore[misc]
        }
        best: dict[str, float] = {}
        for number in range(ROUNDS):
            lm.generate([number], 1).__next__()  # what comes next begins with another token
            for name, work in ways.items():
                best[name] = min(best.get(name, 1e9), milliseconds(work))
        best["padded"] = min(milliseconds(lambda ids=ids: padded(ids)) for _ in range(2))  # type: ignore[misc]
        rows.append({"length": length, "random": length in drawn, **best})
        print(json.dumps({k: round(v, 3) for k, v in rows[-1].items()}), flush=True)
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Ratios of the one artifact's times to the others', on average over the random lengths."""
    drawn = [row for row in rows if row["random"]]
    one, alone, only, padded = (
        np.array([row[name] for row in drawn]) for name in ("one", "alone", "only", "padded")
    )
    return {
        "to one artifact for each length": float((one / alone).mean()),
        "largest": float((one / alone).max()),
        "to an artifact for prefill of each length only": float((one / only).mean()),
        "padding to it": float((padded / one).mean()),
        "padding, sum of all": float(padded.sum() / one.sum()),
        "largest of padding": float((padded / one).max()),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--longest", type=int, default=2048)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--count", type=int, default=10, help="random lengths")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("MANSARD_NUM_THREADS", "1")
    config = {**MODELS["qwen3-0.6b"], "num_hidden_layers": options.layers, "vocab_size": VOCABULARY}
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), config)
        rows = measure(Path(folder), options)
    result = {"layers": options.layers, "chunk": options.chunk, "rows": rows, "ratios": summary(rows)}
    print(json.dumps(result["ratios"], indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
