"""Conformance runs: cases on each device in child processes, counts, tables of the documentation."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.pool import run

OUTCOMES = ("passed", "unsupported", "wrong", "foreign", "killed", "stalled")
"""``foreign``: an exception from outside `mansard.errors`; ``killed``, ``stalled``: the process."""
_WRITE_EVERY = 50
Row = dict[str, Any]


def arguments(description: str, results: Path) -> argparse.ArgumentParser:
    """The options that all runs share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--devices", default="cpu,vulkan")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="limit of one case")
    parser.add_argument("--memory", type=int, default=6 << 30, help="limit of a child, in bytes")
    parser.add_argument("--every", type=int, default=1, help="every so many cases only")
    parser.add_argument("--only", default="", help="cases whose name has this regular expression")
    parser.add_argument(
        "--resume", action="store_true", help="what passed in the earlier run is not run again"
    )
    parser.add_argument("--json", type=Path, default=results)
    parser.add_argument("--markdown", type=Path, help="document to write the table into")
    return parser


def conduct(
    options: argparse.Namespace, worker: str, names: Sequence[str], op_of: Callable[[str], str]
) -> list[Row]:
    """Run cases by the lines ``CASE DEVICE`` of a worker; write and return their rows.

    What does not pass is printed as it comes; rows are written now and then, so that a run can be resumed.
    """
    names = [name for name in list(names)[:: options.every] if re.search(options.only, name)]
    details = options.json.with_name(options.json.stem + "-cases.json")
    rows: list[Row] = []
    if options.resume and details.exists():
        wanted = set(names)
        rows = [
            r for r in json.loads(details.read_text()) if r["case"] in wanted and r["outcome"] == "passed"
        ]
    done = {(r["case"], r["device"]) for r in rows}
    devices = options.devices.split(",")
    tasks = [f"{name}\t{device}" for device in devices for name in names if (name, device) not in done]
    options.json.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()

    def report(task: str, answer: Row) -> None:
        name, device = task.split("\t")
        row = {"case": name, "op": op_of(name), "device": device, **answer}
        rows.append(row)
        count = len(rows) - len(done)
        if row["outcome"] != "passed":
            place = f"{count}/{len(tasks)} {time.monotonic() - start:.0f} s"
            print(f"{place} {name} {device}: {row['outcome']} {row['detail']}", flush=True)
        if count % _WRITE_EVERY == 0:
            details.write_text(json.dumps(rows, indent=0) + "\n")

    limits = {"workers": options.workers, "seconds": options.seconds, "memory": options.memory}
    run(worker, tasks, report=report, **limits)
    rows.sort(key=lambda r: (r["device"], r["case"]))
    options.json.write_text(json.dumps(counts(rows), indent=1) + "\n")
    details.write_text(json.dumps(rows, indent=0) + "\n")
    print(json.dumps(counts(rows), indent=1))
    return rows


def exit_code(rows: Sequence[Row]) -> int:
    """1 if a case did more than pass or be refused."""
    return int(any(row["outcome"] not in OUTCOMES[:2] for row in rows))


def counts(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """The number of cases by device and outcome."""
    result: dict[str, dict[str, int]] = {}
    for row in rows:
        of_device = result.setdefault(row["device"], dict.fromkeys(OUTCOMES, 0))
        of_device[row["outcome"]] = of_device.get(row["outcome"], 0) + 1
    return result


def section(title: str, introduction: str, rows: Sequence[Row]) -> str:
    """A section of the documentation: counts, then ops with what passes and why the rest does not."""
    devices = sorted({row["device"] for row in rows})
    by_device = counts(rows)
    lines = [
        f"## {title}",
        "",
        introduction,
        "",
        "| device | " + " | ".join(OUTCOMES) + " |",
        "|---|" + "---:|" * len(OUTCOMES),
    ]
    lines += [
        f"| {device} | " + " | ".join(str(by_device[device][o]) for o in OUTCOMES) + " |"
        for device in devices
    ]
    lines += [
        "",
        f"| op | {' | '.join(devices)} | what is not supported |",
        "|---|" + "---:|" * len(devices) + "---|",
    ]
    by_op: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_op[row["op"]].append(row)
    for op in sorted(by_op, key=str.lower):
        cells = []
        for device in devices:
            outcomes = [r["outcome"] for r in by_op[op] if r["device"] == device]
            cells.append(f"{outcomes.count('passed')} of {len(outcomes)}")
        lines.append(f"| {op} | {' | '.join(cells)} | {_reasons(by_op[op])} |")
    return "\n".join(lines) + "\n"


def _reasons(rows: Sequence[Row]) -> str:
    reasons = Counter(_reason(row) for row in rows if row["outcome"] != "passed")
    return "; ".join(reason for reason, _ in reasons.most_common(2))


def _reason(row: Row) -> str:
    text = row["detail"].partition(": ")[2] or row["outcome"]
    return str(text).replace("|", "\\|").replace("\n", " ")[:120]


def write_section(path: Path, text: str, name: str) -> None:
    """Put a section between its markers in a document, which is begun where there is none."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    block = f"{begin}\n{text}{end}\n"
    before = path.read_text(encoding="utf-8") if path.exists() else "# What is supported\n\n"
    if begin in before:
        head, _, rest = before.partition(begin)
        _, _, tail = rest.partition(end + "\n")
        path.write_text(head + block + tail, encoding="utf-8")
    else:
        path.write_text(before.rstrip("\n") + "\n\n" + block, encoding="utf-8")
