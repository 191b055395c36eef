"""ONNX's node tests on each device, each in a child process with limits of time and memory.

    python -m benchmarks.onnx_nodes [--devices cpu,vulkan] [--every 12] [--only PATTERN] [--resume]

A test passes, is unsupported (an error of `mansard.errors`), is wrong, raises a foreign exception, kills the
process or stalls. Counts go to ``build/onnx-conformance.json``, the list of tests beside it, and a full run
writes its table into ``docs/coverage.md``. The exit code is 1 if a test did one of the last four.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import onnx

from benchmarks.harness.pool import run
from benchmarks.onnx_nodes.cases import cases, op_of
from benchmarks.onnx_nodes.table import OUTCOMES, counts, section, write_section

COMMAND = "make onnx-conformance"
_WRITE_EVERY = 50


def main() -> int:
    """Run, print and write; returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", default="cpu,vulkan")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="limit of one test")
    parser.add_argument("--memory", type=int, default=6 << 30, help="limit of a child, in bytes")
    parser.add_argument("--every", type=int, default=1, help="every so many tests only")
    parser.add_argument("--only", default="", help="tests whose name has this regular expression")
    parser.add_argument(
        "--resume", action="store_true", help="what passed in the earlier run is not run again"
    )
    parser.add_argument("--json", type=Path, default=Path("build/onnx-conformance.json"))
    parser.add_argument("--markdown", type=Path, help="document to write the table into")
    options = parser.parse_args()
    names = [name for name in list(cases())[:: options.every] if re.search(options.only, name)]
    details = options.json.with_name(options.json.stem + "-cases.json")
    rows: list[dict[str, Any]] = []
    if options.resume and details.exists():
        wanted = set(names)
        rows = [
            r for r in json.loads(details.read_text()) if r["case"] in wanted and r["outcome"] == "passed"
        ]
    done = {(r["case"], r["device"]) for r in rows}
    devices = options.devices.split(",")
    tasks = [f"{name}\t{device}" for device in devices for name in names if (name, device) not in done]
    options.json.parent.mkdir(parents=True, exist_ok=True)
    run_tasks(tasks, options, rows, details)
    rows.sort(key=lambda r: (r["device"], r["case"]))
    summary = counts(rows)
    print(json.dumps(summary, indent=1))
    options.json.write_text(json.dumps(summary, indent=1) + "\n")
    details.write_text(json.dumps(rows, indent=0) + "\n")
    if options.markdown:
        write_section(options.markdown, section(rows, onnx.__version__, COMMAND))
    return 1 if any(summary[device][o] for device in summary for o in OUTCOMES[2:]) else 0


def run_tasks(
    tasks: list[str], options: argparse.Namespace, rows: list[dict[str, Any]], details: Path
) -> None:
    """Run the tests and add their rows, which are written now and then, so that a run can be resumed.

    What does not pass is printed as it comes.
    """
    start, before = time.monotonic(), len(rows)

    def report(task: str, answer: dict[str, Any]) -> None:
        name, device = task.split("\t")
        row = {"case": name, "op": op_of(name), "device": device, **answer}
        rows.append(row)
        count = len(rows) - before
        if row["outcome"] != "passed":
            place = f"{count}/{len(tasks)} {time.monotonic() - start:.0f} s"
            print(f"{place} {name} {device}: {row['outcome']} {row['detail']}", flush=True)
        if count % _WRITE_EVERY == 0:
            details.write_text(json.dumps(rows, indent=0) + "\n")

    run(
        "benchmarks.onnx_nodes.worker",
        tasks,
        workers=options.workers,
        seconds=options.seconds,
        memory=options.memory,
        report=report,
    )


if __name__ == "__main__":
    sys.exit(main())
