"""Rounding of sums to bytes: one scale and one shift, and bytes read as bytes."""

import numpy as np
import pytest
from support.graphs import F32, maps
from support.quantised.windows import to_bytes

from mansard.dtypes import DType
from mansard.ir import Constant, Generic, GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast, Const, walk
from mansard.ir.types import Linear
from mansard.ir.verify import verify
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.products.byte_readers import read_bytes
from mansard.passes.products.requantisation import fold_requantisation

U8, I8, I32 = DType.U8, DType.I8, DType.I32
RNG = np.random.default_rng(8)


def call(name, *args):
    return Apply(name, args, args[-1].dtype)


def each(b, x, body, *others, reads=()):
    return b.generic([x, *others], [IndexMap.identity(x.type.rank), *reads], x.type.shape, body)


def stored(b, name, array):
    dtype = {"float32": F32, "int32": I32, "int8": I8}[array.dtype.name]
    return b.constant(name, Constant.of(array, name), array.shape, dtype)


def summed(b, columns=8):
    """The product of bytes (6, 16) and constant bytes (16, columns), in i32."""
    x = b.input("x", (6, 16), U8)
    w = stored(b, "w", RNG.integers(-128, 128, (16, columns)).astype(np.int8))
    body = call("mul", Cast(Arg(0, U8), I32), Cast(Arg(1, I8), I32))
    return b.generic([x, w], [maps(0, 2), maps(2, 1)], (6, columns, 16), body, reduced=1, combiner="add")


def layer(b, scale=0.0177, operands=()):
    """A zero point, a scale for each column, a bias and a division, each where ONNX's operators have it."""
    total = summed(b)
    sums, scales, bias = (stored(b, n, a) for n, a in zip("szb", operands or vectors(), strict=True))
    shifted = Cast(call("sub", Arg(0, I32), call("mul", Arg(1, I32), Const(131, I32))), F32)
    body = call("mul", shifted, call("mul", Arg(2, F32), Const(0.034, F32)))
    real = each(b, total, body, sums, scales, reads=[maps(1), maps(1, None)])
    biased = each(b, real, call("add", Arg(0, F32), Arg(1, F32)), bias, reads=[maps(1)])
    return each(b, biased, to_bytes(call("div", Arg(0, F32), Const(scale, F32)), 3, 0, 255, U8))


def vectors():
    sums = RNG.integers(-500, 500, 8).astype(np.int32)
    scales = RNG.uniform(1e-4, 1e-3, (8, 1)).astype(np.float32)
    return sums, scales, RNG.uniform(-1, 1, 8).astype(np.float32)


def agree(graph, after):
    verify(after)
    inputs = [RNG.integers(0, 256, v.type.shape).astype(v.type.dtype.numpy) for v in graph.inputs]
    for old, new in zip(interpret(graph, inputs), interpret(after, inputs), strict=True):
        assert np.abs(old.astype(np.float64) - new).max() <= (1 if old.dtype.kind == "u" else 0)


def test_a_layer_has_one_scale_and_one_shift():
    b = GraphBuilder()
    graph = b.build([layer(b)])
    after = eliminate_dead(fold_requantisation(graph))
    agree(graph, after)
    _, last = after.ops
    assert [v.type.shape for v in last.inputs[1:]] == [(8,), (8,)]
    assert sum(node.op in ("mul", "add", "div") for node in _applies(last.body)) == 3  # with the zero point


def test_the_same_scale_for_all_channels_is_a_number():
    b = GraphBuilder()
    body = call("div", call("mul", Cast(Arg(0, I32), F32), Const(0.02, F32)), Const(0.7, F32))
    real = each(b, summed(b), body)
    biased = each(b, real, call("add", Arg(0, F32), Const(0.0, F32)))
    graph = b.build([each(b, biased, to_bytes(Arg(0, F32), 9, 0, 255, U8))])
    after = eliminate_dead(fold_requantisation(graph))
    agree(graph, after)
    assert len(after.ops[-1].inputs) == 1


def _applies(body):
    return [node for node in walk(body) if isinstance(node, Apply)]


def zero_divisor(b):
    return layer(b, scale=0.0)


def not_a_number(b):
    sums, scales, bias = vectors()
    bias[3] = np.nan
    return layer(b, operands=(sums, scales, bias))


def two_operations(b):
    body = call("mul", Cast(call("add", Arg(0, I32), Arg(1, I32)), F32), Const(0.01, F32))
    return each(b, summed(b), to_bytes(body, 0, 0, 255, U8), stored(b, "o", vectors()[0]), reads=[maps(1)])


@pytest.mark.parametrize("made", [zero_divisor, not_a_number, two_operations])
def test_what_stays_as_it_is(made):
    b = GraphBuilder()
    graph = b.build([made(b)])
    assert fold_requantisation(graph) is graph


def test_a_value_with_other_readers_is_still_computed():
    b = GraphBuilder()
    real = each(b, summed(b), call("mul", Cast(Arg(0, I32), F32), Const(0.02, F32)))
    biased = each(b, real, call("add", call("mul", Arg(0, F32), Const(3.0, F32)), Const(1.0, F32)))
    graph = b.build([each(b, biased, to_bytes(Arg(0, F32), 0, 0, 255, U8)), real])
    assert fold_requantisation(graph) is graph


