"""Rows as a Markdown table and as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.cases import CASES
from benchmarks.harness.peers import OURS
from benchmarks.harness.rows import Row, exact

_COLUMNS = (
    ("median ms", "median_ms"),
    ("p95 ms", "p95_ms"),
    ("min ms", "min_ms"),
    ("live MB", "live_mb"),
    ("peak MB", "peak_rss_mb"),
    ("load s", "load_s"),
    ("first s", "first_s"),
    ("compile s", "compile_s"),
    ("artifact MB", "artifact_mb"),
)
_RATIOS = (
    ("best peer", "best_peer"),
    ("latency, Mansard / best", "latency_ratio"),
    ("least memory", "lowest_memory_peer"),
    ("live memory, Mansard / least", "live_ratio"),
    ("live / (weights + bound of activations)", "live_over_bound"),
    ("peak / torch-compile's", "peak_ratio"),
    ("compile again s", "recompile_s"),
)

_NOTES = """\
Batch 1, random weights (seed 0) in the shapes of the named networks, the same inputs for all. A row is the
median of several processes, run peer after peer. Median, p95 and min are of single calls; live is the peak of
resident memory less what was resident after the imports (memory-mapped weights count as they are read), peak
that of the whole process; load is from a file to something that can be called, first the first call, compile
from a module in memory to a file (torch-compile: its first call; later processes find its cache of generated
code filled). Errors are max |y - reference| / max |reference| against PyTorch eager in float32. MB are 10^6
bytes."""


def number(value: float | str | None) -> str:
    """Three digits, or a dash."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(rows: Sequence[Row]) -> str:
    """The measured rows of the models, then the ratios, then what was not measured and why."""
    shown = [row for row in rows if not CASES[row["model"]].micro]
    done = [row for row in shown if row["status"] == "ok"]
    parts = [
        _grid(
            ["model", "peer", *(title for title, _ in _COLUMNS), "max rel err"],
            [
                [row["model"], row["peer"], *(number(row[key]) for _, key in _COLUMNS), _error(row)]
                for row in done
            ],
        )
    ]
    compared = [row for row in done if row["peer"] in OURS and exact(row)]
    if compared:
        parts.append("Mansard beside its peers (exact ones only; below 1 is better):")
        cells = [[row["model"], row["peer"], *(number(row.get(k)) for _, k in _RATIOS)] for row in compared]
        parts.append(_grid(["model", "", *(title for title, _ in _RATIOS)], cells))
    if any(not exact(row) for row in done):
        parts.append("\\* not the model's element type: left out of the ratios.")
    failed: dict[tuple[str, str], list[str]] = {}
    for row in shown:
        if row["status"] != "ok":
            failed.setdefault((row["peer"], row["status"]), []).append(row["model"])
    if failed:
        lines = [f"- {peer} ({', '.join(models)}): {status}" for (peer, status), models in failed.items()]
        parts += ["Not measured:", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def machine_table(machine: Mapping[str, Any]) -> str:
    """The machine, its limits, and how near to them Mansard comes."""
    lines = [f"- {key}: {number(value)}" for key, value in machine.items() if not isinstance(value, Mapping)]
    lines.append(f"- versions: {', '.join(f'{k} {v}' for k, v in machine['versions'].items())}")
    limits = machine.get("limits", {})
    cells = [[name, number(entry["value"]), entry["unit"]] for name, entry in limits.items()]
    parts = ["\n".join(lines)]
    if cells:
        parts.append(_grid(["measured in the same run", "value", "unit"], cells))
    return "\n\n".join(parts) + "\n"


def page(rows: Sequence[Row], machine: Mapping[str, Any], picture: str | None) -> str:
    """The whole report; ``picture`` is the plot's place relative to it."""
    parts = [f"# CPU runtimes side by side, {machine['date'][:10]}", machine_table(machine), _NOTES]
    if picture:
        parts.append(f"![Latency and live memory of each runtime]({picture})")
    return "\n\n".join(part.strip() for part in [*parts, table(rows)]) + "\n"


def _error(row: Row) -> str:
    return f"{row['max_rel_err']:.1e}" + ("" if exact(row) else " \\*")


def _grid(head: list[str], cells: list[list[str]]) -> str:
    # columns of numbers to the right; the first two are names
    rule = ["---"] * 2 + ["---:"] * (len(head) - 2)
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *cells])


def plot(rows: Sequence[Row], path: Path) -> None:
    """Latency and live memory of every measured row as bars, one line of panels for each model.

    ``path`` ends in .svg or .png. Hatched bars are not exact. Needs matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "mansard"  # the same rows make the same file
    import matplotlib.pyplot as plt

    done = [row for row in rows if row["status"] == "ok" and not CASES[row["model"]].micro]
    models = list(dict.fromkeys(row["model"] for row in done))
    if not models:
        raise ValueError("nothing was measured: there is nothing to plot")
    heights = [0.6 + 0.22 * sum(row["model"] == model for row in done) for model in models]
    figure, axes = plt.subplots(
        len(models), 2, figsize=(9, sum(heights)), squeeze=False, height_ratios=heights, layout="constrained"
    )
    for line, model in zip(axes, models, strict=True):
        for axis, key, unit in zip(line, ("median_ms", "live_mb"), ("ms", "MB"), strict=True):
            chosen = sorted((r for r in done if r["model"] == model), key=lambda r: -r[key])
            bars = axis.barh(
                [row["peer"] for row in chosen],
                [row[key] for row in chosen],
                color=["#c44e52" if row["peer"] in OURS else "#8c9bb0" for row in chosen],
                hatch=["" if exact(row) else "////" for row in chosen],
                edgecolor="white",
                linewidth=0,
            )
            axis.bar_label(bars, [number(row[key]) for row in chosen], padding=3, fontsize=7)
            axis.set_title(
                f"{model}: {'median latency' if unit == 'ms' else 'live memory'}, {unit}", fontsize=8
            )
            axis.tick_params(labelsize=7)
            axis.spines[["top", "right"]].set_visible(False)
            axis.margins(x=0.12)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
