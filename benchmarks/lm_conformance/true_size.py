"""A language model of true size with random weights against transformers on the CPU, in f32 and bf16.

    python -m benchmarks.lm_conformance.true_size [--model qwen3-0.6b] [--folder FOLDER] [--prompt 128]
        [--dtypes f32,bf16] [--json FILE]

In f32 logits of a prompt and 64 greedy tokens behind it are compared with those of transformers. In bf16,
where every sum is rounded in another order, both sides are compared with f32: errors of logits, and how often
the most likely token of the text that f32 generated is the same one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.kernels.decode_gpu import MODELS
from benchmarks.lm_conformance.check import Reference, compare
from benchmarks.models.random_checkpoint import write_checkpoint

STEPS = 64
TOLERANCE = 1e-5
Logits = npt.NDArray[np.float32]


def peer(folder: Path, dtype: str) -> Any:
    """transformers' module on the CPU."""
    import torch
    import transformers

    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=kind).eval()


def distance(logits: Logits, exact: Logits) -> dict[str, float]:
    """The largest and mean errors over the largest logit, and the share of rows with the same first token."""
    largest = float(np.abs(exact).max())
    errors = np.abs(logits - exact)
    return {
        "largest_error": float(errors.max()) / largest,
        "mean_error": float(errors.mean()) / largest,
        "agreement": float((logits.argmax(-1) == exact.argmax(-1)).mean()),
    }


def check(folder: Path, prompt: int, dtypes: list[str]) -> dict[str, Any]:
    """The figures of each type."""
    import torch

    import mansard

    result: dict[str, Any] = {"prompt": prompt}
    config = json.loads((folder / "config.json").read_text())
    module = peer(folder, "f32")
    module.generation_config.eos_token_id = None
    reference = Reference(module, config["vocab_size"], STEPS)
    ids, _, tokens = reference.of(prompt)
    text = [*ids, *tokens[:-1]]
    with torch.no_grad():
        exact: Logits = module(torch.tensor([text])).logits[0].numpy()
    for dtype in dtypes:
        began = time.monotonic()
        with mansard.load_lm(folder, devices="cpu", context=1024, dtype=dtype) as lm:
            if dtype == "f32":
                row = compare(lm, reference, prompt).to_json()
                del module
            else:
                other = peer(folder, dtype)
                with torch.no_grad():
                    theirs: Logits = other(torch.tensor([text])).logits[0].float().numpy()
                del other
                greedy = [token.id for token in lm.generate(ids, STEPS, stop_at_end=False)]
                equal = next(
                    (n for n, (a, b) in enumerate(zip(greedy, tokens, strict=True)) if a != b), STEPS
                )
                row = {
                    "mansard": distance(lm.logits(text), exact),
                    "transformers": distance(theirs, exact),
                    "greedy tokens as in f32": equal,
                }
        result[dtype] = row | {"seconds": round(time.monotonic() - began, 1)}
        print(dtype, json.dumps(result[dtype]), flush=True)
    return result


def passes(result: dict[str, Any]) -> bool:
    """Whether f32 agrees, and bf16 is no further from it than transformers' by half."""
    exact, rounded = result.get("f32"), result.get("bf16")
    if exact and (exact["error"] > TOLERANCE or exact["equal"] < exact["steps"]):
        return False
    if not rounded:
        return True
    ours, theirs = rounded["mansard"], rounded["transformers"]
    return bool(ours["mean_error"] <= 1.5 * theirs["mean_error"])


def main() -> int:
    """Run, print and write; returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen3-0.6b", choices=MODELS)
    parser.add_argument("--folder", type=Path, help="a Hugging Face folder, instead of random weights")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["f32", "bf16"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        if options.folder is None:
            write_checkpoint(folder, MODELS[options.model])
        result = {"model": options.model, **check(folder, options.prompt, options.dtypes)}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if passes(result) else 1


if __name__ == "__main__":
    sys.exit(main())
