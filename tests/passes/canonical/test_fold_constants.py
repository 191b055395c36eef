"""Folding, common subexpressions, dead code, constant layout."""

from __future__ import annotations

import numpy as np
import pytest
from support.ir_graphs import (
    BOOL,
    F32,
    I64,
    arg,
    call,
    const,
    elementwise,
    index,
    matmul,
    plain,
    random,
    transpose,
)

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.errors import VerificationError
from mansard.ir import Constant, Generic, Graph, GraphBuilder, Value
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Cast, Const, Gather, Index
from mansard.ir.verify import verify
from mansard.passes.canonical.cse import eliminate_common
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.canonical.fold_constants import fold_constants, inline_generated, uniform_value
from mansard.passes.layout.constants import transpose_constant


def counted(array: np.ndarray, key: str = "w") -> tuple[Constant, list[int]]:
    """A constant and the list that grows when it is read."""
    reads: list[int] = []

    def load() -> np.ndarray:
        reads.append(1)
        return array

    return Constant(key, load), reads


def same(graph: Graph, after: Graph, *inputs: np.ndarray) -> Graph:
    verify(after)
    for old, new in zip(interpret(graph, list(inputs)), interpret(after, list(inputs)), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6)
    return after


def weight(b: GraphBuilder, shape: tuple[int, ...], name: str = "w") -> Value:
    return b.constant(name, Constant.of(random(shape, seed=ord(name)), name), shape, F32)


# Folding ------------------------------------------------------------------------------------
def test_ops_over_constants_are_folded_lazily_and_once():
    b = GraphBuilder()
    constant, reads = counted(random((200, 200)))
    w = b.constant("w", constant, (200, 200), F32)
    x = b.input("x", (200, 200), F32)
    scaled = b.generic([w], [plain(1, 0)], (200, 200), call("mul", arg(0), const(0.5)))
    graph = b.build([elementwise(b, "add", x, elementwise(b, "exp", scaled))])
    after = eliminate_dead(fold_constants(graph))
    assert reads == []
    assert len(after.ops) == 1
    ((value, folded),) = after.constants.items()
    assert value.type.shape == (200, 200)
    first, again = folded.load(), folded.load()
    assert first is again
    assert len(reads) == 1
    same(graph, after, random((200, 200)))


def test_folded_keys_are_stable_and_tell_ops_apart():
    def key(factor: float) -> str:
        b = GraphBuilder()
        w = weight(b, (200, 200))
        y = b.generic([w], [plain(0, 1)], (200, 200), call("mul", arg(0), const(factor)))
        graph = eliminate_dead(fold_constants(b.build([y])))
        return next(iter(graph.constants.values())).key

    assert key(2.0) == key(2.0)
    assert key(2.0) != key(3.0)


def test_broadcast_of_a_small_constant_stays_an_op():
    b = GraphBuilder()
    w = weight(b, (256,))
    graph = b.build([b.generic([w], [plain(1)], (256, 256), arg(0))])
    assert fold_constants(graph) is graph


def test_tiny_results_are_always_folded():
    b = GraphBuilder()
    w = weight(b, (4,))
    graph = b.build([b.generic([w], [plain(1)], (3, 4), arg(0))])
    assert fold_constants(graph).ops == ()


def test_a_small_sum_over_a_map_that_is_too_large_to_store_is_folded():
    b = GraphBuilder()
    codes = random((300, 400), DType.I8)
    w = b.constant("w", Constant.of(codes, "w"), codes.shape, DType.I8)
    wide = b.generic([w], [plain(0, 1)], codes.shape, Cast(arg(0, DType.I8), F32))
    total = b.generic([wide], [plain(0, 1)], codes.shape, arg(0), reduced=1, combiner="add")
    x, y = (b.input(name, shape, F32) for name, shape in (("x", (300,)), ("y", codes.shape)))
    graph = b.build([elementwise(b, "add", x, total), elementwise(b, "add", y, wide)])
    after = eliminate_dead(fold_constants(graph))
    assert [op.output.type.shape for op in after.ops] == [codes.shape, (300,), codes.shape]
    data = [random((300,)), random(codes.shape)]
    for old, new in zip(interpret(graph, data), interpret(after, data), strict=True):
        np.testing.assert_array_equal(old, new)


