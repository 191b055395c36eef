"""Compiles entries of the database and says how each did: the child of `benchmarks.harness.pool`.

Reads ``ENTRY DEVICE DTYPE`` lines and answers each with a line of JSON, on a stream of its own: compilers
print.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

import mansard
from benchmarks.opdb.entries import ANY_OF_EQUAL, DTYPES, UNDEFINED, database, first_sample
from mansard.errors import MansardError

RELATIVE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Of the largest magnitude expected, otherwise 1e-4: orders of sums and polynomials differ."""


@dataclass
class Outcome:
    """How an entry did on a device: ``passes``, ``refused``, ``wrong``, ``foreign`` or ``no sample``."""

    entry: str
    device: str
    outcome: str
    detail: str = ""


def examine(name: str, op: Any, device: str, dtype: str = "f32") -> Outcome:
    """Compile the first sample of an entry, run it, compare it with eager."""
    try:
        module, inputs = first_sample(op, DTYPES[dtype])
        expected = pytree.tree_leaves(module(*[t.clone() for t in inputs]))
    except Exception as error:
        return Outcome(name, device, "no sample", _line(error))
    try:
        model = mansard.compile(module, inputs, devices=device, cache=False, fallback="error")
        with model:
            actual = pytree.tree_leaves(model(*[t.clone() for t in inputs]))
    except MansardError as error:
        return Outcome(name, device, "refused", _line(error))
    except Exception as error:
        return Outcome(name, device, "foreign", _line(error))
    packet = name.partition(".")[0]
    values, ties = packet not in UNDEFINED, ANY_OF_EQUAL.get(packet)
    difference = _difference(actual, expected, values=values, ties=ties)
    return Outcome(name, device, "wrong" if difference else "passes", difference)


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


def _difference(actual: list[Any], expected: list[Any], *, values: bool, ties: int | None) -> str:
    """What differs; empty where nothing does. Result ``ties`` has indices of
    any of several equal elements."""
    if len(actual) != len(expected):
        return f"{len(actual)} results, eager has {len(expected)}"
    for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
        # A number of eager's is a float of Python, which is f64.
        a, b = (
            torch.tensor(v, dtype=torch.float64) if isinstance(v, float) else torch.as_tensor(v)
            for v in (a, b)
        )
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {number} is {a.dtype}{list(a.shape)}, eager's {b.dtype}{list(b.shape)}"
        if values and number != ties and (text := _values(a, b)):
            return f"result {number}: {text}"
    return ""


def _values(a: torch.Tensor, b: torch.Tensor) -> str:
    if not b.dtype.is_floating_point:
        wrong = a != b
    else:
        x, y = a.double(), b.double()
        finite = y[y.isfinite()].abs()
        allowed = RELATIVE.get(b.dtype, 1e-4) * float(finite.max()) if finite.numel() else 0.0
        wrong = ~((x == y) | (x.isnan() & y.isnan()) | ((x - y).abs() <= allowed))
    if not wrong.any():
        return ""
    place = tuple(wrong.nonzero()[0].tolist())
    count = f"{int(wrong.sum())} of {wrong.numel()} differ"
    return f"{count}, at {place}: {a[place].item()!r}, eager {b[place].item()!r}"


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    entries = {dtype: database(dtype) for dtype in DTYPES}
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        name, device, dtype = (word.strip() for word in line.split("\t"))
        outcome = examine(name, entries[dtype][name], device, dtype)
        print(json.dumps(asdict(outcome)), file=answers, flush=True)


if __name__ == "__main__":
    main()
