"""Networks that TensorFlow's converter wrote (`make tflite-models`), compiled and compared with LiteRT.

python -m benchmarks.tflite_models FOLDER [--devices cpu] [--only PATTERN] [--markdown docs/coverage.md]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import mansard
from benchmarks.harness.conformance import write_section
from benchmarks.tflite_ops.litert import litert_apart
from mansard.frontends.tflite.importer import import_tflite

Array = np.ndarray[Any, Any]
BATCH, LARGEST = 2, 64
"""The size of dims that a model leaves open, in the call and at most."""


def inputs_of(path: Path) -> list[Array]:
    """Numbers for a call: tokens, bytes or real numbers."""
    rng = np.random.default_rng(1)
    arrays = []
    for value in import_tflite(path).inputs:
        shape = tuple(d if isinstance(d, int) else BATCH for d in value.type.shape)
        dtype = value.type.dtype.numpy
        if value.type.dtype.is_float:
            arrays.append(rng.uniform(-1, 1, shape).astype(dtype))
        else:
            low, high = (0, 1000) if value.name == "ids" else (-128, 128)
            arrays.append(rng.integers(low, high, shape).astype(dtype))
    return arrays


def examine(path: Path, device: str) -> dict[str, Any]:
    """How far a model's results are from LiteRT's, its dispatches and the time to compile it."""
    inputs = inputs_of(path)
    usual, reference = (litert_apart(path, inputs, reference=flag) for flag in (False, True))
    if usual is None:
        raise RuntimeError("LiteRT cannot run the model")
    start = time.perf_counter()
    dims = {name: mansard.Dim(name, 1, LARGEST) for name in import_tflite(path).dims()}
    with mansard.compile(path, devices=device, cache=False, fallback="error", dims=dims) as model:
        seconds = time.perf_counter() - start
        result = model(*inputs)
        dispatches = len(model.plan.decisions)
    actual = [np.asarray(r) for r in (result if isinstance(result, (tuple, list)) else [result])]
    stored = usual[0].dtype.kind in "iu"
    return {
        "model": path.stem,
        "device": device,
        "dispatches": dispatches,
        "compile_s": round(seconds, 1),
        "difference": _difference(actual, usual, stored=stored),
        "reference": None if reference is None else _difference(actual, reference, stored=stored),
        "between": None if reference is None else _difference(usual, reference, stored=stored),
        "unit": "steps" if stored else "relative",
    }


def _difference(actual: list[Array], expected: list[Array], *, stored: bool) -> float:
    """The largest difference: in steps of stored numbers, or relative to the largest real number."""
    wide = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(actual, expected, strict=True)]
    return max(float(np.abs(a - b).max() / (1.0 if stored else np.abs(b).max())) for a, b in wide)


def section(rows: list[dict[str, Any]]) -> str:
    """The section of the documentation."""
    lines = [
        "## Networks through TFLite",
        "",
        "Networks with random weights, written by TensorFlow's converter (`make tflite-models`) in real "
        "numbers, in int8, with stored weights only (`dynamic`) and with weights in f16. The largest "
        "difference from LiteRT as it runs by default (XNNPACK) and by its reference kernels, and that "
        "between these two, in steps of int8 or relative to the largest real number. Numbers rounded in each "
        "call (`dynamic`) and stored activations turn differences in the last place into steps, which "
        "networks with random weights do not forget.",
        "",
        "| model | device | dispatches | compiled in s | LiteRT | its reference kernels | between these |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['model']} | {row['device']} | | | {row['error']} | | |")
            continue
        unit = " steps" if row["unit"] == "steps" else ""
        numbers = [row[key] for key in ("difference", "reference", "between")]
        cells = ["they fail" if n is None else f"{n:.2g}{unit}" for n in numbers]
        lines.append(
            f"| {row['model']} | {row['device']} | {row['dispatches']} | {row['compile_s']} | {cells[0]} | "
            f"{cells[1]} | {cells[2]} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run, print and write; returns 1 if a model could not be compiled or run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--devices", default="cpu")
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path, default=Path("build/tflite-models.json"))
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    paths = [p for p in sorted(options.folder.glob("*.tflite")) if re.search(options.only, p.stem)]
    rows = []
    for device in options.devices.split(","):
        for path in paths:
            try:
                rows.append(examine(path, device))
            except Exception as error:
                text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
                rows.append({"model": path.stem, "device": device, "error": text})
            print(json.dumps(rows[-1]), flush=True)
    options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.markdown:
        write_section(options.markdown, section(rows), "tflite networks")
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
