"""The same architectures through each framework, side by side on the CPU: time of a call and dispatches.

    python -m benchmarks.model_zoo.speed [--only PATTERN] [--frameworks pytorch,onnx,jax,tflite] [--rounds 30]

An architecture is compiled once from each framework, with the sizes of its publication. Then the compiled
models are called in turn: in each round every one for a while, beginning with another each time, first calls
not counted. A round gives ratios to the model from PyTorch, of the least time of a call and of processor time
for a call; the median of the rounds counts. Other programs lengthen calls, and processor time hardly.
TFLite models come from a folder that ``make_tflite.py`` writes. The exit code is 1 if both ratios of a model
are above the limit.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib.metadata
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mansard
from benchmarks.harness.machine import describe
from benchmarks.model_zoo.cases import CASES, Case
from benchmarks.model_zoo.routes import routes

FRAMEWORKS = ("pytorch", "onnx", "jax", "tflite")
PACKAGES = {"pytorch": "torch", "onnx": "onnx", "jax": "jax", "tflite": "ai-edge-litert"}
BATCH_S = 0.05
"""Each model is called for so long in a round, and at least `BATCH_CALLS` times."""
BATCH_CALLS = 3
LIMIT = 1.05
"""The largest ratio that counts as the same speed."""
_INTRODUCTION = """\
Architectures of `benchmarks/model_zoo` with random weights in f32, the same in every framework, compiled from
each for the CPU and called in turn, {rounds} rounds. The times are the least of a call, and of processor time
for a call in a round, of all threads; ratios are to the model from PyTorch, the median of the rounds. Where
other programs compute, only ratios of processor time count. Images of JAX and TFLite have channels last, as
Mansard computes them; those of the others are transposed by the first and the last kernels."""
Row = dict[str, Any]


def measure(case: Case, frameworks: Sequence[str], rounds: int, folders: dict[str, Path]) -> Row:
    """Ratios and dispatches of one architecture, by framework."""
    with ExitStack() as stack:
        calls: dict[str, Callable[[], Any]] = {}
        dispatches: dict[str, int] = {}
        for framework in frameworks:
            route = routes()[framework](case, False, folders[framework])
            if route is None:
                continue
            options = dict(route.options)
            model = stack.enter_context(
                mansard.compile(route.model, options.pop("inputs", None), devices=("cpu",), **options)
            )
            inputs = route.inputs(case, case.usual)
            calls[framework] = functools.partial(model, *inputs)
            dispatches[framework] = len(model.plan.decisions)
            del route, options
            gc.collect()
        times = interleaved(calls, rounds)
    row: Row = {"model": case.name, "dispatches": dispatches, "ratio": {}, "processor_ratio": {}}
    base = frameworks[0]
    row["ms"] = {f: round(min(least for least, _ in t) * 1e3, 3) for f, t in times.items()}
    row["processor_ms"] = {f: round(min(spent for _, spent in t) * 1e3, 3) for f, t in times.items()}
    for framework, measured in times.items():
        for kind, name in ((0, "ratio"), (1, "processor_ratio")):
            ratios = [own[kind] / other[kind] for own, other in zip(measured, times[base], strict=True)]
            row[name][framework] = round(statistics.median(ratios), 3)
    return row


def interleaved(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """By name: for each round the least seconds of a call, and the processor's seconds for one."""
    counts = {}
    for name, call in calls.items():
        call()
        begin = time.perf_counter()
        call()
        counts[name] = max(BATCH_CALLS, round(BATCH_S / (time.perf_counter() - begin)))
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    names = list(calls)
    gc.disable()
    try:
        for number in range(rounds):
            turn = number % len(names)
            for name in (*names[turn:], *names[:turn]):
                results[name].append(_batch(calls[name], counts[name]))
    finally:
        gc.enable()
    return results


def _batch(call: Callable[[], Any], count: int) -> tuple[float, float]:
    call()  # with this model's weights and threads in place
    least, spent = float("inf"), time.process_time()
    for _ in range(count):
        begin = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - begin)
    return least, (time.process_time() - spent) / count


def page(rows: Sequence[Row], machine: dict[str, Any], rounds: int) -> str:
    """The report."""
    facts = [f"- {key}: {value}" for key, value in machine.items() if key != "versions"]
    facts.append(
        f"- versions: {', '.join(f'{name} {version}' for name, version in machine['versions'].items())}"
    )
    frameworks = [f for f in FRAMEWORKS if any(f in row["ratio"] for row in rows)]
    others = frameworks[1:]
    head = ["model", f"{frameworks[0]} ms", "processor ms", *(f"{f} ratio" for f in others)]
    head += [*(f"{f} processor ratio" for f in others), "dispatches " + "/".join(frameworks)]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for row in rows:
        first = frameworks[0]
        cells = [row["model"], f"{row['ms'][first]:.2f}", f"{row['processor_ms'][first]:.2f}"]
        for kind in ("ratio", "processor_ratio"):
            cells += [f"{row[kind][f]:.2f}" if f in row[kind] else "" for f in others]
        cells.append("/".join(str(row["dispatches"].get(f, "")) for f in frameworks))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(
        [
            "# The same models through each framework",
            "",
            *facts,
            "",
            _INTRODUCTION.format(rounds=rounds),
            "",
            *lines,
            "",
        ]
    )


def main() -> int:
    """Measure, print and write; returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="architectures whose name has this regular expression")
    parser.add_argument("--frameworks", default=",".join(FRAMEWORKS), help="ratios are to the first")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tflite", type=Path, default=Path("build/model-zoo"))
    parser.add_argument("--onnx", type=Path, help="folder to keep ONNX models in, for later runs")
    parser.add_argument("--json", type=Path, default=Path("build/frameworks.json"))
    parser.add_argument("--markdown", type=Path, help="document to write")
    options = parser.parse_args()
    frameworks = options.frameworks.split(",")
    versions = {"mansard": importlib.metadata.version("mansard")}
    versions |= {PACKAGES[f]: importlib.metadata.version(PACKAGES[f]) for f in frameworks}
    machine = describe(len(os.sched_getaffinity(0)), versions, "benchmarks.model_zoo.speed")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folders = dict.fromkeys(frameworks, Path(temporary))
        folders["tflite"] = options.tflite
        folders["onnx"] = options.onnx or Path(temporary)
        for case in CASES:
            if re.search(options.only, case.name):
                rows.append(measure(case, frameworks, options.rounds, folders))
                print(json.dumps(rows[-1]), flush=True)
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(page(rows, machine, options.rounds), encoding="utf-8")
    return int(any(_slower(row, framework) for row in rows for framework in row["ratio"]))


def _slower(row: Row, framework: str) -> bool:
    return bool(min(row["ratio"][framework], row["processor_ratio"][framework]) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
