"""Products that read their weights as a stream, run by an emulator, against the reference interpreter."""

import dataclasses

import numpy as np
import pytest
from support.graphs import F32
from support.kernels.emulator import run_streamed
from support.kernels.norm_products import products
from support.kernels.pairs import pairs

from mansard.codegen.schedules import schedule
from mansard.codegen.schedules.gpu.gemv import stream_layout, streamed
from mansard.compiler import CompileOptions
from mansard.compiler.compile import lower_graph
from mansard.drivers.vulkan.compiler import BACKEND
from mansard.dtypes import DType
from mansard.hal.small_integers import pack_nibbles
from mansard.hal.weight_streams import MAX_SLOT, StreamOperand
from mansard.ir import GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.passes.products.quantisation import quantisation

H200 = BACKEND.parse_target("vulkan:h200")
BF16 = DType.BF16
RNG = np.random.default_rng(3)


def kernel(graph, quantised=None):
    """The one dispatch of a graph, its kernel that reads a stream, and the graph that it computes."""
    options = CompileOptions(targets=("vulkan:h200",), quantisation=quantised, cache=False)
    lowered = lower_graph(graph, options)
    (dispatch,) = lowered.dispatches
    if quantised is not None:
        graph = lower_graph(graph, dataclasses.replace(options, stop_after="quantise_weights"))
    return dispatch, schedule(dispatch, H200, "k").kernel.streamed, lowered.graph.constants, graph


def stored(constant, dtype):
    """A constant as it lies in memory: two numbers of four bits in a byte."""
    array = np.asarray(constant.load())
    return pack_nibbles(array.astype(np.int8).view(np.uint8) & 15) if dtype.bits == 4 else array


def check(graph, workgroups, quantised=None):
    dispatch, kernel_, constants, reference = kernel(graph, quantised)
    assert kernel_ is not None
    values = {
        v.name: (RNG.standard_normal(v.type.shape) / 4).astype(v.type.dtype.numpy) for v in graph.inputs
    }
    expected = interpret(reference, list(values.values()))
    values |= {v.name: stored(c, v.type.dtype) for v, c in constants.items()}
    results = [np.zeros(v.type.shape, v.type.dtype.numpy) for v in dispatch.outputs]
    arrays = [*(values[v.name] for v in dispatch.inputs), *results]
    run_streamed(kernel_, arrays, workgroups, stream_layout.SUBGROUP)
    for actual, wanted in zip(results, expected, strict=True):
        actual, wanted = actual.astype(np.float64), wanted.astype(np.float64)
        np.testing.assert_allclose(actual, wanted, atol=1e-2 * np.abs(wanted).max())


@pairs(
    "norm, gated, residual",
    [
        (True, False, False),
        (True, True, False),
        (False, True, True),
        (False, False, True),
        (True, True, True),
    ],
    "rows, columns, depth, workgroups",
    [
        (1, 24, 1024, 5),  # one part a row
        (1, 100, 256, 3),  # a part is half of a slot
        (1, 37, 3072, 2),  # more parts than divide a slot evenly
        (3, 20, 512, 4),
        (1, 3, 2048, 7),  # workgroups without outputs
    ],
)
def test_products(norm, gated, residual, rows, columns, depth, workgroups):
    check(products(rows, columns, depth, BF16, norm=norm, gated=gated, residual=residual), workgroups)


@pairs(
    "kind, activations, refined",
    [
        ("int4", None, {}),
        ("int4", "int8", {}),
        ("int4", "int8", {"symmetric": False}),
        ("int4", None, {"symmetric": False, "group_size": 64}),
        ("int8", None, {"group_size": 32}),
        ("int8", "int8", {"group_size": 32}),
        ("int4", "int8", {"group_size": 128}),
        ("int8", "int8", {"group_size": 64}),
        ("float12", None, {}),
    ],
    "norm, gated, depth",
    [(False, True, 1024), (True, False, 3072), (True, True, 2048), (False, False, 4096)],
)
def test_small_weights(kind, activations, refined, norm, gated, depth):
    graph = products(1, 21, depth, BF16, norm=norm, gated=gated, constants=True)
    check(graph, 2, quantisation(kind, activations=activations, min_elements=1, **refined))


