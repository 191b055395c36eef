"""Compiles architectures and says how each did: the child of `benchmarks.harness.pool`.

Reads ``KIND DEVICE`` lines and answers each with a line of JSON, on a stream of its own: compilers print.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch

import mansard
from benchmarks.transformers_models.models import NotSmall, build
from mansard.errors import MansardError

TOLERANCE = 1e-3
"""The largest difference, as a part of a result's largest number: models of a few layers in f32."""


def examine(kind: str, device: str) -> dict[str, Any]:
    """``passed``, ``unsupported``, ``wrong``, ``foreign``, or ``invalid``: there is no small model."""
    try:
        model, inputs = build(kind)
    except NotSmall as error:
        return {"outcome": "invalid", "detail": f"NotSmall: {error}"}
    with torch.no_grad():
        expected = model(**inputs)
    begin = time.perf_counter()
    try:
        with mansard.compile(model, kwargs=inputs, devices=device, cache=False, fallback="error") as program:
            seconds = round(time.perf_counter() - begin, 1)
            differences = list(_differences(expected, program(**inputs), "result"))
    except MansardError as error:
        return {"outcome": "unsupported", "detail": _line(error)}
    except Exception as error:
        return {"outcome": "foreign", "detail": _line(error)}
    wrong = [text for text, part in differences if part > TOLERANCE]
    worst = max((part for _, part in differences), default=0.0)
    outcome = "wrong" if wrong else "passed"
    return {"outcome": outcome, "detail": "; ".join(wrong)[:300], "worst": worst, "compile_s": seconds}


def _differences(expected: Any, actual: Any, place: str) -> Iterator[tuple[str, float]]:
    """What differs between two results, and by which part of the largest number."""
    if isinstance(expected, torch.Tensor):
        if not isinstance(actual, torch.Tensor) or actual.shape != expected.shape:
            yield f"{place} is {getattr(actual, 'shape', actual)}, expected {expected.shape}", float("inf")
            return
        a, e = actual.double(), expected.double()
        finite = torch.isfinite(e)
        if not torch.equal(finite, torch.isfinite(a)):
            yield f"{place} is not finite elsewhere", float("inf")
        elif finite.any():
            part = float((a - e)[finite].abs().max() / e[finite].abs().max().clamp(min=1e-3))
            yield f"{place} differs by {part:.1e}", part
    elif isinstance(expected, dict):
        for key, value in expected.items():
            yield from _differences(value, actual[key], f"{place}.{key}")
    elif isinstance(expected, (list, tuple)):
        for number, value in enumerate(expected):
            yield from _differences(value, actual[number], f"{place}[{number}]")


def _line(error: Exception) -> str:
    text = re.sub(r'File "[^"]*/', 'File "', str(error))  # where this machine has its packages
    return f"{type(error).__name__}: {' '.join(text.split())}"[:300]


def main() -> None:
    """Answer until the input ends."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        kind, device = (part.strip() for part in line.split("\t"))
        print(json.dumps(examine(kind, device)), file=answers, flush=True)


if __name__ == "__main__":
    main()
