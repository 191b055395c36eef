"""Products in one kernel with each other, and with the norm of the rows that they read."""

import numpy as np
import pytest
from support.graph_runner import check
from support.graphs import F32
from support.kernels.norm_products import EVERY, normalised, op, products
from support.kernels.norm_products import product as product_of

from mansard.codegen.schedules.gpu.gemv import fused
from mansard.codegen.schedules.gpu.gemv.fused import FusedTile
from mansard.codegen.schedules.gpu.gemv.parts import parts_of
from mansard.compiler import CompileOptions
from mansard.compiler.compile import lower_graph
from mansard.drivers.vulkan.compiler import BACKEND
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap, Linear
from mansard.ir.quantised_weight import GroupFactor, QuantisedWeight, product
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.ir.types import Constant, TensorType, Value

pytestmark = pytest.mark.vulkan
RNG = np.random.default_rng(5)


@pytest.fixture
def vulkan():
    from support import vulkan_support

    vulkan_support.usable_device()
    return "vulkan"


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "depth", "dtype"),
    [
        (1, 24, 64, F32),
        (1, 17, 96, DType.BF16),
        (3, 40, 160, F32),
        (1, 600, 1024, DType.BF16),
        (2, 9, 32, F32),
    ],
)
def test_one_kernel(vulkan, rows, columns, depth, dtype, norm, gated):
    if not norm and not gated:
        return
    graph = products(rows, columns, depth, dtype, norm=norm, gated=gated)
    assert len(lower_graph(graph, CompileOptions(targets=(vulkan,))).dispatches) == 1
    inputs = [(RNG.standard_normal(v.type.shape) / 4).astype(v.type.dtype.numpy) for v in graph.inputs]
    check(graph, inputs, vulkan, rtol=1e-4, atol=1e-4)


def _quantised(columns, depth, zeros):
    """A norm, then two products with 4-bit weights in groups of 32, the one gated by the other."""
    b = GraphBuilder()
    x = b.input("x", (1, depth), DType.BF16)
    y, values = normalised(b, x, DType.BF16), []
    for number in range(2):
        dtype = DType.U4 if zeros else DType.I4
        numbers = RNG.integers(0 if zeros else -8, 16 if zeros else 8, (columns, depth)).astype(dtype.numpy)
        constant = Constant(f"codes{number}", lambda numbers=numbers: numbers)
        codes = b.constant(f"codes{number}", constant, (columns, depth), dtype)
        scales = b.input(f"scales{number}", (columns, depth // 32), DType.F16)
        zero = b.input(f"zeros{number}", (columns, depth // 32), DType.U8) if zeros else None
        weight = QuantisedWeight(codes, (GroupFactor(scales, 32),), GroupFactor(zero, 32) if zeros else None)
        out = Value(f"y{number}", TensorType((1, columns), F32))
        factor = Cast(Arg(0, DType.BF16), F32)
        operands = [(y, IndexMap.of_dims((0, 2)), 1)]
        values.append(b.append(product(weight, operands, factor, (1, columns), Linear.dim(1), out)))
    body = op("mul", Apply("exp", (Arg(0, F32),), F32), Arg(1, F32))
    return b.build([b.generic(values, [EVERY] * 2, (1, columns), body)])


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("tile", [None, (4, 1, 1), (2, 2, 3)])
def test_weights_of_4_bits(vulkan, monkeypatch, tile, zeros):
    if tile:
        monkeypatch.setattr(fused, "default_tile", lambda *_: FusedTile(*tile))
    graph = _quantised(23, 1600, zeros)
    assert len(lower_graph(graph, CompileOptions(targets=(vulkan,))).dispatches) == 1
    inputs = [(RNG.standard_normal(v.type.shape) / 8) for v in graph.inputs]
    inputs = [
        (abs(i) * 64 if v.type.dtype is DType.U8 else i).astype(v.type.dtype.numpy)
        for i, v in zip(inputs, graph.inputs, strict=True)
    ]
    check(graph, inputs, vulkan, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tile", [(1, 1, 1), (2, 1, 2), (4, 2, 1), (1, 4, 100)])
@pytest.mark.parametrize("rows", [1, 2])
def test_every_choice_of_parameters(vulkan, monkeypatch, tile, rows):
    monkeypatch.setattr(fused, "default_tile", lambda *_: FusedTile(*tile))
    graph = products(rows, 39, 1056, DType.BF16, gated=True)
    inputs = [(RNG.standard_normal(v.type.shape) / 4).astype(v.type.dtype.numpy) for v in graph.inputs]
    check(graph, inputs, vulkan, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("columns", "tile"), [(151936, (4, 2)), (4096, (1, 4))])
def test_many_outputs_share_what_is_read_of_the_row(columns, tile):
    graph = products(1, columns, 1024, DType.BF16)
    (dispatch,) = lower_graph(graph, CompileOptions(targets=("vulkan:h200",))).dispatches
    parts = parts_of(dispatch)
    assert parts is not None
    chosen = fused.default_tile(parts, BACKEND.parse_target("vulkan:h200"))
    assert (chosen.columns, chosen.unroll) == tile


def test_many_rows_and_open_numbers_of_rows_stay_apart():
    for rows in (5, 64):
        graph = products(rows, 64, 64, F32, gated=True)
        assert len(lower_graph(graph, CompileOptions(targets=("vulkan:h200",))).dispatches) == 3


def test_a_cpu_beside_the_gpu_keeps_them_apart():
    graph = products(1, 64, 64, F32, gated=True)
    assert len(lower_graph(graph, CompileOptions(targets=("vulkan:h200", "cpu"))).dispatches) == 3


def test_rows_that_another_op_reads_are_stored_once():
    b = GraphBuilder()
    x, w = b.input("x", (1, 64), F32), b.input("w", (32, 64), F32)
    y = normalised(b, x, F32)
    graph = b.build([product_of(b, y, w, F32), y])
    assert len(lower_graph(graph, CompileOptions(targets=("vulkan:h200",))).dispatches) == 2
