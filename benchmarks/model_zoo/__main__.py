"""Architectures from each framework on each device, compared with their framework.

    python -m benchmarks.model_zoo [--only PATTERN] [--frameworks pytorch,onnx,jax,tflite] [--placements cpu]

Each is compiled with the sizes of its publication, and with sizes that vary, which is called with two sets of
them. Rows go to ``build/model-conformance.json`` as they are made; a run that ended early goes on with
``--resume``. Runs of some frameworks or devices add up: ``--keep`` has the rows that the file had before,
``--add`` those of other files, too. With ``--markdown`` tables are written into a document; ``--only '^$'``
makes just these. The exit code is 1 if something differs, fails or takes too long to compile. TFLite models
come from a folder that ``make_tflite.py`` writes, in an environment with TensorFlow; without it they are left
out.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import mansard
from benchmarks.harness.conformance import write_section
from benchmarks.model_zoo.cases import CASES, Case
from benchmarks.model_zoo.clock import Clock
from benchmarks.model_zoo.report import SECONDS, section
from benchmarks.model_zoo.routes import Route, routes
from benchmarks.model_zoo.weights import Array
from mansard.frontends import import_model
from mansard.ir.graph import Graph

TOLERANCE = 1e-4
PLACEMENTS = {"cpu": ("cpu",), "vulkan": ("vulkan",), "split": ("cpu", "vulkan")}
SHARE = 0.3
"""Of the dispatches, that each device has at least in a split."""
Row = dict[str, Any]


@dataclass
class Imported:
    """A case as Mansard's Graph, from one framework, with what the framework answers to each call."""

    graph: Graph
    calls: list[tuple[list[Array], list[Array]]]
    """Inputs and results."""
    clock: Clock
    """The time that the import took."""


def imported(case: Case, route: Route) -> Imported:
    """Import a case once for all placements, and ask its framework."""
    options = dict(route.options)
    clock = Clock()
    graph = import_model(route.model, options.pop("inputs", None), **options)
    clock.stop()
    calls = [(arrays, route.reference(arrays)) for arrays in (route.inputs(case, s) for s in route.sizes)]
    return Imported(graph, calls, clock)


def examine(model: Imported, placement: str) -> Row:
    """Compile and call: dispatches, seconds with the import's and the largest relative error of a result."""
    options: dict[str, Any] = {"fallback": "error"}
    if placement == "split":
        options = {"placement": mansard.PlacementOptions(min_share=SHARE)}
    clock = Clock()
    with mansard.compile(model.graph, devices=PLACEMENTS[placement], cache=False, **options) as compiled:
        clock.stop()
        decisions = compiled.plan.decisions
        row: Row = {
            "dispatches": len(decisions),
            "devices": len({d.device for d in decisions}),
            "compile_s": round(model.clock.seconds + clock.seconds, 1),
            "compile_processor_s": round(model.clock.processor + clock.processor, 1),
            "errors": [],
        }
        for arrays, expected in model.calls:
            begin = time.perf_counter()
            results = _leaves(compiled(*arrays))
            row["call_s"] = round(time.perf_counter() - begin, 2)
            row["errors"].append(_error(results, expected))
    right = max(row["errors"]) <= TOLERANCE and (placement != "split" or row["devices"] == 2)
    return row | {"outcome": "passed" if right else "wrong"}


def _leaves(results: Any) -> list[Array]:
    return [np.asarray(r) for r in (results if isinstance(results, tuple | list) else [results])]


def _error(results: list[Array], expected: list[Array]) -> float:
    """The largest error, over the largest number of its result; integers have to be equal."""
    worst = 0.0
    for a, b in zip(results, expected, strict=True):
        if a.shape != b.shape:
            raise ValueError(f"a result of {a.shape}, not {b.shape}")
        if b.dtype.kind in "iu":
            worst = max(worst, float((a != b).any()))
        else:
            wide = a.astype(np.float64), b.astype(np.float64)
            worst = max(worst, float(np.abs(wide[0] - wide[1]).max() / np.abs(wide[1]).max()))
    return worst


