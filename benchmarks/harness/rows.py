"""Rows of results: rounds put together, and Mansard's ratios to its peers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.harness.cases import CASES
from benchmarks.harness.peers import OURS

Row = dict[str, Any]

FIELDS = (
    "median_ms",
    "p95_ms",
    "min_ms",
    "live_mb",
    "peak_rss_mb",
    "load_s",
    "first_s",
    "compile_s",
    "artifact_mb",
    "max_rel_err",
)
"""In every row, None where not measured. Milliseconds, seconds, 10^6 bytes; the error is
max |y - reference| / max |reference|. ``live_mb`` is the peak of resident memory less what was resident after
the imports."""

_EXTREMES = {"min_ms": min, "max_rel_err": max}
INDUCTOR = "torch-compile"


def new_row(model: str, peer: str, status: str = "ok") -> Row:
    """A row without figures."""
    return {"model": model, "peer": peer, "status": status, **dict.fromkeys(FIELDS)}


def merge_rounds(rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Rounds as one: the median of each figure, the smallest minimum, the largest error.

    ``round_medians_ms`` keeps the medians of the rounds in order.
    """
    if not rounds:
        raise ValueError("no rounds to merge")
    merged: dict[str, Any] = {}
    for key in rounds[0]:
        merged[key] = _EXTREMES.get(key, statistics.median)([r[key] for r in rounds])
    merged["round_medians_ms"] = [r["median_ms"] for r in rounds]
    return merged


def exact(row: Row) -> bool:
    """Whether a row was measured, and computed what the case's element type gives."""
    return row["status"] == "ok" and row["max_rel_err"] <= CASES[row["model"]].tolerance


def add_ratios(rows: Iterable[Row]) -> None:
    """Set Mansard's ratios, from the other rows of the same model; below 1 is better.

    - ``best_peer``, ``latency_ratio``: to the exact peer with the lowest median. The ratio is the median of
      the ratios of the rounds, which were run one after another.
    - ``lowest_memory_peer``, ``live_ratio``: live memory to that of the exact peer with the least.
    - ``peak_ratio``: peak of the whole process to that of torch-compile.
    - ``live_over_bound``: live memory over weights plus the lower bound of activations, where Mansard reports
      that bound.

    Rows that are not exact neither get ratios of speed and memory nor serve as the peer compared with.
    """
    rows = list(rows)
    for row in rows:
        if row["peer"] not in OURS or not exact(row):
            continue
        others = [r for r in rows if r["model"] == row["model"] and r["peer"] not in OURS and exact(r)]
        if others:
            fastest = min(others, key=lambda r: r["median_ms"])
            pairs = zip(row["round_medians_ms"], fastest["round_medians_ms"], strict=False)
            row["best_peer"] = fastest["peer"]
            row["latency_ratio"] = statistics.median(ours / theirs for ours, theirs in pairs)
            smallest = min(others, key=lambda r: r["live_mb"])
            row["lowest_memory_peer"] = smallest["peer"]
            row["live_ratio"] = row["live_mb"] / smallest["live_mb"]
        for other in others:
            if other["peer"] == INDUCTOR:
                row["peak_ratio"] = row["peak_rss_mb"] / other["peak_rss_mb"]
        bound = memory_bound_mb(row)
        if bound:
            row["live_over_bound"] = row["live_mb"] / bound


def memory_bound_mb(row: Row) -> float | None:
    """Weights plus the least that the activations of the schedule need; None when not reported."""
    weights, activations = row.get("weights_mb"), row.get("activations_bound_mb")
    return None if weights is None or activations is None else weights + activations
