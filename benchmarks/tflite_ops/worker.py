"""Compiles cases and says how each did: the child of `benchmarks.harness.pool`.

Reads ``CASE DEVICE`` lines and answers each with a line of JSON, on a stream of its own: compilers print.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import mansard
from benchmarks.tflite_ops.cases import Case, built
from benchmarks.tflite_ops.litert import litert
from mansard.errors import MansardError

Array = np.ndarray[Any, Any]


def examine(name: str, run: Callable[[bytes, Sequence[Array]], Sequence[Array]]) -> dict[str, Any]:
    """``passed``, ``unsupported``, ``wrong``, ``foreign``, or ``invalid``: LiteRT itself refuses the case."""
    case, model, inputs = built(name)
    try:
        expected = litert(model, inputs, reference=case.reference)
    except (RuntimeError, ValueError) as error:
        return {"outcome": "invalid", "detail": _line(error)}
    try:
        difference = compare(run(model, inputs), expected, case)
    except MansardError as error:
        return {"outcome": "unsupported", "detail": _line(error)}
    except Exception as error:
        return {"outcome": "foreign", "detail": _line(error)}
    return {"outcome": "wrong" if difference else "passed", "detail": difference}


def compiled(device: str) -> Callable[[bytes, Sequence[Array]], Sequence[Array]]:
    """A run of a model compiled for a device."""

    def run(model: bytes, inputs: Sequence[Array]) -> Sequence[Array]:
        with mansard.compile(model, devices=device, cache=False, fallback="error") as program:
            result = program(*inputs)
            return result if isinstance(result, (tuple, list)) else (result,)

    return run


def compare(actual: Sequence[Any], expected: Sequence[Array], case: Case) -> str:
    """What differs by more than the case allows; empty where nothing does."""
    if len(actual) != len(expected):
        return f"{len(actual)} results, {len(expected)} expected"
    for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
        a = np.asarray(a)
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {number} is {a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
        if b.dtype.kind == "b":
            equal = a == b
        elif b.dtype.kind in "iu":
            steps = case.steps if b.dtype.itemsize <= 2 else 0
            equal = np.abs(a.astype(np.int64) - b.astype(np.int64)) <= steps
        else:
            equal = np.isclose(a, b, case.rtol, case.atol, equal_nan=True)
        if not np.all(equal):
            place = tuple(int(i) for i in np.argwhere(~np.atleast_1d(equal))[0])
            count = int(np.sum(~equal))
            return (
                f"result {number} at {place}: {np.atleast_1d(a)[place]}, expected {np.atleast_1d(b)[place]}; "
                f"{count} of {b.size} differ"
            )
    return ""


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        name, device = (part.strip() for part in line.split("\t"))
        print(json.dumps(examine(name, compiled(device))), file=answers, flush=True)


if __name__ == "__main__":
    main()
