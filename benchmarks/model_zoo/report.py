"""The tables of a run."""

from __future__ import annotations

from typing import Any

SECONDS = 60
"""The most that a compilation may take on two cores."""
PLACES = ("cpu", "vulkan", "split")
Row = dict[str, Any]


def section(rows: list[Row]) -> str:
    """The document's section."""
    worst = max((max(row["errors"]) for row in rows if row.get("errors")), default=0.0)
    passed = sum(row["outcome"] == "passed" for row in rows)
    lines = [
        "## Models",
        "",
        f"Architectures with random weights in f32, each from every framework (`make model-conformance`): "
        f"{passed} of {len(rows)} compiled models agree with their framework (PyTorch, ONNX Runtime, JAX, "
        f"LiteRT) within 1e-4 of the largest number of a result; the largest error is {worst:.1e}. `static` "
        "has the sizes of the publication, `open` a batch and, where the model allows it, other sizes that "
        "vary, called with two sets of them. `split` has at least three tenths of the dispatches on each "
        "device; an empty cell was not run. Compile times are from the framework's model on, of two cores "
        "without caches; where other programs delayed a compilation, its processor time, with that of the "
        f"compiler's own processes; what a Vulkan driver compiles in the first call is not "
        f"among them.{_longest(rows)}{_commits(rows)}",
        "",
        *_summary(rows),
        "",
        "| model | framework | sizes | dispatches | error on cpu | on vulkan | split | compiled in s |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    keys = dict.fromkeys((row["model"], row["framework"], row["sizes"]) for row in rows)
    for key in keys:
        by_place = {r["placement"]: r for r in rows if (r["model"], r["framework"], r["sizes"]) == key}
        counts = "/".join(dict.fromkeys(str(r["dispatches"]) for r in by_place.values() if "dispatches" in r))
        times = "/".join(str(_seconds(by_place[p])) for p in PLACES if "compile_s" in by_place.get(p, {}))
        cells = [_cell(by_place.get(p)) for p in PLACES]
        lines.append(f"| {' | '.join(key)} | {counts} | {' | '.join(cells)} | {times} |")
    return "\n".join(lines) + "\n"


def _summary(rows: list[Row]) -> list[str]:
    """By framework and place: what passed, the largest error and the longest compilation."""
    lines = [
        "| framework | device | passed | largest error | longest compilation in s |",
        "|---|---|---:|---:|---:|",
    ]
    groups = dict.fromkeys((row["framework"], place) for row in rows for place in PLACES)
    for framework, place in groups:
        group = [row for row in rows if (row["framework"], row["placement"]) == (framework, place)]
        if group:
            passed = sum(row["outcome"] == "passed" for row in group)
            worst = max((max(row["errors"]) for row in group if row.get("errors")), default=0.0)
            longest = max((_seconds(row) for row in group if "compile_s" in row), default=0.0)
            lines.append(f"| {framework} | {place} | {passed} of {len(group)} | {worst:.1e} | {longest} |")
    return lines


def _longest(rows: list[Row]) -> str:
    """Which compilation took longest."""
    compiled = [row for row in rows if "compile_s" in row]
    if not compiled:
        return ""
    row = max(compiled, key=_seconds)
    return (
        f" The longest is {_seconds(row)} s ({row['model']} from {row['framework']}, {row['sizes']}, on "
        f"{row['placement']}); the limit is {SECONDS} s."
    )


def _commits(rows: list[Row]) -> str:
    """Of which the rows are, where there are several."""
    commits = sorted({str(row["revision"]) for row in rows if "revision" in row})
    return f" Rows are of the commits {', '.join(commits)}." if len(commits) > 1 else ""


def _seconds(row: Row) -> float:
    """The time of a compilation; processor time, of both cores, where other programs delayed it."""
    return float(min(row["compile_s"], row["compile_processor_s"]))


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if "errors" not in row:
        return str(row["detail"]).replace("|", "\\|")[:100]
    return f"{max(row['errors']):.1e}" + ("" if row["outcome"] == "passed" else " (wrong)")
