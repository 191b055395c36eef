"""Integer arithmetic of canonical graphs as values with encodings: whole models in QDQ form and back."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from quantisation.networks import Residuals
from support.regions.raised import Array, canonical, check_raised, teacher_forced

import mansard
from mansard.dtypes import DType
from mansard.frontends.onnx.importer import import_onnx
from mansard.ir import Constant, GraphBuilder, IndexMap
from mansard.ir.graph import Graph
from mansard.ir.scalar import Apply, Arg, Cast, Const
from mansard.ir.types import Value
from mansard.regions.named import (
    Concat,
    Conv,
    Elementwise,
    MatMul,
    NamedGraph,
    Pool,
    Recode,
    Resize,
    Softmax,
)
from mansard.regions.onnx import onnx_model
from mansard.regions.raising import raise_graph

RNG = np.random.default_rng(6)


class Qdq:
    """An ONNX graph in QDQ form, node by node; values are named with their dequantised numbers."""

    def __init__(self, *shape: int, scale: float = 0.03, zero: int = 120) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.data: dict[str, Array] = {}
        self.x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, shape)
        self.start = self.dequantised("x", scale, np.uint8(zero))

    def constant(self, array: Array) -> str:
        self.data[f"c{len(self.data)}"] = np.asarray(array)
        return f"c{len(self.data) - 1}"

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        self.nodes.append(onnx.helper.make_node(kind, inputs, [f"v{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]

    def dequantised(self, name: str, scale: object, zero: object, axis: int = 0) -> str:
        scales, zeros = self.constant(np.float32(scale)), self.constant(zero)
        return self.node("DequantizeLinear", name, scales, zeros, axis=axis)

    def rounded(self, name: str, scale: float, zero: int, dtype: type = np.uint8) -> str:
        q = self.node("QuantizeLinear", name, self.constant(np.float32(scale)), self.constant(dtype(zero)))
        return self.dequantised(q, scale, dtype(zero))

    def weights(self, *shape: int, axis: int = 0) -> str:
        data = RNG.integers(-127, 128, shape).astype(np.int8)
        count = shape[axis]
        scales = RNG.uniform(0.002, 0.01, count).astype(np.float32)
        return self.dequantised(self.constant(data), scales, np.zeros(count, np.int8), axis)

    def graph(self, y: str) -> Graph:
        q = self.nodes[-1].input[0] if self.nodes[-1].op_type == "DequantizeLinear" else y
        result = onnx.ValueInfoProto(name=q)
        inits = [numpy_helper.from_array(array, name) for name, array in self.data.items()]
        model = onnx.helper.make_graph(self.nodes, "g", [self.x], [result], inits)
        opsets = [onnx.helper.make_opsetid("", 17)]
        return canonical(import_onnx(onnx.helper.make_model(model, ir_version=8, opset_imports=opsets)))


def only(named: NamedGraph, kind: type) -> object:
    (op,) = [op for op in named.ops if type(op) is kind]
    return op


def kinds(named: NamedGraph) -> set[str]:
    return {op.name for op in named.ops}


def checked(graph: Graph, kinds_of: set[str], steps: int = 1) -> NamedGraph:
    """The named graph, which has ops of these kinds alone and answers within a step."""
    named = check_raised(graph, steps=steps)
    assert kinds(named) - {"Transpose", "Reshape"} == kinds_of
    teacher_forced(graph, raise_graph(graph).graph)
    return named


def test_a_convolution_with_all_that_belongs_to_it_is_one_op() -> None:
    q = Qdq(1, 8, 7, 7)
    y = q.node(
        "Conv",
        q.start,
        q.weights(6, 8, 3, 3),
        q.constant(RNG.normal(size=6).astype(np.float32)),
        pads=[1] * 4,
    )
    named = checked(
        q.graph(q.rounded(q.node("Clip", y, q.constant(np.float32(0)), q.constant(np.float32(4))), 0.02, 3)),
        {"Conv"},
    )
    conv = only(named, Conv)
    assert isinstance(conv, Conv) and conv.pads == ((1, 1), (1, 1))
    x, weights, bias = conv.inputs
    assert named.encodings[x].zero == 120
    assert len(named.encodings[weights].scales) == 6 and named.encodings[weights].axis == 0
    assert bias.type.dtype is DType.I32
    assert named.encodings[conv.output].zero == 3
    # Of a number that only its integers tell, the scale may be any.
    assert conv.clamp == pytest.approx((0, 4 / 0.02 * named.encodings[conv.output].scale))


def test_what_the_type_clamps_needs_no_clamp() -> None:
    q = Qdq(1, 8, 7, 7)
    y = q.node("Relu", q.node("Conv", q.start, q.weights(8, 1, 3, 3), group=8, strides=[2, 2]))
    conv = only(checked(q.graph(q.rounded(y, 0.02, 0)), {"Conv"}), Conv)
    assert isinstance(conv, Conv) and conv.clamp is None and conv.groups == 8


def test_a_residual_block() -> None:
    q = Qdq(1, 8, 6, 6)
    y = q.rounded(q.node("Relu", q.node("Conv", q.start, q.weights(8, 8, 1, 1))), 0.02, 0)
    y = q.rounded(q.node("Conv", y, q.weights(8, 8, 1, 1)), 0.05, 99)
    y = q.rounded(q.node("Relu", q.node("Add", y, q.start)), 0.04, 12)
    named = checked(q.graph(y), {"Conv", "add"})
    assert all(value in named.encodings for op in named.ops for value in (*op.inputs, op.output))


def test_a_residual_block_behind_two_layers() -> None:
    """The bytes of its last layer, which the sum alone reads, are a value of the graph."""
    q = Qdq(1, 8, 6, 6)
    first = q.rounded(q.node("Relu", q.node("Conv", q.start, q.weights(8, 8, 1, 1))), 0.02, 0)
    y = q.rounded(q.node("Conv", first, q.weights(8, 8, 3, 3), pads=[1] * 4), 0.05, 99)
    y = q.rounded(q.node("Relu", q.node("Add", first, y)), 0.04, 12)
    y = q.rounded(q.node("Conv", y, q.weights(8, 8, 1, 1)), 0.05, 99)
    named = checked(q.graph(y), {"Conv", "add"})
    assert all(value in named.encodings for op in named.ops for value in (*op.inputs, op.output))


def test_a_classifier() -> None:
    q = Qdq(1, 8, 6, 6)
    y = q.rounded(q.node("GlobalAveragePool", q.start), 0.01, 111)
    y = q.node("Flatten", y)
    y = q.node("Gemm", y, q.weights(8, 5, axis=1), q.constant(RNG.normal(size=5).astype(np.float32)))
    named = checked(q.graph(q.rounded(y, 0.02, -5, np.int8)), {"Reduce", "MatMul"})
    product = only(named, MatMul)
    assert isinstance(product, MatMul) and named.encodings[product.inputs[1]].axis == 1
    assert named.encodings[product.output].zero == -5


def test_pools_and_concatenations_keep_encodings() -> None:
    q = Qdq(1, 8, 6, 6)
    a = q.rounded(q.node("MaxPool", q.start, kernel_shape=[2, 2], strides=[2, 2]), 0.03, 120)
    b = q.rounded(q.node("Conv", q.start, q.weights(4, 8, 2, 2), strides=[2, 2]), 0.03, 120)
    named = check_raised(q.graph(q.rounded(q.node("Concat", a, b, axis=1), 0.03, 120)), steps=1)
    for kind in (Pool, Concat):
        op = next(op for op in named.ops if isinstance(op, kind))
        assert {named.encodings[v] for v in (*op.inputs, op.output)} == {named.encodings[op.output]}


def test_products_of_two_activations_with_zero_points() -> None:
    q = Qdq(2, 4, 6, 8)
    other = q.rounded(q.node("Mul", q.start, q.constant(np.float32(0.5))), 0.02, 100)
    y = q.node("MatMul", q.start, q.node("Transpose", other, perm=[0, 1, 3, 2]))
    named = checked(q.graph(q.rounded(y, 0.3, 30)), {"mul", "MatMul"})
    product = only(named, MatMul)
    assert isinstance(product, MatMul) and {named.encodings[v].zero for v in product.inputs} == {100, 120}


def test_a_value_that_is_read_as_numbers_and_by_a_product() -> None:
    """As models with f32 sums between quantised layers have it."""
    q = Qdq(1, 8, 6, 6)
    real = q.node("Conv", q.start, q.weights(8, 8, 1, 1))
    both = q.node("Add", q.node("Conv", q.rounded(real, 0.05, 128), q.weights(8, 8, 1, 1)), real)
    named = checked(q.graph(q.rounded(both, 0.1, 128)), {"Conv", "Recode", "add"})
    assert isinstance(only(named, Recode), Recode)


def test_integers_that_stand_for_nothing_stay_integers() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 8), DType.U8)
    weights = Constant.of(RNG.integers(-8, 8, (8, 6)).astype(np.int8), "w")
    w = b.constant("w", weights, (8, 6), DType.I8)
    factors = [Cast(Arg(0, DType.U8), DType.I32), Cast(Arg(1, DType.I8), DType.I32)]
    body = Apply("mul", tuple(factors), DType.I32)
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1))]
    y = b.generic([x, w], maps, (4, 6, 8), body, reduced=1, combiner="add")
    shifted = Apply("shr", (Arg(0, DType.I32), Const(2, DType.I32)), DType.I32)
    graph = canonical(b.build([y, b.generic([y], [IndexMap.identity(2)], (4, 6), shifted)]))
    named = raise_graph(graph).graph
    assert not named.encodings and {"MatMul", "shr"} <= kinds(named)


def test_scales_that_are_folded_into_weights_follow_from_other_values() -> None:
    """Int8 models multiply scales of inputs, weights and results into one factor."""
    b = GraphBuilder()
    x = b.input("x", (1, 8), DType.U8)
    y = _folded_layer(b, _folded_layer(b, x, 8, 100), 4, 7)
    named = check_raised(canonical(b.build([y])), steps=1)
    assert kinds(named) - {"Reshape"} == {"MatMul"}
    assert [named.encodings[op.output].zero for op in named.ops if isinstance(op, MatMul)] == [100, 7]


def _folded_layer(b: GraphBuilder, x: Value, columns: int, zero: int) -> Value:
    weights = Constant.of(RNG.integers(-127, 128, (8, columns)).astype(np.int8), f"w{columns}")
    factors = Constant.of(RNG.uniform(0.002, 0.01, columns).astype(np.float32), f"f{columns}")
    w = b.constant("w", weights, (8, columns), DType.I8)
    f = b.constant("f", factors, (columns,), DType.F32)
    product = Apply("mul", (Cast(Arg(0, DType.U8), DType.I32), Cast(Arg(1, DType.I8), DType.I32)), DType.I32)
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1))]
    sums = b.generic([x, w], maps, (1, columns, 8), product, reduced=1, combiner="add")
    scaled = Apply("mul", (Cast(Arg(0, DType.I32), DType.F32), Arg(1, DType.F32)), DType.F32)
    body = Apply("add", (Apply("round", (scaled,), DType.F32), Const(float(zero), DType.F32)), DType.F32)
    for name, bound in (("max", 0.0), ("min", 255.0)):
        body = Apply(name, (body, Const(bound, DType.F32)), DType.F32)
    maps = [IndexMap.identity(2), IndexMap.of_dims((1,))]
    return b.generic([sums, f], maps, (1, columns), Cast(body, DType.U8))


def test_an_addition_of_bytes_with_one_shift_is_one_of_their_numbers() -> None:
    b = GraphBuilder()
    a, c = (b.input(name, (4, 6), DType.U8) for name in "ac")
    terms = [
        Apply("mul", (Cast(Arg(i, DType.U8), DType.F32), Const(factor, DType.F32)), DType.F32)
        for i, factor in enumerate((0.75, 0.5))
    ]
    total = Apply("add", (Apply("add", tuple(terms), DType.F32), Const(-160.0, DType.F32)), DType.F32)
    body = Apply("add", (Apply("round", (total,), DType.F32), Const(12.0, DType.F32)), DType.F32)
    for name, bound in (("max", 0.0), ("min", 255.0)):
        body = Apply(name, (body, Const(bound, DType.F32)), DType.F32)
    y = b.generic([a, c], [IndexMap.identity(2)] * 2, (4, 6), Cast(body, DType.U8))
    named = check_raised(canonical(b.build([y])), steps=1)
    encodings = [named.encodings[value] for value in (a, c, y)]
    assert encodings[0].scale / encodings[2].scale == pytest.approx(0.75)
    assert encodings[1].scale / encodings[2].scale == pytest.approx(0.5)
    assert encodings[2].zero == 12


def test_functions_of_encoded_values_read_and_write_integers() -> None:
    q = Qdq(1, 8, 6, 6)
    named = checked(q.graph(q.rounded(q.node("Tanh", q.start), 1 / 128, 128)), {"tanh"})
    op = only(named, Elementwise)
    assert isinstance(op, Elementwise) and {*op.inputs, op.output} <= set(named.encodings)


def test_encoded_values_stand_between_nodes_that_quantise_and_dequantise_them() -> None:
    q = Qdq(1, 8, 6, 6)
    graph = q.graph(q.rounded(q.node("Conv", q.start, q.weights(4, 8, 1, 1)), 0.05, 3))
    nodes = [node.op_type for node in onnx_model(raise_graph(graph).graph).graph.node]
    assert nodes == ["DequantizeLinear", "DequantizeLinear", "Conv", "QuantizeLinear"]


def test_results_of_the_other_sign_are_written_behind_those_of_the_operands() -> None:
    """As toolchains want it that look for products with operands and results of one type."""
    q = Qdq(1, 8, 6, 6)
    y = q.node("Conv", q.start, q.weights(4, 8, 1, 1))
    graph = q.graph(q.rounded(y, 0.05, -7, np.int8))
    named = checked(graph, {"Conv"})
    model = onnx_model(named).graph
    kinds = [node.op_type for node in model.node]
    behind = ["QuantizeLinear", "DequantizeLinear", "QuantizeLinear"]
    assert kinds == ["DequantizeLinear", "DequantizeLinear", "Conv", *behind]
    zeros = {array.name: numpy_helper.to_array(array) for array in model.initializer}
    written = [zeros[node.input[2]] for node in model.node if node.op_type == "QuantizeLinear"]
    assert [(zero.dtype.name, int(zero)) for zero in written] == [("uint8", 121), ("int8", -7)]


@pytest.mark.parametrize("on_integers", [False, True])
@pytest.mark.parametrize("guard", [None, -3.4e38])
def test_a_softmax_of_encoded_values_is_one_op(on_integers: bool, guard: float | None) -> None:
    """Also where a row's largest is that of its integers, and where infinities are guarded against."""
    q = Qdq(2, 3, 16)
    if on_integers:
        largest = q.dequantised(q.node("ReduceMax", "x", axes=[2]), 0.03, np.uint8(120))
    else:
        largest = q.node("ReduceMax", q.start, axes=[2])
    if guard is not None:
        largest = q.node("Max", largest, q.constant(np.float32(guard)))
    exps = q.node("Exp", q.node("Sub", q.start, largest))
    sums = q.node("ReduceSum", exps, q.constant(np.array([2], np.int64)))
    y = q.rounded(q.node("Div", exps, sums), 1 / 256, -128, np.int8)
    op = only(checked(q.graph(y), {"Softmax"}), Softmax)
    assert isinstance(op, Softmax) and op.axis == 2 and {v.type.dtype for v in op.inputs} == {DType.U8}


