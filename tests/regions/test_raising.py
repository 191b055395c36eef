"""Generics as named ops: what each form becomes, and that NumPy and ONNX Runtime answer as the graph does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.regions.raised import canonical, check_raised, graph_of, inputs_of

from mansard.dims import Dim, symbol
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap
from mansard.ir.scalar import Arg
from mansard.ir.types import Linear
from mansard.regions.named import Concat, Conv, Gather, MatMul, Pad, Pool, Reduce, Slice, Softmax, Transpose
from mansard.regions.raising import raise_graph
from mansard.testing.graphs import F32


def raised(text: str) -> list[Any]:
    """The named ops of a model, which are compared with it."""
    return list(check_raised(graph_of(text)).ops)


def only(ops: list[Any], kind: type) -> Any:
    (op,) = [op for op in ops if type(op) is kind]
    return op


@pytest.mark.parametrize(
    ("attributes", "weights", "strides", "dilations", "pads", "groups"),
    [
        ("strides=[2,2], pads=[1,1,1,1]", "6,8,3,3", (2, 2), (1, 1), ((1, 1), (1, 1)), 1),
        ("strides=[1,1]", "6,8,1,1", (1, 1), (1, 1), ((0, 0), (0, 0)), 1),
        ("group=8, dilations=[2,2], pads=[2,2,2,2]", "8,1,3,3", (1, 1), (2, 2), ((2, 2), (2, 2)), 8),
        ("group=4, pads=[1,0,1,0]", "12,2,3,3", (1, 1), (1, 1), ((1, 1), (0, 0)), 4),
        ("group=8, pads=[0,0,0,2]", "16,1,1,3", (1, 1), (1, 1), ((0, 0), (0, 2)), 8),
    ],
)
def test_convolutions(
    attributes: str, weights: str, strides: Any, dilations: Any, pads: Any, groups: int
) -> None:
    channels = weights.split(",", maxsplit=1)[0]
    graph = graph_of(
        f"(float[2,8,9,11] x, float[{weights}] w, float[{channels}] w1) => (float[a,b,c,d] y) "
        f"{{ y = Conv<{attributes}>(x, w, w1) }}"
    )
    conv = only(list(check_raised(graph).ops), Conv)
    assert (conv.strides, conv.dilations, conv.pads, conv.groups) == (strides, dilations, pads, groups)


def test_a_convolution_of_one_dim() -> None:
    ops = raised("(float[2,6,10] x, float[4,6,3] w) => (float[a,b,c] y) { y = Conv<pads=[1,1]>(x, w) }")
    assert only(ops, Conv).pads == ((1, 1),)


def test_a_convolution_of_three_dims_has_a_reason() -> None:
    graph = graph_of("(float[1,2,5,5,5] x, float[3,2,3,3,3] w) => (float[a,b,c,d,e] y) { y = Conv(x, w) }")
    assert "it is a convolution of 3 spatial dims, more than 2" in raise_graph(graph).reasons.values()


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("(float[3,5,16] x, float[16,4] w) => (float[3,5,4] y) { y = MatMul(x, w) }", (15, 4)),
        ("(float[3,16] x, float[4,16] w) => (float[3,4] y) { y = Gemm<transB=1>(x, w) }", (3, 4)),
        ("(float[2,3,5,6] a, float[2,3,6,7] b) => (float[2,3,5,7] y) { y = MatMul(a, b) }", (6, 5, 7)),
        ("(float[2,5,4,6] a, float[2,7,4,6] b) => (float[2,5,4,7] y) "
         "{ y = Einsum<equation=\"bqhd,bkhd->bqhk\">(a, b) }", (8, 5, 7)),
    ],
)  # fmt: skip
def test_products(text: str, shape: tuple[int, ...]) -> None:
    product = only(raised(text), MatMul)
    assert sorted(product.output.type.shape[:-1]) == sorted(shape[:-1])
    assert product.output.type.shape[-1] == shape[-1]


def test_attention() -> None:
    b = GraphBuilder()
    q, k, v = (b.input(name, (1, 4, 6, 8), F32) for name in "qkv")
    ops = check_raised(canonical(b.build([b.attention(q, k, v, None, 0.5)]))).ops
    assert sum(type(op) is MatMul for op in ops) == 2
    assert any(type(op) is Softmax for op in ops)


def test_a_softmax_of_rows_that_may_be_masked_whole_stays_as_it_is() -> None:
    b = GraphBuilder()
    q, k, v = (b.input(name, (1, 4, 6, 8), F32) for name in "qkv")
    mask = b.input("mask", (1, 1, 6, 6), F32)
    graph = canonical(b.build([b.attention(q, k, v, mask, 0.5)]))
    inputs = [*inputs_of(graph)[:3], np.where(np.arange(6)[:, None] == 2, -np.inf, np.zeros((1, 1, 6, 6)))]
    ops = check_raised(graph, [array.astype(np.float32) for array in inputs]).ops
    assert not any(type(op) is Softmax for op in ops)


@pytest.mark.parametrize(
    ("pool", "kind"),
    [
        ("MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>", "max"),
        ("MaxPool<kernel_shape=[2,3], dilations=[2,1]>", "max"),
        ("AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>", "average"),
        ("AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>", "average"),
    ],
)
def test_pools(pool: str, kind: str) -> None:
    ops = raised(f"(float[2,8,9,11] x) => (float[a,b,c,d] y) {{ y = {pool}(x) }}")
    assert only(ops, Pool).kind == kind


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("y = ReduceMax<axes=[2,3], keepdims=0>(x)", "max"),
        ("y = ReduceProd<axes=[1]>(x)", "mul"),
        ("i = ArgMax<axis=1, keepdims=0>(x) y = Cast<to=1>(i)", "argmax"),
    ],
)
def test_reductions(body: str, kind: str) -> None:
    assert only(raised(f"(float[2,8,9,11] x) => (float[a] y) {{ {body} }}"), Reduce).kind == kind


def test_a_mean_of_a_convolution_is_one_of_its_channels_last_image() -> None:
    body = "c = Conv(x, w) y = GlobalAveragePool(c)"
    text = f"(float[1,3,9,9] x, float[4,3,3,3] w) => (float[a,b,1,1] y) {{ {body} }}"
    ops = raised(text)
    reduction = next(op for op in ops if isinstance(op, (Reduce, Pool)))
    assert reduction.inputs[0].type.shape == (1, 7, 7, 4)
    assert not any(isinstance(op, Transpose) for op in ops if op.inputs[0] is only(ops, Conv).output)


def test_elements() -> None:
    raised(
        "(float[2,8,9] x, float[8,1] w) => (float[2,8,9] y, uint8[2,8,9] u, float[2,8,9] z) {"
        " g = Greater(x, w) e = Erf(x) t = Tanh(e) y = Where(g, t, x) h = HardSwish(x) c = Ceil(h)"
        " u = Cast<to=2>(c) m = ReduceMean<axes=[1]>(x) s = Softmax<axis=1>(x) l = Log(s) z = Add(m, l) }"
    )


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("y = Softmax<axis=1>(x)", "Softmax"),
        ("y = Sigmoid(x)", "sigmoid"),
        ("y = HardSwish(x)", "hardswish"),
        ("s = Sigmoid(x) y = Mul(x, s)", "silu"),
        ("h = Constant<value_float=0.5>() r = Constant<value_float=0.70710678>() "
         "o = Constant<value_float=1.0>() a = Mul(x, r) "
         "b = Erf(a) c = Add(b, o) d = Mul(x, h) y = Mul(d, c)", "gelu"),
    ],
)  # fmt: skip
def test_functions_that_a_graph_spells_out(body: str, name: str) -> None:
    ops = raised(f"(float[2,8,9] x) => (float[2,8,9] y) {{ {body} }}")
    assert [op.name for op in ops] == [name]


def test_layer_norms() -> None:
    raised(
        "(float[2,5,16] x, float[16] w, float[16] w1) => (float[2,5,16] y) "
        "{ y = LayerNormalization<axis=-1>(x, w, w1) }"
    )


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("t = Transpose<perm=[2,0,3,1]>(x) s = Constant<value_ints=[9,2,88]>() z = Reshape(t, s)", None),
        ("p = Constant<value_ints=[0,0,1,0,0,0,2,3]>() v = Constant<value_float=2.5>() "
         "z = Pad(x, p, v)", Pad),
        ("a = Neg(x) z = Concat<axis=1>(x, a, x)", Concat),
        ("b = Constant<value_ints=[1,3]>() e = Constant<value_ints=[7,11]>() "
         "i = Constant<value_ints=[1,3]>() s = Constant<value_ints=[2,1]>() z = Slice(x, b, e, i, s)", Slice),
        ("b = Constant<value_ints=[-1]>() e = Constant<value_ints=[-99]>() i = Constant<value_ints=[3]>() "
         "z = Slice(x, b, e, i, b)", Gather),
        ("i = Constant<value_ints=[2,0,7]>() z = Gather<axis=1>(x, i)", Gather),
        ("f = Constant<value_floats=[1.0,1.0,2.0,2.0]>() "
         "z = Resize<mode=\"nearest\", coordinate_transformation_mode=\"asymmetric\", nearest_mode=\"floor\">"
         "(x, , f)", None),
        ("f = Constant<value_floats=[1.0,1.0,2.0,0.5]>() "
         "z = Resize<mode=\"linear\">(x, , f)", None),
    ],
)  # fmt: skip
def test_what_moves_elements(body: str, kind: type | None) -> None:
    ops = raised(f"(float[2,8,9,11] x) => (float[a] y) {{ {body} y = Tanh(z) }}")
    assert kind is None or any(type(op) is kind for op in ops)


def test_rows_of_a_table() -> None:
    graph = graph_of("(int64[2,3] i, float[7,4] w) => (float[2,3,4] y) { y = Gather(w, i) }")
    raised = raise_graph(graph)
    assert set(raised.reasons.values()) <= {"the host checks it"}
    assert any(type(op) is Gather for op in raised.graph.ops)


def test_an_op_without_fixed_sizes_has_a_reason() -> None:
    b = GraphBuilder()
    x = b.input("x", (symbol(Dim("n", 1, 8)), 4), DType.F32)
    graph = b.build([b.generic([x], [IndexMap.identity(2)], x.type.shape, Arg(0, DType.F32))])
    (reason,) = raise_graph(graph).reasons.values()
    assert reason == "it has a dim n, whose size is not fixed"


def test_what_other_ops_compute_is_an_input_of_the_named_graph() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 4), DType.F32)
    diagonal = b.generic([x], [IndexMap((Linear.dim(0), Linear.dim(0)))], (4,), Arg(0, DType.F32))
    y = b.generic([diagonal], [IndexMap.of_dims((1,))], (4, 4), Arg(0, DType.F32))
    raised = raise_graph(b.build([y]))
    assert list(raised.reasons.values()) == ["it reads along a diagonal"]
    assert raised.graph.inputs == (x, diagonal) and raised.graph.outputs == (y,)
    assert [op.name for op in raised.graph.ops] == ["Reshape", "Broadcast"]


def test_means_over_many_loops_have_few_dims() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 3, 5, 5), DType.F32)
    read, scalar = IndexMap.of_dims((None, 3, 4, 5)), Arg(0, DType.F32)
    graph = b.build([b.generic([x], [read], (1, 1, 1, 3, 5, 5), scalar, reduced=2, combiner="add")])
    check_raised(graph)
    ranks = {value.type.rank for op in raise_graph(graph).graph.ops for value in (*op.inputs, op.output)}
    assert max(ranks) == 4
