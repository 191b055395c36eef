"""Counts of a run of the node tests, and the table of the documentation made from them."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

OUTCOMES = ("passed", "unsupported", "wrong", "foreign", "killed", "stalled")
"""``foreign``: an exception from outside `mansard.errors`; ``killed``, ``stalled``: the process."""
BEGIN, END = "<!-- begin: onnx node tests -->", "<!-- end: onnx node tests -->"


def counts(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """The number of tests by device and outcome."""
    result: dict[str, dict[str, int]] = {}
    for row in rows:
        result.setdefault(row["device"], dict.fromkeys(OUTCOMES, 0))[row["outcome"]] += 1
    return result


def section(rows: list[dict[str, Any]], version: str, command: str) -> str:
    """The section of the documentation: counts, then ops with what passes and why the rest does not."""
    devices = sorted({row["device"] for row in rows})
    by_device = counts(rows)
    lines = [
        "## ONNX",
        "",
        f"The {len({r['case'] for r in rows})} node tests of onnx {version}'s backend test suite, each "
        "compiled for one device and compared with the suite's results within its tolerances (relative 1e-3, "
        "absolute 1e-7, or two units in the last place of the largest number; shapes and types where the op "
        "draws random numbers). Inputs whose content decides a shape or the form of the computation (axes, "
        "sizes, pads) are given to the compiler as constants. "
        f"`{command}` makes this section.",
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
    by_op: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_op[row["op"]].append(row)
    for op in sorted(by_op, key=str.lower):
        cells = []
        for device in devices:
            outcomes = [r["outcome"] for r in by_op[op] if r["device"] == device]
            cells.append(f"{outcomes.count('passed')} of {len(outcomes)}")
        lines.append(f"| {op} | {' | '.join(cells)} | {_reasons(by_op[op])} |")
    return "\n".join(lines) + "\n"


def _reasons(rows: list[dict[str, Any]]) -> str:
    reasons = Counter(_reason(row) for row in rows if row["outcome"] != "passed")
    return "; ".join(reason for reason, _ in reasons.most_common(2))


def _reason(row: dict[str, Any]) -> str:
    text = row["detail"].partition(": ")[2] or row["outcome"]
    return str(text).replace("|", "\\|").replace("\n", " ")[:120]


def write_section(path: Path, text: str) -> None:
    """Put the section between its markers in a document, which is begun where there is none."""
    block = f"{BEGIN}\n{text}{END}\n"
    before = path.read_text(encoding="utf-8") if path.exists() else "# What is supported\n\n"
    if BEGIN in before:
        head, _, rest = before.partition(BEGIN)
        _, _, tail = rest.partition(END + "\n")
        path.write_text(head + block + tail, encoding="utf-8")
    else:
        path.write_text(before.rstrip("\n") + "\n\n" + block, encoding="utf-8")