def rows_of(
    case: Case, framework: str, dynamic: bool, placements: list[str], folder: Path, base: Row
) -> list[Row]:
    """The rows of a case in a framework; each begins with ``base``."""
    try:
        route = routes()[framework](case, dynamic, folder)
        model = imported(case, route) if route is not None else None
    except Exception as error:
        return [base | {"placement": p} | _failure(error) for p in placements]
    rows = []
    for placement in placements if model is not None else []:
        assert model is not None
        try:
            row = examine(model, placement)
        except Exception as error:  # what a table is for
            row = _failure(error)
        rows.append(base | {"placement": placement} | row)
        print(json.dumps(rows[-1]), flush=True)
    return rows


def revision() -> str:
    """The commit of the sources, with ``+`` where they have been changed since."""
    root = Path(__file__).parents[2]

    def git(*arguments: str) -> str:
        done = subprocess.run(("git", *arguments), cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")


def _merged(earlier: list[Row], rows: list[Row]) -> list[Row]:
    """The rows of two runs, in the order of cases and frameworks; the later run's where both have one."""
    orders = ([case.name for case in CASES], list(routes()), ["static", "open"], list(PLACEMENTS))

    def key(row: Row) -> tuple[int, ...]:
        return tuple(order.index(name) for order, name in zip(orders, _name(row), strict=True))

    by_key = {key(row): row for row in (*earlier, *rows)}
    return [by_key[k] for k in sorted(by_key)]


def _write(path: Path, rows: list[Row]) -> None:
    """One row a line, which shows in a comparison of two files what changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def _name(row: Row) -> tuple[str, ...]:
    return row["model"], row["framework"], row["sizes"], row["placement"]


def _compiles_soon(row: Row) -> bool:
    """Within the limit, also where other programs delayed it."""
    return min(row["compile_s"], row["compile_processor_s"]) <= SECONDS


def _failure(error: Exception) -> Row:
    traceback.print_exc()
    return {"outcome": "failed", "detail": f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]}


def main() -> int:
    """Run, print and write; returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="architectures whose name has this regular expression")
    parser.add_argument("--frameworks", default="pytorch,onnx,jax,tflite")
    parser.add_argument("--placements", default=",".join(PLACEMENTS))
    parser.add_argument("--sizes", default="static,open")
    parser.add_argument("--tflite", type=Path, default=Path("build/model-zoo"))
    parser.add_argument("--onnx", type=Path, help="folder to keep ONNX models in, for later runs")
    parser.add_argument("--keep", action="store_true", help="rows of an earlier run that this does not make")
    parser.add_argument(
        "--add",
        type=Path,
        nargs="+",
        default=[],
        metavar="JSON",
        help="files of other runs; of rows in several the last counts, this run's before all",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="what passed in an earlier run of the same commit is not run again",
    )
    parser.add_argument("--json", type=Path, default=Path("build/model-conformance.json"))
    parser.add_argument("--markdown", type=Path, help="document to write the tables into")
    options = parser.parse_args()
    rows: list[Row] = []
    earlier: list[Row] = []
    if (options.keep or options.resume) and options.json.exists():
        earlier = json.loads(options.json.read_text())
    now = revision()
    if options.resume and not options.keep:
        earlier = [row for row in earlier if row.get("revision") == now]
    for file in options.add:
        earlier = _merged(earlier, json.loads(file.read_text()))
    passed = [row for row in earlier if row.get("revision") == now and row["outcome"] == "passed"]
    done = {_name(row) for row in passed} if options.resume else set()
    for case in CASES:
        if not re.search(options.only, case.name):
            continue
        for framework in options.frameworks.split(","):
            for sizes in options.sizes.split(","):
                if sizes == "open" and not case.ranges:
                    continue
                base = {"model": case.name, "framework": framework, "sizes": sizes, "revision": now}
                placements = options.placements.split(",")
                placements = [p for p in placements if _name(base | {"placement": p}) not in done]
                if not placements:
                    continue
                with tempfile.TemporaryDirectory() as temporary:
                    folders = {"tflite": options.tflite, "onnx": options.onnx}
                    folder = folders.get(framework) or Path(temporary)
                    rows += rows_of(case, framework, sizes == "open", placements, folder, base)
                gc.collect()
                _write(options.json, _merged(earlier, rows))
    rows = _merged(earlier, rows)
    _write(options.json, rows)
    if options.markdown:
        write_section(options.markdown, section(rows), "models")
    good = all(row["outcome"] == "passed" and _compiles_soon(row) for row in rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