def test_rows_that_are_padded_as_a_whole_are_padded_images() -> None:
    q = Qdq(1, 3, 8, 8)
    y = q.node("Conv", q.start, q.weights(4, 3, 3, 3), strides=[2, 2], pads=[0, 0, 1, 1])
    conv = only(checked(q.graph(q.rounded(y, 0.05, 3)), {"Conv"}), Conv)
    assert isinstance(conv, Conv) and conv.pads == ((0, 1), (0, 1))


def test_images_of_integers_are_resized_between_encodings() -> None:
    q = Qdq(1, 4, 6, 6)
    sizes = q.constant(np.array([1, 4, 12, 9], np.int64))
    y = q.node("Resize", q.start, "", "", sizes, mode="linear")
    named = checked(q.graph(q.rounded(y, 0.03, 90)), {"Resize"})
    op = only(named, Resize)
    assert isinstance(op, Resize) and {*op.inputs, op.output} <= set(named.encodings)
    nodes = [node.op_type for node in onnx_model(named).graph.node]
    assert nodes == ["DequantizeLinear", "Resize", "QuantizeLinear"]


def test_sums_of_a_quantised_network_are_of_bytes() -> None:
    """A byte that one sum alone reads is a value for toolchains, though kernels need not store it."""
    torch.manual_seed(0)
    calls = [(x,) for x in torch.randn(3, 1, 4, 8, 8)]
    quantised = mansard.quantize(Residuals(), calls, scheme="int8")
    named = check_raised(canonical(quantised.graph), steps=2)
    assert all(named.encodings[v] for op in named.ops if op.name == "add" for v in (*op.inputs, op.output))
    assert kinds(named) - {"Transpose", "Reshape"} == {"Recode", "Conv", "add", "Reduce"}
