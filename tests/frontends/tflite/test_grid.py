"""The grid of `make tflite-conformance`, by the interpreter of the Graph; a cut of it on devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from benchmarks.tflite_ops.cases import cases
from benchmarks.tflite_ops.worker import compiled, examine
from mansard.frontends.tflite.importer import import_tflite
from mansard.ir.interpreter.graph import interpret

Array = np.ndarray[Any, Any]
COMPILED = (
    "conv_2d-3x3-same-int8-channels-3", "depthwise_conv_2d-strided-same-int8-channels-3",
    "fully_connected-4-False-int8-channels", "fully_connected-4-False-dynamic", "add-row-int8-relu6",
    "average_pool_2d-3-2-0-int8-3", "resize_bilinear-(5,9)-False-True-int8", "mean-1_2-False-int8",
)  # fmt: skip


def _interpreted(model: bytes, inputs: Sequence[Array]) -> Sequence[Array]:
    graph = import_tflite(model)
    return interpret(graph, {v.name: x for v, x in zip(graph.inputs, inputs, strict=True)})


def test_every_case_of_the_grid_answers_as_litert() -> None:
    """Every third case: the others differ in shapes and options."""
    failed = {}
    for name in list(cases())[::3]:
        outcome = examine(name, _interpreted)
        if outcome["outcome"] != "passed":
            failed[name] = outcome
    assert not failed


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_cases_answer_as_litert(name: str) -> None:
    assert examine(name, compiled("cpu")) == {"outcome": "passed", "detail": ""}