def test_packed_weight_stays_packed():
    b = GraphBuilder()
    w = b.constant("w", Constant.of(random((256, 256), DType.F16), "w"), (256, 256), DType.F16)
    graph = b.build([b.generic([w], [plain(0, 1)], (256, 256), Cast(arg(0, DType.F16), F32))])
    assert fold_constants(graph) is graph
    assert fold_constants(graph, growth=2.0).ops == ()


def test_transposed_weight_is_folded_only_when_the_original_goes():
    b = GraphBuilder()
    w = weight(b, (256, 256))
    moved = transpose(b, w, (1, 0))
    assert fold_constants(b.build([moved])).ops == ()
    both = b.build([moved, elementwise(b, "neg", w)])
    assert [op.name for op in fold_constants(both).ops] == ["generic", "generic"]


def test_sort_and_views_of_constants():
    b = GraphBuilder()
    w = weight(b, (5, 4))
    values, order = b.sort(w, 0)
    graph = b.build([values, order, b.slice(w, (1, 0), (2, 4), (2, 1)), b.concat([w, w], 1)])
    after = same(graph, eliminate_dead(fold_constants(graph)))
    assert after.ops == ()
    assert len({c.key for c in after.constants.values()}) == 4


def test_uniform_constants_become_literals():
    b = GraphBuilder()
    ones = b.constant("ones", Constant.of(np.ones(64, np.float32)), (64,), F32)
    two = b.constant("two", Constant.of(np.array(2, np.float32)), (), F32)
    x = b.input("x", (8, 64), F32)
    body = call("add", call("mul", arg(0), arg(1)), Gather(2, (), F32))
    graph = b.build([b.generic([x, ones, two], [plain(0, 1), plain(1), None], (8, 64), body)])
    after = same(graph, eliminate_dead(fold_constants(graph)), random((8, 64)))
    (op,) = after.ops
    assert isinstance(op, Generic)
    assert op.inputs == (x,)
    assert op.body == call("add", call("mul", arg(0), const(1.0)), const(2.0))
    assert after.constants == {}


def test_uniform_value_of_special_floats():
    def of(array: np.ndarray) -> tuple[float | int | bool] | None:
        b = GraphBuilder()
        dtype = DType.BF16 if array.dtype == DType.BF16.numpy else F32
        constant = Constant.of(array)
        return uniform_value(b.constant("c", constant, array.shape, dtype), constant)

    assert of(np.array([0.0, -0.0], np.float32)) is None
    assert repr(of(np.array([-0.0, -0.0], np.float32))) == "(-0.0,)"
    assert repr(of(np.array([np.nan, np.nan], np.float32))) == "(nan,)"
    assert of(np.full(3, 0.5).astype(DType.BF16.numpy)) == (0.5,)
    assert of(np.zeros((0, 3), np.float32)) is None


def test_large_constants_are_not_read_to_look_for_uniform_ones():
    b = GraphBuilder()
    constant, reads = counted(np.ones((200, 200), np.float32))
    w = b.constant("w", constant, (200, 200), F32)
    x = b.input("x", (200, 200), F32)
    graph = b.build([elementwise(b, "add", x, w)])
    assert fold_constants(graph) is graph
    assert reads == []


def test_fill_read_by_a_generic_is_a_literal():
    b = GraphBuilder()
    x = b.input("x", (300, 300), F32)
    zero = b.generic([], [], (300, 300), const(0.5))
    graph = b.build([elementwise(b, "max", x, zero)])
    after = same(graph, eliminate_dead(fold_constants(graph)), random((300, 300)))
    (op,) = after.ops
    assert isinstance(op, Generic)
    assert op.body == call("max", arg(0), const(0.5))


def test_assert_that_holds_goes_and_one_that_fails_stays():
    b = GraphBuilder()
    good = b.generic([], [], (), const(True, BOOL))
    bad = b.constant("bad", Constant.of(np.array([True, False])), (2,), BOOL)
    b.assert_true(good, "holds")
    b.assert_true(bad, "fails")
    after = eliminate_dead(fold_constants(b.build([])))
    assert [op.name for op in after.ops] == ["assert"]
    assert "fails" in str(after)


def test_symbolic_results_are_not_folded():
    s = dims.symbol(Dim("s", 1, 8))
    b = GraphBuilder()
    b.input("x", (s,), F32)
    w = weight(b, (4,))
    graph = b.build([b.generic([w], [plain(1)], (s, 4), call("exp", arg(0)))])
    assert fold_constants(graph) is graph


