"""Products of rows rounded to bytes with weights of small integers, in one kernel with the rounding."""

import numpy as np
import pytest
from support.graph_runner import check
from support.graphs import F32
from support.kernels.norm_products import EVERY, constant, op, products
from support.kernels.norm_products import product as product_of
from support.kernels.pairs import pairs

from mansard.codegen.schedules.gpu.gemv import fused, rounded
from mansard.codegen.schedules.gpu.gemv.fused import FusedTile
from mansard.compiler import CompileOptions
from mansard.compiler.compile import lower_graph
from mansard.dtypes import DType
from mansard.ir import Constant, GraphBuilder, IndexMap, Linear
from mansard.ir.quantised_weight import GroupFactor, QuantisedWeight, product
from mansard.ir.scalar import Arg
from mansard.ir.types import TensorType, Value
from mansard.passes.products.activations import Activations
from mansard.passes.products.quantisation import quantisation

pytestmark = [pytest.mark.vulkan, pytest.mark.variants(2)]
RNG = np.random.default_rng(8)

TOLERANCE = 5e-3
"""Relative to the largest result: sums in another order, and quotients that are one unit in the last place
off, move elements over the border between two codes."""


@pytest.fixture(autouse=True)
def device():
    from support import vulkan_support

    return vulkan_support.usable_device()


def _graph(rows, columns, depth, dtype, *, norm, gated):
    return products(rows, columns, depth, dtype, norm=norm, gated=gated, constants=True)


def _options(kind="int4", **kwargs):
    rounded = quantisation(kind, activations="int8", min_elements=1, **kwargs)
    return CompileOptions(targets=("vulkan",), quantisation=rounded, cache=False)


def _check(graph, options, inputs):
    quantised = lower_graph(graph, CompileOptions(**{**vars(options), "stop_after": "quantise_weights"}))
    check(quantised, inputs, "vulkan", rtol=TOLERANCE, atol=TOLERANCE)


def _inputs(graph):
    return [RNG.standard_normal(v.type.shape).astype(v.type.dtype.numpy) for v in graph.inputs]


SHAPES = [
    (1, 24, 64, F32, "int4", {}),
    (1, 17, 1600, DType.BF16, "int4", {}),
    (3, 40, 160, F32, "int4", {"symmetric": False}),
    (1, 300, 1024, DType.BF16, "int4", {"symmetric": False}),
    (2, 9, 1024, F32, "int4", {"group_size": 64}),
    (1, 24, 1024, DType.BF16, "int4", {"group_size": 128}),
    (1, 33, 512, F32, "int8", {"group_size": 32}),
    (4, 12, 96, DType.BF16, "int8", {"group_size": 16}),
]


@pairs(
    *("rows, columns, depth, dtype, kind, refined", SHAPES),
    *("norm, gated", [(False, False), (True, False), (False, True), (True, True)]),
)
def test_one_kernel(rows, columns, depth, dtype, kind, refined, norm, gated):
    graph, options = (
        _graph(rows, columns, depth, dtype, norm=norm, gated=gated),
        _options(kind, **refined),
    )
    assert len(lower_graph(graph, options).dispatches) == 1
    _check(graph, options, _inputs(graph))


@pytest.mark.parametrize("size", [16, 32, 128])
def test_devices_that_combine_no_clusters(monkeypatch, size):
    monkeypatch.setattr(rounded, "CLUSTERED", "no such feature")
    graph = _graph(2, 9, 1152, DType.BF16, norm=True, gated=False)
    _check(graph, _options(group_size=size), _inputs(graph))


def test_an_odd_number_of_groups():
    graph, options = _graph(1, 20, 336, F32, norm=False, gated=False), _options(group_size=16)
    assert len(lower_graph(graph, options).dispatches) == 1
    _check(graph, options, _inputs(graph))


@pytest.mark.parametrize("tile", [(1, 1, 1), (2, 1, 2), (4, 2, 1), (1, 4, 100)])
def test_every_choice_of_parameters(monkeypatch, tile):
    monkeypatch.setattr(fused, "default_tile", lambda *_: FusedTile(*tile))
    graph = _graph(2, 39, 1056, DType.BF16, norm=True, gated=True)
    _check(graph, _options(), _inputs(graph))


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan, 3e38, 1e-30])
def test_special_rows(value):
    graph, options = _graph(1, 8, 128, F32, norm=False, gated=False), _options()
    (x,) = _inputs(graph)
    x[0, 40] = value
    x[0, 64:96] = 0.0
    _check(graph, options, [x])


def test_groups_that_no_invocation_rounds_alone_are_dispatches():
    graph, options = _graph(1, 24, 1024, F32, norm=True, gated=False), _options(group_size=256)
    assert len(lower_graph(graph, options).dispatches) > 1
    _check(graph, options, _inputs(graph))


def test_rows_that_others_read_too_are_rounded_once():
    b = GraphBuilder()
    x = b.input("x", (1, 256), F32)
    first, second = (product_of(b, x, constant(b, f"w{i}", n, 256), F32) for i, n in enumerate((24, 40)))
    graph, options = b.build([first, second]), _options()
    _check(graph, options, _inputs(graph))


@pytest.mark.parametrize(("rows", "depth"), [(1, 4096), (1, 8192), (2, 4096), (1, 6176)])
def test_long_rows_are_several_units_of_an_invocation(rows, depth):
    graph, options = _graph(rows, 10, depth, F32, norm=False, gated=False), _options()
    assert len(lower_graph(graph, options).dispatches) == 1
    (x,) = _inputs(graph)
    x *= 10.0 ** RNG.integers(-3, 4, depth // 32).repeat(32)  # scales that differ from group to group
    _check(graph, options, [x])


def test_codes_with_and_without_sign_in_one_kernel():
    b = GraphBuilder()
    x, values, activations = b.input("x", (1, 256), F32), [], Activations({"x"}, "int8")
    for number, dtype in enumerate((DType.I4, DType.U4)):
        low = -8 if dtype is DType.I4 else 0
        numbers = RNG.integers(low, low + 16, (24, 256)).astype(dtype.numpy)
        codes = b.constant(f"codes{number}", Constant.of(numbers, f"codes{number}"), (24, 256), dtype)
        scales = b.input(f"scales{number}", (24, 8), F32)
        weight = QuantisedWeight(codes, (GroupFactor(scales, 32),))
        read = IndexMap.of_dims((0, 2))
        ops, operands, factor = activations.operands(x, read, 2, 256, 32)
        for each in ops:
            b.append(each)
        out = Value(f"y{number}", TensorType((1, 24), F32))
        values.append(b.append(product(weight, operands, factor, (1, 24), Linear.dim(1), out)))
    graph = b.build([b.generic(values, [EVERY] * 2, (1, 24), op("mul", Arg(0, F32), Arg(1, F32)))])
    assert len(lower_graph(graph, CompileOptions(targets=("vulkan",), cache=False)).dispatches) == 1
    check(graph, _inputs(graph), "vulkan", rtol=TOLERANCE, atol=TOLERANCE)
