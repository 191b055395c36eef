"""Ops of ``com.microsoft`` answer as the standard's ops that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

from mansard.frontends.onnx.importer import import_onnx
from mansard.ir.interpreter.graph import interpret

RNG = np.random.default_rng(3)
HEAD = '<ir_version: 8, opset_import: ["" : 20, "com.microsoft" : 1]>\n'
SKIPPED = "(float[2, 3, 4] a, float[2, 3, 4] b, float[4] c, float[4] d) => (float[2, 3, 4] y)"
ATTENDED = "(float[2, 5, 8] a, float[8, 24] b, float[24] c) => (float[2, 5, 8] y)"
PAIRS = {
    "fused product": (
        "(float[4, 3] a, float[4, 5] b) => (float[3, 5] y)",
        "{ y = com.microsoft.FusedMatMul<transA = 1, alpha = 0.5>(a, b) }",
        "{ h = Constant<value_float = 0.5>() t = Transpose(a) p = MatMul(t, b) y = Mul(p, h) }",
    ),
    "biased gelu": (
        "(float[3, 4] a, float[4] b) => (float[3, 4] y)",
        "{ y = com.microsoft.BiasGelu(a, b) }",
        "{ s = Add(a, b) y = Gelu(s) }",
    ),
    "fast gelu": (
        "(float[3, 4] a) => (float[3, 4] y)",
        "{ y = com.microsoft.FastGelu(a) }",
        '{ y = Gelu<approximate = "tanh">(a) }',
    ),
    "residual": (
        SKIPPED,
        "{ y = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(a, b, c, d) }",
        "{ s = Add(a, b) y = LayerNormalization<epsilon = 0.001>(s, c, d) }",
    ),
    "attention": (
        ATTENDED,
        "{ y = com.microsoft.Attention<num_heads = 2>(a, b, c) }",
        """{
            p = MatMul(a, b) s = Add(p, c) q, k, v = Split<axis = 2, num_outputs = 3>(s)
            f = Constant<value_ints = [2, 5, 2, 4]>() n = Constant<value_float = 0.5>()
            q4 = Reshape(q, f) k4 = Reshape(k, f) v4 = Reshape(v, f)
            qh = Transpose<perm = [0, 2, 1, 3]>(q4) kh = Transpose<perm = [0, 2, 3, 1]>(k4)
            vh = Transpose<perm = [0, 2, 1, 3]>(v4)
            m = MatMul(qh, kh) r = Mul(m, n) w = Softmax(r) o = MatMul(w, vh)
            t = Transpose<perm = [0, 2, 1, 3]>(o) l = Constant<value_ints = [2, 5, 8]>() y = Reshape(t, l)
        }""",
    ),
}


def results(head: str, body: str, inputs: list[Any]) -> list[Any]:
    """The results of a graph, by the interpreter."""
    return list(interpret(import_onnx(parser.parse_model(f"{HEAD}g {head} {body}")), inputs))


@pytest.mark.parametrize("name", PAIRS)
def test_an_op_and_what_it_stands_for(name: str) -> None:
    head, fused, plain = PAIRS[name]
    graph = parser.parse_model(f"{HEAD}g {head} {plain}").graph
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.input]
    inputs = [RNG.standard_normal(shape).astype(np.float32) for shape in shapes]
    for a, b in zip(results(head, fused, inputs), results(head, plain, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_sum_of_quantised_tensors_is_rounded_to_its_scale() -> None:
    head = "(uint8[4] a, uint8[4] b) => (uint8[4] y)"
    body = """{
        s = Constant<value_float = 0.5>() z = Constant<value = uint8 {10}>() t = Constant<value_float = 1.0>()
        y = com.microsoft.QLinearAdd(a, s, z, b, s, z, t, z)
    }"""
    a, b = np.array([10, 20, 255, 0], np.uint8), np.array([11, 20, 255, 0], np.uint8)
    (y,) = results(head, body, [a, b])
    np.testing.assert_array_equal(y, [10, 20, 255, 0])