def real_numbers(b, q, zero, scale):
    return each(b, q, call("mul", call("sub", Cast(Arg(0, U8), F32), Const(zero, F32)), Const(scale, F32)))


def test_bytes_are_read_where_they_are_added():
    b = GraphBuilder()
    left, right = (b.input(n, (4, 5), U8) for n in "lr")
    x, y = real_numbers(b, left, 7.0, 0.25), real_numbers(b, right, 130.0, 0.5)
    turned = b.generic([x, y], [IndexMap.identity(2)] * 2, (4, 5), call("add", Arg(0, F32), Arg(1, F32)))
    graph = b.build([turned])
    after = eliminate_dead(read_bytes(graph))
    agree(graph, after)
    (op,) = after.ops
    assert [v.type.dtype for v in op.inputs] == [U8, U8]


def test_padded_reads_of_real_numbers_stay():
    b = GraphBuilder()
    x = real_numbers(b, b.input("x", (4, 5), U8), 7.0, 0.25)
    beyond = IndexMap(IndexMap.identity(2).results, 0.0)
    graph = b.build([b.generic([x], [beyond], (4, 7), Arg(0, F32))])
    assert read_bytes(graph) is graph
    assert isinstance(graph.ops[-1], Generic)


def test_an_addition_of_bytes_has_a_scale_for_each():
    b = GraphBuilder()
    left, right = (b.input(n, (4, 5), U8) for n in "lr")
    x, y = real_numbers(b, left, 7.0, 0.25), real_numbers(b, right, 130.0, 0.5)
    total = b.generic([x, y], [IndexMap.identity(2)] * 2, (4, 5), call("add", Arg(0, F32), Arg(1, F32)))
    graph = b.build([each(b, total, to_bytes(call("div", Arg(0, F32), Const(0.7, F32)), 100, 0, 255, U8))])
    after = eliminate_dead(fold_requantisation(graph))
    agree(graph, after)
    (op,) = after.ops
    assert [v.name for v in op.inputs] == ["l", "r"]
    assert "div" not in [node.op for node in _applies(op.body)]


def test_numbers_that_are_cut_to_integers_are_not_affine():
    b = GraphBuilder()
    cut = Cast(call("mul", Cast(Arg(0, I32), F32), Const(0.3, F32)), I32)
    body = call("add", call("mul", Cast(cut, F32), Const(0.1, F32)), Const(1.0, F32))
    graph = b.build([each(b, summed(b), to_bytes(body, 0, 0, 255, U8))])
    assert fold_requantisation(graph) is graph


def largest(b, scale, fill, offset=-1):
    x = real_numbers(b, b.input("x", (1, 6, 7, 8), U8), 100.0, scale)
    rows, columns = (Linear(((d, 2), (d + 3, 1)), offset) for d in (1, 2))
    window = IndexMap((Linear.dim(0), rows, columns, Linear.dim(3)), fill)
    return b.generic([x], [window], (1, 3, 3, 8, 3, 3), Arg(0, F32), reduced=2, combiner="max")


def test_the_largest_of_a_window_is_that_of_the_bytes():
    b = GraphBuilder()
    graph = b.build([largest(b, 0.5, -np.inf)])
    after = eliminate_dead(read_bytes(graph))
    agree(graph, after)
    assert [op.output.type.dtype for op in after.ops] == [U8, F32]


@pytest.mark.parametrize(
    ("scale", "fill", "offset"), [(-0.5, -np.inf, -1), (0.5, 0.0, -1), (0.5, -np.inf, -3)]
)
def test_other_windows_of_real_numbers_stay(scale, fill, offset):
    b = GraphBuilder()
    graph = b.build([largest(b, scale, fill, offset)])
    assert read_bytes(graph) is graph


def twice(b, factor, zero):
    """A layer that is rounded to bytes, and these to other bytes, as where a clamp is quantised by itself."""
    real = call("mul", call("sub", Cast(Arg(0, U8), F32), Const(3.0, F32)), Const(factor, F32))
    return each(b, layer(b), to_bytes(real, zero, 0, 255, U8))


@pytest.mark.parametrize(
    ("factor", "zero", "limits"),
    [(2.5, 0, 2), (0.5, 0, 3), (2.5, 40, 3), (0.5, 40, 4)],
    ids=["the second ends first", "q ends above", "below", "on both sides"],
)
def test_bytes_that_are_rounded_again_are_not_narrowed_in_between(factor, zero, limits):
    b = GraphBuilder()
    graph = b.build([twice(b, factor, zero)])
    after = eliminate_dead(fold_requantisation(graph))
    agree(graph, after)
    *_, last = after.ops
    assert len(after.ops) == 2
    assert sum(node.op in ("max", "min") for node in _applies(last.body)) == limits
    assert sum(node.op == "round" for node in _applies(last.body)) == 2
    assert sum(isinstance(node, Cast) and node.dtype is U8 for node in walk(last.body)) == 1


def test_bytes_that_others_read_are_stored():
    b = GraphBuilder()
    q = layer(b)
    again = each(b, q, to_bytes(call("mul", Cast(Arg(0, U8), F32), Const(0.5, F32)), 0, 0, 255, U8))
    graph = b.build([again, q])
    after = eliminate_dead(fold_requantisation(graph))
    agree(graph, after)
    assert len(after.ops) == 3