def test_ops_over_small_ranges_are_folded():
    b = GraphBuilder()
    x = b.input("x", (8,), I64)
    steps = b.scan(b.generic([], [], (8,), index(0, 1)), 0)
    graph = b.build([elementwise(b, "add", x, steps)])
    after = same(graph, eliminate_dead(fold_constants(graph)), np.arange(8))
    assert [op.name for op in after.ops] == ["generic"]


def test_running_sum_of_zeros_is_zero_for_every_length():
    s = dims.symbol(Dim("s", 1, 64))
    b = GraphBuilder()
    x = b.input("x", (s,), I64)
    zeros = b.generic([], [], (s,), const(0, I64))
    ones = b.generic([], [], (s,), const(1, I64))
    sums = [b.scan(zeros, 0), b.scan(ones, 0), b.scan(ones, 0, "max"), b.scan(ones, 0, "mul")]
    graph = b.build([elementwise(b, "add", x, v) for v in sums])
    after = same(graph, eliminate_dead(fold_constants(graph)), np.arange(5))
    assert [op.name for op in after.ops].count("scan") == 1


# Generated bodies ---------------------------------------------------------------------------
def test_ranges_are_repeated_in_their_readers():
    b = GraphBuilder()
    table = b.input("table", (12, 4), F32)
    positions = b.generic([], [], (8,), index(0, 2))
    y = b.generic([table, positions], [None, plain(0)], (8, 4), Gather(0, (arg(1, I64), Index(1)), F32))
    graph = b.build([y])
    after = same(graph, eliminate_dead(inline_generated(graph)), random((12, 4)))
    (op,) = after.ops
    assert isinstance(op, Generic)
    assert op.inputs == (table,)
    assert op.body == Gather(0, (index(0, 2), Index(1)), F32)


def test_gathered_range_is_clamped():
    b = GraphBuilder()
    ids = b.input("ids", (6,), I64)
    squares = b.generic([], [], (5,), call("mul", Index(0), Index(0)))
    graph = b.build([b.generic([squares, ids], [None, plain(0)], (6,), Gather(0, (arg(1, I64),), I64))])
    after = eliminate_dead(inline_generated(graph))
    assert len(same(graph, after, np.array([-3, 0, 2, 4, 5, 99])).ops) == 1


def test_expensive_generated_bodies_are_stored_once():
    b = GraphBuilder()
    x = b.input("x", (8,), F32)
    waves = b.generic([], [], (8,), call("sin", Cast(Index(0), F32)))
    graph = b.build([elementwise(b, "add", x, waves)])
    assert inline_generated(graph) is graph
    after = same(graph, eliminate_dead(fold_constants(graph)), random((8,)))
    assert len(after.ops) == len(after.constants) == 1


# Common subexpressions ----------------------------------------------------------------------
def test_equal_ops_are_merged_along_chains():
    b = GraphBuilder()
    x = b.input("x", (4, 5), F32)
    one = elementwise(b, "exp", elementwise(b, "neg", x))
    two = elementwise(b, "exp", elementwise(b, "neg", x))
    graph = b.build([elementwise(b, "add", one, two)])
    after = same(graph, eliminate_common(graph), random((4, 5)))
    assert len(after.ops) == 3
    assert after.ops[-1].inputs == (one, one)


def test_ops_that_differ_are_kept_apart():
    b = GraphBuilder()
    x = b.input("x", (4, 4), F32)
    outs = [
        transpose(b, x, (0, 1)),
        transpose(b, x, (1, 0)),
        elementwise(b, "neg", x),
        b.generic([x], [plain(0, 1)], (4, 4), arg(0), reduced=1, combiner="max"),
        b.generic([x], [plain(0, 1)], (4, 4), arg(0), reduced=1, combiner="min"),
        b.reshape(x, (16,)),
        b.reshape(x, (2, 8)),
        b.slice(x, (0, 0), (2, 2), (1, 1)),
        b.slice(x, (1, 0), (2, 2), (1, 1)),
        b.slice(x, (0, 0), (2, 2), (2, 1)),
        b.concat([x, x], 0),
        b.concat([x, x], 1),
        b.pad(x, (1, 0), (0, 0), 0.0),
        b.pad(x, (0, 0), (1, 0), 0.0),
        b.pad(x, (1, 0), (0, 0), -0.0),
        b.scan(x, 0),
        b.scan(x, 0, "max"),
        b.scan(x, 0, inclusive=False),
        *b.sort(x, 0),
        *b.sort(x, 0, descending=True),
        *b.sort(x, 0, limit=4),
    ]
    graph = b.build(outs)
    assert eliminate_common(graph) is graph


