"""Scalar simplification: affine reasoning, each rule, and the pass over bodies."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ir_graphs import BOOL, F32, I64, arg, call, const, index, plain, random

from mansard import dims
from mansard.analysis.affine import Affine
from mansard.analysis.linear import delinearize, divide, to_scalar, within
from mansard.analysis.structure import body_key, share
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import Generic, GraphBuilder, Linear
from mansard.ir.interpreter.graph import interpret
from mansard.ir.parser import parse_graph
from mansard.ir.scalar import Apply, Cast, Const, DimValue, Index, Scalar, count_ops, walk
from mansard.passes.canonical.scalar_rules import holds
from mansard.passes.canonical.simplify import simplify

S = dims.symbol(Dim("s", 1, 64))
EXTENTS = (8, 4, S)
I32 = DType.I32


def simplified(body: Scalar, extents=EXTENTS, *dtypes: DType) -> Scalar:
    """The body of a one-op graph after the pass, over operands read as a whole."""
    b = GraphBuilder()
    b.input("s", (S,), F32)
    inputs = [b.input(f"x{i}", extents, t) for i, t in enumerate(dtypes)]
    out = b.generic(inputs, [plain(*range(len(extents)))] * len(inputs), extents, body)
    (op,) = simplify(b.build([out])).ops
    assert isinstance(op, Generic)
    return op.body


def only(body: Scalar, *dtypes: DType) -> Scalar:
    return simplified(body, EXTENTS, *(dtypes or (F32, F32)))


X, Y = arg(0), arg(1)
INT_X, INT_Y = arg(0, I32), arg(1, I32)
B_X, B_Y = arg(0, BOOL), arg(1, BOOL)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (call("mul", X, const(1.0)), X),
        (call("mul", const(1.0), X), X),
        (call("mul", X, const(-1.0)), call("neg", X)),
        (call("mul", Cast(Index(0), F32), const(0.0)), const(0.0)),
        (call("div", X, const(1.0)), X),
        (call("div", X, const(4.0)), call("mul", X, const(0.25))),
        (call("div", X, const(0.0)), call("mul", X, const(float("inf")))),
        (call("div", X, const(-0.0)), call("mul", X, const(-float("inf")))),
        (call("add", X, const(-0.0)), X),
        (call("sub", X, const(0.0)), X),
        (call("neg", call("neg", X)), X),
        (call("abs", call("neg", X)), call("abs", X)),
        (call("pow", X, const(2.0)), call("mul", X, X)),
        (call("pow", X, const(3.0)), call("mul", call("mul", X, X), X)),
        (call("pow", X, const(0.5)), call("sqrt", X)),
        (call("pow", X, const(-0.5)), call("rsqrt", X)),
        (call("pow", X, const(-1.0)), call("div", const(1.0), X)),
        (call("pow", X, const(0.0)), const(1.0)),
        (call("max", X, X), X),
        (call("add", const(1.5), const(2.0)), const(3.5)),
        (call("select", const(True, BOOL), X, const(2.0)), X),
        (call("select", const(False, BOOL), const(2.0), X), X),
        (call("select", call("lt", X, const(0.0)), X, X), X),
        (call("exp", const(0.0)), const(1.0)),
    ],
)
def test_float_rules(before, after):
    assert only(before, F32) == after


@pytest.mark.parametrize(
    "body",
    [
        call("mul", X, const(0.0)),  # NaN and infinities
        call("add", X, const(0.0)),  # -0.0
        call("sub", const(0.0), X),
        call("div", X, const(3.0)),
        call("sub", X, X),
        call("eq", X, X),
        call("pow", X, const(0.3)),
    ],
)
def test_float_bodies_that_must_stay(body):
    assert only(body, F32) == body


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (call("add", INT_X, const(0, I32)), INT_X),
        (call("sub", INT_X, INT_X), const(0, I32)),
        (call("mul", INT_X, const(0, I32)), const(0, I32)),
        (call("mul", INT_X, const(1, I32)), INT_X),
        (call("div", INT_X, const(1, I32)), INT_X),
        (call("rem", INT_X, const(1, I32)), const(0, I32)),
        (call("and", INT_X, const(-1, I32)), INT_X),
        (call("and", INT_X, const(0, I32)), const(0, I32)),
        (call("or", INT_X, const(0, I32)), INT_X),
        (call("shl", INT_X, const(0, I32)), INT_X),
        (call("pow", INT_X, const(2, I32)), call("mul", INT_X, INT_X)),
        (call("div", const(-7, I32), const(2, I32)), const(-3, I32)),
    ],
)
def test_integer_rules(before, after):
    assert only(before, I32) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (call("eq", B_X, const(True, BOOL)), B_X),
        (call("ne", B_X, const(True, BOOL)), call("not", B_X)),
        (call("eq", const(False, BOOL), B_X), call("not", B_X)),
        (call("not", call("not", B_X)), B_X),
        (call("and", B_X, const(True, BOOL)), B_X),
        (call("or", const(True, BOOL), B_X), const(True, BOOL)),
        (call("select", B_X, const(True, BOOL), const(False, BOOL)), B_X),
        (
            call("select", call("not", B_X), const(1.0), const(2.0)),
            call("select", B_X, const(2.0), const(1.0)),
        ),
        (call("ne", Cast(B_X, I32), const(0, I32)), B_X),
    ],
)
def test_bool_rules(before, after):
    assert only(before, BOOL) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Cast(X, F32), X),
        (Cast(Cast(X, DType.F64), F32), X),
        (Cast(Cast(X, DType.F64), DType.F16), Cast(X, DType.F16)),
        (Cast(Cast(X, DType.F16), F32), Cast(Cast(X, DType.F16), F32)),  # rounds
        (Cast(const(2.5), I64), const(2, I64)),
    ],
)
def test_float_casts(before, after):
    assert only(before, F32) == after


def test_integer_casts():
    assert only(Cast(Cast(INT_X, I64), DType.I8), I32) == Cast(INT_X, DType.I8)
    wraps = Cast(Cast(INT_X, DType.I8), I32)
    assert only(wraps, I32) == wraps
    # Through a float the values saturate, which a direct cast would not.
    saturates = Cast(Cast(INT_X, DType.F64), DType.I8)
    assert only(saturates, I32) == saturates
    assert only(Cast(Cast(arg(0, DType.I8), F32), DType.I8), DType.I8) == arg(0, DType.I8)


def test_holds_is_right_for_every_pair():
    for source in DType:
        for target in DType:
            if not holds(target, source) or source is target:
                continue
            values = random((64,), source) if source.is_float else np.array(sorted({
                v for k in range(source.bits) for v in (2**k - 1, 2**k, -(2**k))
                if source.is_int and -(2 ** (source.bits - 1)) * source.is_signed <= v
                < 2 ** (source.bits - source.is_signed)
            } | {0, 1})).astype(source.numpy)  # fmt: skip
            there = values.astype(target.numpy)
            np.testing.assert_array_equal(there.astype(source.numpy), values, f"{source} {target}")


# Bounds -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        (call("ge", Index(0), const(0, I64)), True),
        (call("lt", Index(0), const(8, I64)), True),
        (call("eq", Index(1), const(7, I64)), False),
        (call("lt", DimValue(S), const(0, I64)), False),
        (call("lt", Index(2), DimValue(S)), True),
        (call("lt", Index(2), const(64, I64)), True),
        (call("le", index(0, 1), const(8, I64)), True),
        (call("ne", index(0, 8), Index(0)), True),
        (call("gt", call("add", Index(2), DimValue(S)), Index(2)), True),
        (call("ge", call("rem", Cast(INT_X, I64), const(5, I64)), const(5, I64)), None),
        (call("lt", call("min", Cast(INT_X, I64), const(5, I64)), const(6, I64)), True),
        (call("lt", Index(0), Index(1)), None),
        (call("lt", Index(2), const(8, I64)), None),
        (call("eq", DimValue(S), const(1, I64)), None),
    ],
)
def test_comparisons_decided_by_bounds(test, outcome):
    got = only(test, I32)
    assert got == (test if outcome is None else const(outcome, BOOL))


def test_index_arithmetic_becomes_canonical():
    back = call("sub", call("add", Index(0), const(3, I64)), const(3, I64))
    assert only(back) == Index(0)
    narrow = Cast(call("add", Cast(Index(0), I32), Const(1, I32)), I64)
    linear = Affine(EXTENTS).linear(narrow)
    assert linear == Linear.dim(0, 1, 1)


def test_division_of_affine_indices():
    flat = call("add", call("mul", Index(0), const(4, I64)), Index(1))
    assert only(call("floordiv", flat, const(4, I64))) == Index(0)
    assert only(call("rem", flat, const(4, I64))) == Index(1)
    symbolic = call("add", call("mul", Index(0), DimValue(S)), Index(2))
    assert only(call("div", symbolic, DimValue(S))) == Index(0)
    assert only(call("rem", symbolic, DimValue(S))) == Index(2)
    # d0 reaches past the divisor.
    carry = call("floordiv", call("add", call("mul", Index(1), const(4, I64)), Index(0)), const(4, I64))
    assert Affine(EXTENTS).linear(carry) is None


def test_broadcast_select_of_a_symbolic_dim_is_its_index():
    body = call("select", call("eq", DimValue(S), const(1, I64)), const(0, I64), Index(2))
    assert only(body) == Index(2)
    other = call("select", call("eq", DimValue(S), const(1, I64)), const(0, I64), Index(0))
    assert only(other) == other


def chosen(test: Scalar, then: Scalar, other: Scalar) -> Scalar:
    return call("select", test, then, other)


def num(value: int) -> Const:
    return const(value, I64)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (chosen(call("lt", Index(0), num(5)), call("min", Index(0), num(4)), num(9)),
         chosen(call("lt", Index(0), num(5)), Index(0), num(9))),
        (chosen(call("lt", Index(0), num(5)), num(9), call("max", index(0, -5), num(0))),
         chosen(call("lt", Index(0), num(5)), num(9), index(0, -5))),
        (chosen(call("ge", num(4), Index(0)), call("min", Index(0), num(4)), num(9)),
         chosen(call("ge", num(4), Index(0)), Index(0), num(9))),
        (chosen(call("eq", Index(0), num(2)), Index(0), num(9)),
         chosen(call("eq", Index(0), num(2)), num(2), num(9))),
        (chosen(call("lt", Index(2), DimValue(S)), num(1), num(2)), num(1)),
        # Consecutive positions differ by one, the first from the one before it too.
        (call("sub", Index(0), chosen(call("lt", Index(0), num(1)), num(-1), index(0, -1))), num(1)),
        (call("add", chosen(call("gt", Index(0), num(0)), num(3), index(0, 3)), num(1)), num(4)),
    ],
)  # fmt: skip
def test_branches_are_simplified_under_their_condition(before, after):
    assert only(before) == after


def test_branches_that_differ_stay():
    body = call("sub", Index(0), chosen(call("lt", Index(0), num(1)), num(-2), index(0, -1)))
    assert only(body) == body


def test_long_chains_of_selects_take_no_time():
    body: Scalar = num(0)
    for i in range(19, 0, -1):
        body = chosen(call("lt", Index(0), num(i)), call("max", index(0, 1 - i), num(0)), body)
    started = time.process_time()
    simplified(body, (40,))
    assert time.process_time() - started < 2


def test_index_of_a_dim_of_one_point():
    assert simplified(Cast(Index(1), F32), (4, 1)) == const(0.0)


def test_symbol_with_one_value_is_a_number():
    assert only(Cast(DimValue(7), I32)) == const(7, I32)


def test_delinearize():
    flat = Linear(((0, 12), (1, 3), (2, 1)))
    assert delinearize(flat, (5, 4, 3), (5, 4, 3)) == (Linear.dim(0), Linear.dim(1), Linear.dim(2))
    assert delinearize(flat, (5, 4, 3), (5, 12)) == (Linear.dim(0), Linear(((1, 3), (2, 1))))
    assert delinearize(flat, (5, 4, 3), (5, 1, 12)) == (Linear.dim(0), Linear(), Linear(((1, 3), (2, 1))))
    assert delinearize(flat, (5, 4, 3), (60,)) == (flat,)
    assert delinearize(flat, (5, 4, 3), (10, 6)) is None
    # A reversed read: 5 - d0 lies in one row of three or not.
    backwards = Linear(((0, -1),), 5)
    assert delinearize(backwards, (3,), (2, 3)) == (Linear((), 1), Linear(((0, -1),), 2))
    assert delinearize(backwards, (4,), (2, 3)) is None


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_divide_is_floor_division(data):
    extents = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    terms = tuple((d, data.draw(st.integers(-6, 12))) for d in range(len(extents)))
    linear = Linear(tuple(t for t in terms if t[1]), data.draw(st.integers(-10, 10)))
    divisor = data.draw(st.integers(1, 6))
    split = divide(linear, divisor, extents)
    if split is None:
        return
    for point in np.ndindex(*extents):
        value, q, r = (sum(c * point[d] for d, c in x.terms) + x.offset for x in (linear, *split))
        assert (q, r) == divmod(value, divisor)


def test_within_and_to_scalar():
    assert within(Linear.dim(0, 2, 1), (4,), 8)
    assert not within(Linear.dim(0, 2, 2), (4,), 8)
    assert not within(Linear.dim(0, 1, -1), (4,), 8)
    assert within(Linear.dim(0), (S,), S)
    assert not within(Linear.dim(0), (S,), 63)
    assert to_scalar(Linear.dim(0, 2, 1)) == call("add", index(0, times=2), const(1, I64))


# Sharing and operands -----------------------------------------------------------------------
def test_equal_subtrees_are_shared():
    def part() -> Scalar:
        return call("exp", call("neg", X))

    body = share(call("add", part(), part()))
    assert isinstance(body, Apply)
    assert body.args[0] is body.args[1]
    assert body_key(body) == body_key(call("add", part(), part()))
    assert body_key(body) != body_key(call("add", part(), call("exp", X)))


def test_deep_shared_bodies_stay_small_and_fast():
    # 2**60 paths: anything that follows every path would never end.
    body: Scalar = X
    for _ in range(60):
        body = call("add", body, body)
    assert len(list(walk(only(body, F32)))) == 61


def test_zero_and_minus_zero_are_different_literals():
    assert body_key(const(0.0)) != body_key(const(-0.0))
    assert body_key(const(float("nan"))) == body_key(const(float("nan")))


def test_unused_and_equal_operands_are_merged():
    b = GraphBuilder()
    x, y = b.input("x", (3, 4), F32), b.input("y", (3, 4), F32)
    maps = [plain(0, 1), plain(0, 1), plain(0, 1), plain(0, 1)]
    body = call("add", arg(0), call("mul", arg(2), call("select", const(True, BOOL), arg(3), arg(1))))
    graph = b.build([b.generic([x, y, x, x], maps, (3, 4), body)])
    after = simplify(graph)
    (op,) = after.ops
    assert isinstance(op, Generic)
    assert op.inputs == (x,)
    assert op.body == call("add", X, call("mul", X, X))
    arrays = [random((3, 4)), random((3, 4), seed=1)]
    np.testing.assert_array_equal(interpret(graph, arrays)[0], interpret(after, arrays)[0])


def test_nothing_to_do_gives_the_same_graph():
    b = GraphBuilder()
    x = b.input("x", (3,), F32)
    graph = b.build([b.generic([x], [plain(0)], (3,), call("exp", X))])
    assert simplify(graph) is graph


# Random bodies ------------------------------------------------------------------------------
def _float_body(draw, depth: int) -> Scalar:
    if depth == 0:
        leaves: list[Scalar] = [X, Y, const(0.0), const(-0.0), const(1.0), const(2.0), Cast(Index(0), F32)]
        return draw(st.sampled_from(leaves))
    kind = draw(st.sampled_from(["add", "sub", "mul", "div", "min", "max", "neg", "abs", "pow", "select"]))
    one = _float_body(draw, depth - 1)
    if kind in ("neg", "abs"):
        return call(kind, one)
    if kind == "pow":
        return call("pow", one, const(draw(st.sampled_from([0.0, 1.0, 2.0, 3.0, -1.0]))))
    if kind == "select":
        return call("select", _test(draw, depth - 1), one, _float_body(draw, depth - 1))
    return call(kind, one, _float_body(draw, depth - 1))


def _int_body(draw, depth: int) -> Scalar:
    if depth == 0:
        numbers = st.integers(-3, 9).map(lambda n: const(n, I64))
        leaves: list[Scalar] = [Index(0), Index(1), DimValue(S), Cast(Cast(Index(0), DType.I8), I64)]
        return draw(st.one_of(st.sampled_from(leaves), numbers))
    kind = draw(st.sampled_from(
        ["add", "sub", "mul", "div", "floordiv", "rem", "min", "max", "neg", "cast", "select", "select"]
    ))  # fmt: skip
    one = _int_body(draw, depth - 1)
    if kind == "select":
        return call("select", _test(draw, depth - 1), one, _int_body(draw, depth - 1))
    if kind == "neg":
        return call("neg", one)
    if kind == "cast":
        return Cast(Cast(one, draw(st.sampled_from([I32, DType.I8, DType.U8, F32]))), I64)
    return call(kind, one, _int_body(draw, depth - 1))


def _test(draw, depth: int) -> Scalar:
    kind = draw(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]))
    return call(kind, _int_body(draw, depth), _int_body(draw, depth))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_random_bodies_keep_their_value(data):
    draw = data.draw
    b = GraphBuilder()
    x, y = b.input("x", (6, 4, S), F32), b.input("y", (6, 4, S), F32)
    maps = [plain(0, 1, 2)] * 2
    outs = [b.generic([x, y], maps, (6, 4, S), _float_body(draw, 3)),
            b.generic([], [], (6, 4, S), _int_body(draw, 3)),
            b.generic([], [], (6, 4, S), _test(draw, 3))]  # fmt: skip
    graph = b.build(outs)
    after = simplify(graph)
    arrays = [random((6, 4, 5)), random((6, 4, 5), seed=1)]
    arrays[0][0, 0, :4] = [0.0, -0.0, np.inf, np.nan]
    for before_op, after_op in zip(graph.ops, after.ops, strict=True):
        assert isinstance(before_op, Generic)
        assert isinstance(after_op, Generic)
        assert count_ops(after_op.body) <= count_ops(before_op.body) + 2
    for old, new in zip(interpret(graph, arrays), interpret(after, arrays), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5)


@pytest.mark.parametrize("combiner", ["min", "max"])
def test_extremes_of_no_f8_are_no_numbers(combiner):
    """F8 has no infinity: what a reduction of no elements gives is NaN, read from nowhere."""
    graph = parse_graph(
        f"graph g\n  input %x: 0xf8\n  %m: f8 = generic (| d0:0) {combiner} {{%x[d0]}}\n  return %m\n"
    )
    (op,) = simplify(graph).ops
    assert op.inputs == () and op.combiner is None
    assert np.isnan(interpret(simplify(graph), [np.zeros(0, DType.F8.numpy)])[0].astype(np.float32))
