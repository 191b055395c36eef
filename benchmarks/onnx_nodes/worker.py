"""Compiles ONNX node tests and says how each did: the child of `benchmarks.harness.pool`.

Reads ``TEST DEVICE`` lines and answers each with a line of JSON, on a stream of
its own because compilers print.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

import numpy as np

import mansard
from mansard.errors import MansardError


def cases() -> dict[str, Any]:
    """The node tests of the installed onnx package, by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


def examine(case: Any, device: str) -> tuple[str, str]:
    """``passes``, ``refused``, ``wrong`` or ``foreign``, and what was said or differs."""
    try:
        model = mansard.compile(case.model, devices=device, cache=False, fallback="error")
        with model:
            for inputs, expected in case.data_sets:
                result = model(*inputs)
                actual = result if isinstance(result, (tuple, list)) else (result,)
                difference = compare(actual, expected, case.rtol, case.atol)
                if difference:
                    return "wrong", difference
    except MansardError as error:
        return "refused", _line(error)
    except Exception as error:
        return "foreign", _line(error)
    return "passes", ""


def compare(actual: Any, expected: Any, rtol: float, atol: float) -> str:
    """What differs, within the tolerances of the test; empty where nothing does."""
    if len(actual) != len(expected):
        return f"{len(actual)} results, {len(expected)} expected"
    for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {number} is {a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
        exact = b.dtype.kind in "iub"
        wide = np.asarray if exact else lambda x: np.asarray(x, np.float64)
        equal = wide(a) == wide(b) if exact else np.isclose(wide(a), wide(b), rtol, atol, equal_nan=True)
        if not np.all(equal):
            place = tuple(int(i) for i in np.argwhere(~np.atleast_1d(equal))[0])
            values = np.atleast_1d(a)[place], np.atleast_1d(b)[place]
            return f"result {number} at {place}: {values[0]!r}, expected {values[1]!r}"
    return ""


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    known = cases()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        name, device = (part.strip() for part in line.split("\t"))
        outcome, detail = examine(known[name], device)
        print(json.dumps({"outcome": outcome, "detail": detail}), file=answers, flush=True)


if __name__ == "__main__":
    main()