@pairs(
    "rows, norm, gated, residual",
    [(1, True, False, True), (1, True, True, False), (1, False, True, False), (3, False, False, True)],
    "depth",
    [512, 1536, 4096],
)
def test_exceptions_of_weights_in_12_bits(rows, norm, gated, residual, depth):
    """They decide the products, whatever the vector is read from: workgroup memory or a buffer."""
    graph = products(
        rows, 21, depth, BF16, norm=norm, gated=gated, residual=residual, constants=True, outliers=3
    )
    check(graph, 2, quantisation("float12", min_elements=1))


@pytest.mark.parametrize("depth", [512, 1024])
def test_a_result_may_add_the_vector_itself(depth):
    """It is then not copied to workgroup memory, of which single numbers cannot be read."""
    b = GraphBuilder()
    x, w = b.input("x", (1, depth), BF16), b.input("w", (depth, depth), BF16)
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((1, 2))]
    body = Apply("mul", (Cast(Arg(0, BF16), F32), Cast(Arg(1, BF16), F32)), F32)
    y = b.generic([x, w], maps, (1, depth, depth), body, reduced=1, combiner="add")
    both = [IndexMap.identity(2)] * 2
    total = Cast(Apply("add", (Arg(0, F32), Cast(Arg(1, BF16), F32)), F32), BF16)
    check(b.build([b.generic([y, x], both, (1, depth), total)]), 3)


def test_f32():
    check(products(1, 20, 1024, F32, norm=True, gated=True), 3)


def test_a_workgroup_with_many_outputs_computes_them_in_batches():
    graph = products(1, 700, 512, BF16, norm=True, gated=True)
    _, kernel_, *_ = kernel(graph)
    assert kernel_.stream.parts * 700 > streamed.MAX_PARTIALS
    check(graph, 1)


@pytest.mark.parametrize("depth, parts", [(1024, 1), (2048, 2), (4096, 4)])
def test_products_take_turns(depth, parts):
    """A subgroup's parts are of one product, where all parts of a row divide the subgroups."""
    _, kernel_, *_ = kernel(products(1, 64, depth, BF16, gated=True))
    stream = kernel_.stream
    assert (stream.rows, stream.parts, stream.products) == (64, parts, 2)
    assert [(o.part, o.offset) for o in stream.operands] == [(2048, 0)] * 2
    assert stream.slot_bytes == MAX_SLOT
    assert len({o.binding for o in stream.operands}) == 2


def test_slots_hold_a_part_of_every_operand():
    _, kernel_, *_ = kernel(products(1, 64, 3072, BF16, gated=True))
    stream = kernel_.stream
    assert (stream.rows, stream.parts, stream.products) == (64, 6, 1)
    assert [(o.part, o.offset) for o in stream.operands] == [(1024, 0), (1024, 1024)]
    assert stream.slot_bytes == MAX_SLOT
    _, kernel_, *_ = kernel(products(1, 64, 1280, BF16, norm=True))
    assert kernel_.stream.parts == 5
    assert kernel_.stream.operands == (StreamOperand(1, 512, 0),)


def across(rows, columns, depth):
    """A product with weights that are contiguous along the outputs."""
    b = GraphBuilder()
    x, w = b.input("x", (rows, depth), BF16), b.input("w", (depth, columns), BF16)
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1))]
    body = Apply("mul", (Cast(Arg(0, BF16), F32), Cast(Arg(1, BF16), F32)), F32)
    return b.build([b.generic([x, w], maps, (rows, columns, depth), body, reduced=1, combiner="add")])


@pytest.mark.parametrize(
    "graph",
    [
        products(1, 64, 1024 + 64, BF16, norm=False),  # a row is no whole number of loads of a subgroup
        products(6, 64, 1024, BF16, norm=False),  # too many rows
        across(1, 64, 1024),
    ],
    ids=["depth", "rows", "layout"],
)
def test_what_has_no_stream(graph):
    (dispatch, *_) = lower_graph(graph, CompileOptions(targets=("vulkan:h200",))).dispatches
    assert schedule(dispatch, H200, "k").kernel.streamed is None


def test_only_targets_with_ptx_have_streams():
    (dispatch,) = lower_graph(
        products(1, 64, 1024, BF16), CompileOptions(targets=("vulkan:h200",))
    ).dispatches
    assert (
        schedule(
            dispatch, dataclasses.replace(H200, features=H200.features - {"ptx_sm_90a"}), "k"
        ).kernel.streamed
        is None
    )
