"""Models raised to named ops and written as ONNX, compared with the interpreter of the Graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import numpy_helper, parser

from mansard.frontends.onnx.importer import import_onnx
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph
from mansard.ir.interpreter.graph import interpret, run_op
from mansard.ir.ops import Generic, Op
from mansard.ir.types import Value
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import PipelineSettings, graph_steps, pipeline
from mansard.regions.named import NamedGraph
from mansard.regions.named.evaluate import evaluate, evaluate_op
from mansard.regions.onnx import onnx_bytes
from mansard.regions.raising import Raised, raise_graph

Array = np.ndarray[Any, Any]


def canonical(graph: Graph) -> Graph:
    """The graph that backends are asked to partition."""
    return run_passes(graph, graph_steps(pipeline(PipelineSettings(regions=True))))


def graph_of(text: str) -> Graph:
    """The canonical graph of a model in ONNX's text form; inputs called ``w…`` are weights instead."""
    rng = np.random.default_rng(3)
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\ng {text}')
    weights = [value for value in model.graph.input if value.name.startswith("w")]
    for value in weights:
        model.graph.input.remove(value)
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        data = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(data, value.name))
    return canonical(import_onnx(model))


def inputs_of(graph: Graph) -> list[Array]:
    """Arrays for a graph's inputs: normally distributed floats, integers of the whole range of 8 bits, else
    between 0 and 4."""
    rng, arrays = np.random.default_rng(4), []
    for value in graph.inputs:
        dtype, shape = value.type.dtype.numpy, value.type.concrete({})
        if dtype.kind == "f":
            arrays.append(rng.standard_normal(shape).astype(dtype))
        elif dtype.itemsize == 1 and dtype.kind in "iu":
            limits = np.iinfo(dtype)
            arrays.append(rng.integers(limits.min, limits.max + 1, shape).astype(dtype))
        else:
            arrays.append(rng.integers(0, 4, shape).astype(dtype))
    return arrays


def multiply_adds(op: Op) -> int:
    """Of a sum of products."""
    return math.prod(op.extents) if is_contraction(op) and isinstance(op, Generic) else 0


def share_raised(graph: Graph, raised: Raised) -> float:
    """The part of a graph's multiply-adds that is in ops with a named form."""
    total = sum(multiply_adds(op) for op in graph.ops)
    return sum(multiply_adds(op) for op in graph.ops if op not in raised.reasons) / total


def run_onnx(data: bytes, graph: NamedGraph, inputs: Sequence[Array]) -> list[Array]:
    """What ONNX Runtime answers, without optimisations that change results."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    given = {value.name: array for value, array in zip(graph.inputs, inputs, strict=True)}
    results: list[Array] = session.run(None, given)
    return results


def teacher_forced(graph: Graph, named: NamedGraph) -> None:
    """Compare every named op that computes a value of the graph, given the graph's own operands:
    integers within one step, floats within 1e-5 of the largest."""
    values: dict[Value, Array] = {v: np.asarray(c.load()) for v, c in graph.constants.items()}
    values |= dict(zip(graph.inputs, inputs_of(graph), strict=True))
    for op in graph.ops:
        values.update(zip(op.outputs, run_op(op, [values[v] for v in op.inputs]), strict=True))
    known = values | {v: np.asarray(c.load()) for v, c in named.constants.items()}
    for op in named.ops:
        result = evaluate_op(op, [known[v] for v in op.inputs], named.encodings)
        known[op.output] = values.get(op.output, result)
        wanted = known[op.output].astype(np.float64)
        bound = 1e-5 * max(float(np.abs(wanted).max()), 1.0) if result.dtype.kind == "f" else 1
        assert np.abs(result.astype(np.float64) - wanted).max() <= bound, op.name


def check_raised(graph: Graph, inputs: Sequence[Array] | None = None, steps: int = 0) -> NamedGraph:
    """Raise every op of a canonical graph and compare what it then answers, in NumPy and in ONNX Runtime,
    with the graph: floats within 1e-5 of the largest, integers within some steps. Returns the named graph."""
    inputs = inputs_of(graph) if inputs is None else inputs
    raised = raise_graph(graph)
    assert not raised.reasons
    expected = interpret(graph, inputs)
    data = onnx_bytes(raised.graph)
    assert data == onnx_bytes(raise_graph(graph).graph)
    for results in (evaluate(raised.graph, inputs), run_onnx(data, raised.graph, inputs)):
        for result, wanted in zip(results, expected, strict=True):
            assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
            difference = np.abs(result.astype(np.float64) - wanted.astype(np.float64)).max(initial=0)
            largest = np.abs(wanted[np.isfinite(wanted)].astype(np.float64)).max(initial=0)
            bound = steps if wanted.dtype.kind in "iu" else 1e-5 * max(float(largest), 1.0)
            assert difference <= bound
    return raised.graph
