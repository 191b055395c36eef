"""The first sample of every entry of PyTorch's database of operators, on each device beside eager.

    python -m benchmarks.opdb [--devices cpu,vulkan] [--dtypes f32,f16] [--match softmax] [--markdown F]

Every entry runs in a child process with limits of time and memory. An entry passes, is refused (an error of
`mansard.errors`), is wrong, raises an exception from outside that tree, kills the process or stalls. The exit
code is 1 if any did one of the last four. The operators of inference are counted on a line of their own: one
for each name in f32 (which passes if all of its variants do), without those of `entries.NO_INFERENCE`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.conformance import write_section
from benchmarks.harness.pool import run
from benchmarks.opdb.entries import DTYPES, database, inference_operators

OUTCOMES = ("passes", "refused", "wrong", "foreign", "killed", "stalled", "no sample")
BAD = ("wrong", "foreign", "killed", "stalled")
COMMAND = "make op-conformance"
Row = dict[str, Any]


def introduction(rows: Sequence[Row]) -> str:
    """What was compared, and how."""
    return (
        f"The first sample of {len({r['entry'] for r in rows})} entries of PyTorch {torch.__version__}'s "
        "`op_db` (without linalg, fft, sparse, special, random numbers and losses), compiled for each device "
        "and compared with eager within 1e-4 of the largest magnitude (2e-3 in f16, 1.6e-2 in bf16, exactly "
        "in integers). Other types than f32: elementwise ops, reductions, and ops that take indices. "
        "`refused` is an error that says what is not supported. `inference` counts operators in f32, one for "
        "each name, which passes if all of its variants do; it leaves out linear algebra that is not named "
        f"`linalg`, sparse tensors and gradients. `{COMMAND}` makes this."
    )


def counts(rows: Sequence[Row], devices: Sequence[str]) -> list[str]:
    """Lines of a table: the outcomes by device and element type, and of the operators of inference."""
    lines = ["| device | entries | " + " | ".join(OUTCOMES) + " |", "|---|---|" + "---:|" * len(OUTCOMES)]
    for dtype, device in itertools.product(dict.fromkeys(r["dtype"] for r in rows), devices):
        found = {r["entry"]: r["outcome"] for r in rows if (r["device"], r["dtype"]) == (device, dtype)}
        lines.append(_count(device, dtype, found.values()))
        if dtype == "f32":
            operators = inference_operators()
            worst = [
                max((found[e] for e in entries), key=OUTCOMES.index)
                for entries in operators.values()
                if all(e in found for e in entries)
            ]
            lines.append(_count(device, f"inference, {len(worst)} operators", worst))
    return lines


def _count(device: str, title: str, outcomes: Iterable[str]) -> str:
    numbers = Counter(outcomes)
    return f"| {device} | {title} | " + " | ".join(str(numbers[o]) for o in OUTCOMES) + " |"


def table(rows: list[Row], devices: list[str]) -> str:
    """Counts by device, then every entry that does not pass on some device."""
    lines = [
        f"# PyTorch's database of operators, {time.strftime('%Y-%m-%d')}",
        "",
        introduction(rows),
        "",
        *counts(rows, devices),
        "",
        "| entry | type | device | outcome | detail |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['entry']} | {r['dtype']} | {r['device']} | {r['outcome']} | {_cell(r['detail'])} |"
        for r in sorted(
            rows, key=lambda r: (OUTCOMES.index(r["outcome"]) < 2, r["entry"], r["dtype"], r["device"])
        )
        if r["outcome"] != "passes"
    ]
    return "\n".join(lines) + "\n"


def coverage(rows: list[Row], devices: list[str]) -> str:
    """The section of the documentation: counts, and what is refused, once for all types and devices."""
    lines = ["## PyTorch", "", introduction(rows), "", *counts(rows, devices), ""]
    lines += ["| entry | types | devices | why it does not pass |", "|---|---|---|---|"]
    missing: dict[str, list[Row]] = {}
    for row in rows:
        if row["outcome"] != "passes":
            missing.setdefault(row["entry"], []).append(row)
    for entry, held in sorted(missing.items()):
        dtypes, where = (", ".join(dict.fromkeys(r[key] for r in held)) for key in ("dtype", "device"))
        reason = held[0]["detail"].partition(": ")[2] or held[0]["outcome"]
        lines.append(f"| {entry} | {dtypes} | {where} | {_cell(reason)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:160]


def main() -> int:
    """Run, print and write; returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", default="cpu,vulkan")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="element types of samples")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="limit of one entry")
    parser.add_argument("--memory", type=int, default=6 << 30, help="limit of a child, in bytes")
    parser.add_argument("--match", default="", help="entries whose name contains this")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--coverage", type=Path, help="document to write the counts into")
    parser.add_argument("--after", type=Path, help="JSON of a run: only what did not pass in it runs again")
    options = parser.parse_args()
    devices = options.devices.split(",")
    names = [(n, t) for t in options.dtypes.split(",") for n in database(t) if options.match in n]
    rows: list[Row] = []
    if options.after:
        earlier = json.loads(options.after.read_text())["rows"]
        rows = [r for r in earlier if (r["entry"], r["dtype"]) in names and r["outcome"] == "passes"]
    done = {(r["entry"], r["dtype"], r["device"]) for r in rows}
    tasks = [f"{n}\t{device}\t{t}" for n, t in names for device in devices if (n, t, device) not in done]

    def report(task: str, answer: Row) -> None:
        entry, device, dtype = task.split("\t")
        rows.append({"entry": entry, "dtype": dtype, "device": device, **answer})
        row = rows[-1]
        if row["outcome"] != "passes":
            place = f"{len(rows)}/{len(tasks) + len(done)} {entry} {dtype} {device}"
            print(f"{place}: {row['outcome']} {row['detail']}", flush=True)

    run(
        "benchmarks.opdb.worker",
        tasks,
        workers=options.workers,
        seconds=options.seconds,
        memory=options.memory,
        report=report,
    )
    rows.sort(key=lambda r: (names.index((r["entry"], r["dtype"])), r["device"]))
    text = table(rows, devices)
    if done:
        again = ", ".join(sorted({task.split("\t")[0] for task in tasks}))
        text += f"\nA second run, after what did not pass in the first was mended, of these alone: {again}.\n"
    print(text.partition("| entry |")[0])
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(text)
    if options.coverage:
        write_section(options.coverage, coverage(rows, devices), "torch operators")
    return 1 if any(r["outcome"] in BAD for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
