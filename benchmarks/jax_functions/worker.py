"""Compiles functions of JAX and says how each did: the child of `benchmarks.harness.pool`.

Reads ``CASE DEVICE`` lines and answers each with a line of JSON, on a stream of its own: compilers print.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

import jax
import numpy as np

import mansard
from benchmarks.jax_functions.case import Case
from benchmarks.jax_functions.cases import cases
from benchmarks.onnx_nodes.worker import compare
from mansard.errors import MansardError

TOLERANCES = {"float16": 2e-3, "bfloat16": 1.6e-2}
"""Relative, of results of these types; of others 1e-4."""


def examine(case: Case, device: str) -> dict[str, Any]:
    """``passed``, ``unsupported``, ``wrong`` or ``foreign``, and what was said or differs."""
    expected = [
        np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(jax.jit(case.function)(*case.arguments))
    ]
    try:
        with mansard.compile(
            case.function, case.arguments, frontend="jax", devices=device, cache=False, fallback="error"
        ) as model:
            result = model(*case.arguments)
    except MansardError as error:
        return {"outcome": "unsupported", "detail": _line(error)}
    except Exception as error:
        return {"outcome": "foreign", "detail": _line(error)}
    actual = jax.tree_util.tree_leaves(result)
    narrow = [str(e.dtype) for e in expected if str(e.dtype) in TOLERANCES]
    inputs = [str(a.dtype) for a in case.arguments if str(a.dtype) in TOLERANCES]
    relative = max((TOLERANCES[d] for d in (*narrow, *inputs)), default=1e-4)
    with np.errstate(all="ignore"):
        difference = compare(actual, expected, relative, 1e-6)
    return {"outcome": "wrong", "detail": difference} if difference else {"outcome": "passed", "detail": ""}


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    jax.config.update("jax_platforms", "cpu")
    known = cases()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        name, device = (part.strip() for part in line.split("\t"))
        print(json.dumps(examine(known[name], device)), file=answers, flush=True)


if __name__ == "__main__":
    main()
