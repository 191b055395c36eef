"""Short ways to write MLIR functions and to run what they import to."""

from __future__ import annotations

import numpy as np

from mansard.ir.graph import Graph
from mansard.ir.interpreter.graph import interpret

rng = np.random.default_rng(0)


def function(arguments: str, result: str, body: str, maps: str = "") -> str:
    return f"{maps}\nfunc.func @main({arguments}) -> {result} {{\n{body}\n}}"


def run(graph: Graph, *inputs: np.ndarray) -> list[np.ndarray]:
    return interpret(graph, list(inputs))


def floats(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def kinds(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops]


ADD = function(
    "%a: tensor<?x4xf32>, %b: tensor<?x4xf32>",
    "tensor<?x4xf32>",
    """
    %c0 = arith.constant 0 : index
    %d = tensor.dim %a, %c0 : tensor<?x4xf32>
    %e = tensor.empty(%d) : tensor<?x4xf32>
    %r = linalg.add ins(%a, %b : tensor<?x4xf32>, tensor<?x4xf32>) outs(%e : tensor<?x4xf32>)
        -> tensor<?x4xf32>
    return %r : tensor<?x4xf32>""",
)
