"""Compiles ONNX node tests and says how each did: the child of `benchmarks.harness.pool`.

Reads ``TEST DEVICE`` lines and answers each with a line of JSON, on a stream of its own: compilers print.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import onnx

import mansard
from benchmarks.onnx_nodes.cases import cases
from mansard.errors import MansardError
from mansard.frontends.onnx.node import ContentNeededError

UNDEFINED = ("Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
"""Random numbers: element types and shapes are compared."""


def examine(case: Any, device: str) -> dict[str, Any]:
    """``passed``, ``unsupported``, ``wrong`` or ``foreign``, and what was said or differs."""
    names = [value.name for value in case.model.graph.input]
    values = not any(node.op_type in UNDEFINED for node in case.model.graph.node)
    try:
        for data in case.data_sets:
            inputs, expected = (array_of(part) for part in data)
            with _compiled(case.model, inputs, device) as model:
                result = model(**{spec.name: inputs[names.index(spec.name)] for spec in model.inputs})
            actual = result if isinstance(result, (tuple, list)) else (result,)
            difference = compare(actual, expected, case.rtol, case.atol, values=values)
            if difference:
                return {"outcome": "wrong", "detail": difference}
    except MansardError as error:
        return {"outcome": "unsupported", "detail": _line(error)}
    except Exception as error:
        return {"outcome": "foreign", "detail": _line(error)}
    return {"outcome": "passed", "detail": ""}


def _compiled(model: Any, inputs: list[Any], device: str) -> Any:
    """The compiled model; inputs that decide its form are constants, unless all of them would be."""
    given = dict(zip((value.name for value in model.graph.input), inputs, strict=True))
    constants: dict[str, Any] = {}
    while True:
        try:
            return mansard.compile(
                model, devices=device, cache=False, fallback="error", constants=dict(constants)
            )
        except ContentNeededError as error:
            constants |= {name: given[name] for name in error.inputs if name not in constants}
            if not error.inputs or len(constants) == len(given):
                raise


def array_of(value: Any) -> Any:
    """A value of a data set as arrays: element types that NumPy lacks stand there as protocol buffers."""
    if isinstance(value, (list, tuple)):
        return [array_of(item) for item in value]
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def compare(actual: Any, expected: Any, rtol: float, atol: float, *, values: bool = True) -> str:
    """What differs, within the tolerances of the test; empty where nothing does."""
    if len(actual) != len(expected):
        return f"{len(actual)} results, {len(expected)} expected"
    for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
        if isinstance(b, (list, tuple)):
            if text := compare(a, b, rtol, atol, values=values):
                return f"sequence {number}: {text}"
            continue
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {number} is {a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
        if values and (text := _values(a, b, rtol, atol)):
            return f"result {number} at {text}"
    return ""


def _values(a: Any, b: Any, rtol: float, atol: float) -> str:
    """Floats may also differ by two units in the last place of the largest: the order of sums is free."""
    if b.dtype.kind in "iub":
        equal = a == b
    else:
        wide = np.complex128 if b.dtype.kind == "c" else np.float64
        x, y = a.astype(wide), b.astype(wide)
        finite = np.abs(y[np.isfinite(y)])
        last = 2 * float(ml_dtypes.finfo(b.dtype).eps) * float(finite.max()) if finite.size else 0.0
        equal = np.isclose(x, y, rtol, max(atol, last), equal_nan=True)
    if np.all(equal):
        return ""
    place = tuple(int(i) for i in np.argwhere(~np.atleast_1d(equal))[0])
    return f"{place}: {np.atleast_1d(a)[place]!r}, expected {np.atleast_1d(b)[place]!r}"


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
        print(json.dumps(examine(known[name], device)), file=answers, flush=True)


if __name__ == "__main__":
    main()