def test_equal_special_ops_are_merged():
    b = GraphBuilder()
    x = b.input("x", (1, 2, 4, 4), F32)
    outs = [*b.sort(x, 3), *b.sort(x, 3), b.attention(x, x, x, None, 0.5), b.attention(x, x, x, None, 0.5)]
    graph = b.build(outs)
    after = same(graph, eliminate_common(graph), random((1, 2, 4, 4)))
    assert len(after.ops) == 2


def test_small_equal_constants_are_merged_without_reading_large_ones():
    b = GraphBuilder()
    small = [b.constant("s", Constant.of(np.array([1, 2], np.float32)), (2,), F32) for _ in range(2)]
    minus = b.constant("m", Constant.of(np.array([1, -2], np.float32)), (2,), F32)
    constant, reads = counted(np.ones((100, 100), np.float32))
    large = [b.constant("l", constant, (100, 100), F32) for _ in range(2)]
    outs = [elementwise(b, "neg", v) for v in (*small, minus, *large)]
    graph = b.build(outs)
    after = eliminate_common(graph)
    assert len(after.constants) == 3
    assert len(after.ops) == 3
    assert reads == []
    same(graph, after)


# Dead code ----------------------------------------------------------------------------------
def test_dead_ops_and_constants_go_and_states_and_asserts_stay():
    b = GraphBuilder()
    x, ok = b.input("x", (2,), F32), b.input("ok", (2,), BOOL)
    unused = weight(b, (2,))
    elementwise(b, "add", unused, x)
    held = b.state("held", (2,), F32)
    after_state = elementwise(b, "add", held, x)
    b.update_state(held, after_state)
    b.assert_true(elementwise(b, "not", ok), "must not hold")
    graph = b.build([x])
    after = eliminate_dead(graph)
    verify(after)
    assert after.constants == {}
    assert [op.name for op in after.ops] == ["generic", "generic", "assert"]
    assert eliminate_dead(after) is after


# Constant layout ----------------------------------------------------------------------------
def test_transposed_constant_is_followed_by_its_readers():
    b = GraphBuilder()
    x = b.input("x", (3, 4), F32)
    data = random((5, 4))
    w = b.constant("w", Constant.of(data, "layer.w"), (5, 4), F32)
    product = b.generic(
        [x, w], [plain(0, 2), plain(1, 2)], (3, 5, 4), call("mul", arg(0), arg(1)), reduced=1, combiner="add"
    )
    ids = b.input("ids", (6,), I64)
    rows = b.generic([w, ids], [None, plain(0)], (6, 4), Gather(0, (arg(1, I64), Index(1)), F32))
    graph = b.build([product, rows])
    after = same(graph, transpose_constant(graph, w, (1, 0)), random((3, 4)), np.array([0, 4, 9, -1, 2, 3]))
    ((stored, constant),) = after.constants.items()
    assert stored.type.shape == (4, 5)
    assert constant.load().flags.c_contiguous
    np.testing.assert_array_equal(constant.load(), data.T)
    first = after.ops[0]
    assert isinstance(first, Generic)
    assert first.maps == (plain(0, 2), plain(2, 1))
    assert len(after.ops) == 2


def test_transposed_constant_is_restored_for_other_readers():
    b = GraphBuilder()
    w = weight(b, (2, 3, 4))
    graph = b.build([b.reshape(w, (6, 4)), w])
    after = same(graph, transpose_constant(graph, w, (2, 0, 1)))
    assert [op.name for op in after.ops] == ["generic", "reshape"]


def test_transpose_of_something_else_is_refused():
    b = GraphBuilder()
    x = b.input("x", (2, 3), F32)
    w = weight(b, (2, 3))
    graph = b.build([elementwise(b, "add", x, w)])
    with pytest.raises(VerificationError, match="not a constant"):
        transpose_constant(graph, x, (1, 0))
    with pytest.raises(VerificationError, match="not a constant"):
        transpose_constant(graph, w, (0, 0))


def test_matmul_helper_keeps_literals_out():
    b = GraphBuilder()
    x = b.input("x", (3, 4), F32)
    ones = b.constant("ones", Constant.of(np.ones((4, 2), np.float32)), (4, 2), F32)
    graph = b.build([matmul(b, x, ones)])
    after = same(graph, fold_constants(graph), random((3, 4)))
    (op,) = after.ops
    assert isinstance(op, Generic)
    assert op.body == call("mul", arg(0), Const(1.0, F32))
