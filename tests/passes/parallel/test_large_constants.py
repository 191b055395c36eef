"""Constants in parts: what a graph computes stays the same, and what cannot be cut is said."""

import numpy as np
import pytest
from support.graphs import A0, A1, F32, binary, maps, matmul, op

from mansard.dtypes import DType
from mansard.errors import CompileError
from mansard.ir import Constant, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.ops import Generic
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index
from mansard.ir.verify import verify
from mansard.passes.parallel.large_constants import split_large_constants

RNG = np.random.default_rng(5)


def weight(b, shape, dtype=F32, name="w"):
    data = RNG.integers(-50, 50, shape).astype(dtype.numpy)
    return b.constant(name, Constant.of(data, name), shape, dtype)


def same(graph, inputs, limit):
    """The graph in parts: none above the limit, and the same results."""
    cut = split_large_constants(graph, limit, "toy")
    verify(cut)
    assert all(v.type.bytes <= limit for v in cut.constants)
    for actual, expected in zip(interpret(cut, inputs), interpret(graph, inputs), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
    return cut


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("rows", [8, 130, 300])
def test_products(transposed, rows):
    b = GraphBuilder()
    x = b.input("x", (3, 16), F32)
    w = weight(b, (rows, 16) if transposed else (16, rows))
    bias = b.input("b", (rows,), F32)
    graph = b.build([binary(b, "add", matmul(b, x, w, transposed=transposed), bias)])
    inputs = [RNG.standard_normal((3, 16)).astype(np.float32), np.ones(rows, np.float32)]
    cut = same(graph, inputs, rows * 16 * 4 // 3)
    parts = list(cut.constants)
    assert len(parts) >= 3
    if transposed and rows > 192:
        assert all(v.type.shape[0] % 64 == 0 for v in parts[:-1])


def test_small_constants_stay():
    b = GraphBuilder()
    x = b.input("x", (3, 16), F32)
    graph = b.build([matmul(b, x, weight(b, (16, 8)))])
    assert split_large_constants(graph, 16 * 8 * 4, "toy") is graph


def test_an_embedding_and_a_head_share_the_parts():
    b = GraphBuilder()
    ids = b.input("ids", (5,), DType.I64)
    table = weight(b, (40, 8))
    rows = b.generic([ids, table], [maps(0), None], (5, 8), Gather(1, (Arg(0, DType.I64), Index(1)), F32))
    graph = b.build([matmul(b, rows, table, transposed=True)])
    cut = same(graph, [np.array([0, 13, 39, -4, 77])], 40 * 8 * 4 // 3)
    assert len(cut.constants) == 4


def test_dequantised_weights_stay_in_parts_until_they_are_reduced():
    b = GraphBuilder()
    x = b.input("x", (2, 8), F32)
    w, scale = weight(b, (40, 8), DType.I8), weight(b, (40,), name="scale")
    wide = Cast(Arg(0, DType.I8), F32)
    real = b.generic([w, scale], [maps(0, 1), maps(0)], (40, 8), Apply("mul", (wide, Arg(1, F32)), F32))
    graph = b.build([matmul(b, x, real, transposed=True)])
    cut = same(graph, [RNG.standard_normal((2, 8)).astype(np.float32)], 200)
    products = [o for o in cut.ops if isinstance(o, Generic) and o.combiner]
    assert len(products) == 2
    assert max(o.output.type.shape[0] for o in cut.ops if isinstance(o, Generic) and not o.combiner) == 20


def test_positions_and_other_operands_move_along():
    b = GraphBuilder()
    x = b.input("x", (30,), F32)
    w = weight(b, (30, 4))
    at = Cast(Index(0), F32)
    body = op("add", op("mul", A0, A1), at)
    graph = b.build([b.generic([w, x], [maps(0, 1), maps(0)], (30, 4), body)])
    same(graph, [np.arange(30, dtype=np.float32)], 200)


def test_what_cannot_be_cut_is_said():
    b = GraphBuilder()
    w = weight(b, (64,), name="taps")
    x = b.input("x", (3, 64), F32)
    y = b.generic([x, w], [maps(0, 1), maps(1)], (3, 64), op("mul", A0, A1), reduced=1, combiner="add")
    graph = b.build([y])
    with pytest.raises(CompileError, match=r"weight 'taps'.*256 bytes.*largest buffer of toy \(100 bytes\)"):
        split_large_constants(graph, 100, "toy")
    b = GraphBuilder()
    w = weight(b, (4, 64))
    out = b.generic([w], [maps(0, 1)], (4, 64), op("max", A0, Const(0.0, F32)))
    assert same(b.build([out]), [], 300)
    with pytest.raises(CompileError, match="cannot be split"):
        split_large_constants(b.build([w]), 300, "toy")
