"""Small decoders of every family against transformers: on the CPU, on Vulkan, and split over both.

    python -m benchmarks.lm_conformance [--only PATTERN] [--placements cpu,vulkan,split] [--lengths 1,17,2000]

One artifact of each family and placement reads prompts of all lengths: the logits of all their tokens are
compared, and 64 greedy tokens behind each. Rows go to ``build/lm-conformance.json``; with ``--markdown`` the
table is written into a document. The exit code is 1 if something differs or fails.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.conformance import write_section
from benchmarks.lm_conformance.check import PLACEMENTS, Reference, compare, split_placement

COMMAND = "make lm-conformance"
TESTS = Path(__file__).resolve().parents[2] / "tests"
TOLERANCE = 1e-5
"""Of logits, over the largest one: both sides compute in f32, and sum in different orders."""
STEPS, CHUNK = 64, 512
VOCABULARY = 211


def main() -> int:
    """Run, print and write; returns an exit code."""
    sys.path.insert(0, str(TESTS))
    from support.decoders.checkpoints import VARIATIONS, write_decoder

    import mansard

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="variations whose name has this regular expression")
    parser.add_argument("--placements", default=",".join(PLACEMENTS))
    parser.add_argument(
        "--lengths",
        type=lambda text: [int(n) for n in text.split(",")],
        default=[1, 17, 128, 511, 2000],
    )
    parser.add_argument("--json", type=Path, default=Path("build/lm-conformance.json"))
    parser.add_argument("--markdown", type=Path, help="document to write the table into")
    options = parser.parse_args()
    context = max(options.lengths) + STEPS
    rows: list[dict[str, Any]] = []
    for variation in VARIATIONS:
        if not re.search(options.only, variation):
            continue
        with tempfile.TemporaryDirectory() as folder:
            module = write_decoder(
                Path(folder), variation, vocab_size=VOCABULARY, max_position_embeddings=context
            )
            reference = Reference(module, VOCABULARY, STEPS)
            for placement in options.placements.split(","):
                row = {"variation": variation, "placement": placement}
                rows.append(row | run(folder, placement, reference, options.lengths, context))
                print(describe(rows[-1]), flush=True)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.markdown:
        versions = f"transformers {__import__('transformers').__version__}, Mansard {mansard.__version__}"
        write_section(options.markdown, section(rows, options.lengths, versions), "language models")
    return 0 if all(row["outcome"] == "passed" for row in rows) else 1


def run(
    folder: str, placement: str, reference: Reference, lengths: list[int], context: int
) -> dict[str, Any]:
    """The row of one decoder on one placement."""
    import mansard

    layers = reference.module.config.num_hidden_layers
    began = time.monotonic()
    row: dict[str, Any] = {"outcome": "passed", "detail": "", "prompts": []}
    try:
        with mansard.load_lm(
            folder,
            devices=PLACEMENTS[placement],
            placement=split_placement(layers) if placement == "split" else None,
            context=context,
            chunk=CHUNK,
        ) as lm:
            row["dispatches"] = dict(lm.explain().totals)
            for length in lengths:
                result = compare(lm, reference, length)
                row["prompts"].append(result.to_json())
                if not result.passes(TOLERANCE):
                    row["outcome"] = "wrong"
    except Exception as error:  # what a table is for
        row |= {"outcome": "failed", "detail": f"{type(error).__name__}: {error}"}
    return row | {"seconds": round(time.monotonic() - began, 1)}


def describe(row: dict[str, Any]) -> str:
    """One line on a row."""
    prompts = " ".join(f"{p['length']}: {p['error']:.1e} {p['equal']}/{p['steps']}" for p in row["prompts"])
    text = f"{row['variation']:18} {row['placement']:7} {row['outcome']:7} {row['seconds']:6} s  {prompts}"
    return f"{text} {row['detail']}".rstrip()


def section(rows: list[dict[str, Any]], lengths: list[int], versions: str) -> str:
    """The document's section."""
    lines = [
        "## Language models",
        "",
        f"Small decoders with random weights in f32 ({versions}). One artifact of each placement reads "
        f"prompts of {', '.join(map(str, lengths))} tokens: the largest error of a token's logit, over the "
        f"largest logit (at most {TOLERANCE:g}), and the greedy tokens that are those of transformers, of "
        f"{STEPS} behind each prompt. `split` has every second layer on each device. `{COMMAND}` makes this "
        "section.",
        "",
        "| decoder | placement | error of logits | equal tokens |",
        "|---|---|---:|---:|",
    ]
    for row in rows:
        prompts = row["prompts"]
        error = f"{max(p['error'] for p in prompts):.1e}" if prompts else ""
        equal = f"{sum(p['equal'] for p in prompts)} of {sum(p['steps'] for p in prompts)}"
        if row["outcome"] == "failed":
            equal = row["detail"].replace("|", "\\|").replace("\n", " ")[:120]
        lines.append(f"| {row['variation']} | {row['placement']} | {error} | {equal} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
