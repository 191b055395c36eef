"""Every rule of the verifier refuses what it should, naming op and value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.ir_graphs import BOOL, F32, I64, affine, arg, call, const, elementwise, index, plain

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.errors import VerificationError
from mansard.ir import (
    Assert,
    Attention,
    Concat,
    Constant,
    Generic,
    Graph,
    GraphBuilder,
    IndexMap,
    Linear,
    Location,
    Op,
    Pad,
    Reshape,
    Scan,
    Scatter,
    Slice,
    Sort,
    TensorType,
    Value,
)
from mansard.ir.graph import State
from mansard.ir.scalar import Apply, Arg, Bitcast, Cast, Const, DimValue, Gather, Index, Scalar
from mansard.ir.shapes import same_dim
from mansard.ir.verify import verify

S = dims.symbol(Dim("s", 2, 64, 2))


def value(name: str, *shape, dtype: DType = F32) -> Value:
    return Value(name, TensorType(tuple(shape), dtype))


X = value("x", 4, 6)
N = value("n", 4, 6, dtype=I64)
B = value("b", 4, 6, dtype=BOOL)
SYM = value("sym", S, 3)
IDS = value("ids", 5, 1, dtype=I64)
ROWS = value("rows", 5, 6)
Q, K, V = value("q", 2, 4, 5, 8), value("k", 2, 2, 7, 8), value("v", 2, 2, 7, 6)
INPUTS = (X, N, B, SYM, IDS, ROWS, Q, K, V)


def out(*shape, dtype: DType = F32) -> tuple[Value, ...]:
    return (value("out", *shape, dtype=dtype),)


def refused(op: Op, match: str) -> None:
    with pytest.raises(VerificationError, match=match):
        verify(Graph("main", INPUTS, (), (op,)))


def accepted(op: Op) -> None:
    verify(Graph("main", INPUTS, op.outputs, (op,)))


def body_refused(body: Scalar, match: str, inputs=(X, N, B), result: DType | None = None) -> None:
    maps = (plain(0, 1),) * len(inputs)
    refused(Generic(inputs, out(4, 6, dtype=result or body.dtype), (4, 6), maps, body), match)


NEG = call("neg", arg(0))
GOOD = Generic((X,), out(4, 6), (4, 6), (plain(0, 1),), NEG)


def test_good_ops_are_accepted():
    accepted(GOOD)
    accepted(Attention((Q, K, V), out(2, 4, 5, 6), 0.5))
    accepted(Scatter((X, IDS, ROWS), out(4, 6), "add"))
    accepted(Reshape((SYM,), out(dims.mul(S, 3))))


# Values -------------------------------------------------------------------------------------
def test_use_before_definition():
    first = elementwise_op(value("late", 4, 6), "early")
    second = elementwise_op(X, "late")
    late = replace(first, inputs=second.outputs)
    with pytest.raises(VerificationError, match="%late is used before it is defined"):
        verify(Graph("main", (X,), (), (late, second)))


def elementwise_op(x: Value, name: str) -> Generic:
    return Generic((x,), (value(name, 4, 6),), (4, 6), (plain(0, 1),), NEG)


def test_names_and_definitions_are_unique():
    with pytest.raises(VerificationError, match="two values are named %x"):
        verify(Graph("main", (X, value("x", 3)), (), ()))
    with pytest.raises(VerificationError, match="%out is defined twice"):
        verify(Graph("main", (X,), (), (GOOD, GOOD)))
    with pytest.raises(VerificationError, match="%x is defined twice"):
        verify(Graph("main", (X,), (), (), {X: Constant.of(np.zeros((4, 6), np.float32))}))


def test_ends_are_defined():
    with pytest.raises(VerificationError, match="output %out is not defined"):
        verify(Graph("main", (X,), GOOD.outputs, ()))
    with pytest.raises(VerificationError, match="1 outputs have 2 names"):
        verify(Graph("main", (X,), (X,), (), output_names=("a", "b")))
    with pytest.raises(VerificationError, match="final value %out of state %x"):
        verify(Graph("main", (), (), (), states=(State(X, GOOD.output),)))
    with pytest.raises(VerificationError, match=r"%n is i64, not f32"):
        verify(Graph("main", (N,), (), (), states=(State(X, N),)))


def test_symbols():
    other = dims.symbol(Dim("s", 1, 8))
    with pytest.raises(VerificationError, match="was stated before"):
        verify(Graph("main", (SYM, value("y", other)), (), ()))
    free = dims.symbol(Dim("t"))
    fill = Generic((), out(free), (free,), (), const(0.0))
    refused(fill, "uses t|uses Dim")
    body_refused(DimValue(free), "no input or state binds", (), I64)


def test_error_names_op_and_location():
    bad = replace(GOOD, outputs=out(4, 7), location=Location("model.py:3"))
    refused(bad, r"graph 'main', op generic \(%out\) from model.py:3: %out has type 4x7xf32")


def test_dims_equal_for_every_value_of_the_symbols():
    half = dims.floordiv(S, 2)
    assert same_dim(dims.mul(half, 2), S)  # s is even
    assert not same_dim(half, S)
    t = dims.symbol(Dim("t", 2, 64, 2))
    assert not same_dim(dims.add(S, dims.mul(t, 2)), dims.add(t, dims.mul(S, 2)))
    assert not same_dim(3, 4)


# Generic ------------------------------------------------------------------------------------
def test_generic_maps():
    refused(replace(GOOD, maps=()), "0 index maps for 1 operands")
    refused(replace(GOOD, maps=(plain(0),)), "has 1 results")
    refused(replace(GOOD, maps=(plain(0, 2),)), "outside the 2 dims")
    refused(replace(GOOD, maps=(None,)), "has no index map")
    backwards = IndexMap((Linear(((1, 1), (0, 1))), Linear.dim(1)))
    refused(replace(GOOD, maps=(backwards,)), "canonical form")
    refused(replace(GOOD, maps=(affine(({0: 1}, 1), ({1: 1}, 0)),)), r"reads 1 to 4 of a dim of 4")
    refused(replace(GOOD, maps=(affine(({0: -1}, 2), ({1: 1}, 0)),)), r"reads -1 to 2 of a dim of 4")


def test_generic_shapes_and_types():
    refused(replace(GOOD, outputs=out(4)), "no combiner|has reduced dims and combiner None")
    refused(replace(GOOD, outputs=out(4, 6, 1)), "rank 3")
    refused(replace(GOOD, outputs=out(4, 5)), "shape must be")
    refused(replace(GOOD, outputs=out(4, 6, dtype=I64)), "is i64, not f32")
    refused(replace(GOOD, outputs=(*out(4, 6), value("more", 4, 6))), "2 results, not 1")


def test_generic_combiners():
    total = Generic((X,), out(4), (4, 6), (plain(0, 1),), arg(0), "add")
    accepted(total)
    refused(replace(total, combiner="sum"), "combiner 'sum'")
    refused(replace(GOOD, combiner="add"), "no reduced dim")
    refused(replace(total, combiner="and"), "does not take f32")
    refused(replace(total, combiner="argmax"), "is f32, not i64")
    accepted(replace(total, combiner="argmax", outputs=out(4, dtype=I64)))
    refused(replace(total, combiner="argmax", outputs=out(dtype=I64)), "2 reduced dims, not 1")
    flags = Generic((B,), out(4, dtype=BOOL), (4, 6), (plain(0, 1),), arg(0, BOOL), "add")
    refused(flags, "does not take bool")
    accepted(replace(flags, combiner="or"))


# Bodies -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "match"),
    [
        (arg(3), "operand 3 of 3"),
        (arg(0, I64), "reads %x as i64, it is f32"),
        (Index(2), "dim 2 of 2"),
        (Index(0, F32), "an index is f32"),
        (DimValue(3, F32), "an index is f32"),
        (Gather(0, (Index(0),), F32), "rank 2 has 1 indices"),
        (Gather(0, (Index(0), Cast(Index(0), DType.I32)), F32), "is not i64"),
        (Gather(1, (Index(0), Index(1)), F32), "reads %n as f32"),
        (const(True, I64), r"True \(bool\) is not a literal of i64"),
        (const(1, BOOL), "is not a literal of bool"),
        (const(1.5, I64), "is not a literal of i64"),
        (const(300, DType.U8), "is not a literal of u8"),
        (const(8, DType.I4), "is not a literal of i4"),
        (const(-1, DType.U8), "is not a literal of u8"),
        (const(True, F32), "is not a literal of f32"),
        (Bitcast(arg(0), I64), "bitcast from f32 to i64"),
        (Apply("sinus", (arg(0),), F32), "'sinus' is not a scalar op"),
        (Apply("add", (arg(0),), F32), "1 arguments, not 2"),
        (Apply("neg", (arg(0), arg(0)), F32), "2 arguments, not 1"),
        (Apply("select", (arg(2, BOOL), arg(0)), F32), "2 arguments, not 3"),
        (Apply("select", (arg(0), arg(0), arg(0)), F32), "condition of a select is f32"),
        (Apply("add", (arg(0), arg(1, I64)), F32), "arguments of types"),
        (Apply("add", (arg(0), arg(0)), I64), "add of f32 is typed i64"),
        (Apply("lt", (arg(0), arg(0)), F32), "lt of f32 is typed f32"),
        (Apply("isnan", (arg(0),), F32), "isnan of f32 is typed f32"),
        (call("exp", arg(1, I64)), "exp does not take i64"),
        (call("and", arg(0), arg(0)), "and does not take f32"),
        (call("shl", arg(0), arg(0)), "shl does not take f32"),
        (call("add", arg(2, BOOL), arg(2, BOOL)), "add does not take bool"),
    ],
)
def test_bodies(body, match):
    body_refused(body, match)


@pytest.mark.parametrize(
    "body", [Const(1, F32), Const(255, DType.U8), Const(-8, DType.I4), call("eq", arg(2, BOOL), arg(2, BOOL)),
             call("select", arg(2, BOOL), arg(2, BOOL), arg(2, BOOL)), call("not", arg(1, I64)),
             Gather(0, (index(0), index(1)), F32), Arg(1, I64)],
)  # fmt: skip
def test_good_bodies(body):
    maps = (plain(0, 1),) * 3
    accepted(Generic((X, N, B), out(4, 6, dtype=body.dtype), (4, 6), maps, body))


# Other ops ----------------------------------------------------------------------------------
def test_reshape():
    accepted(Reshape((X,), out(24)))
    refused(Reshape((X,), out(23)), "24 elements")
    refused(Reshape((X,), out(24, dtype=I64)), "%x is f32, %out is i64")
    refused(Reshape((SYM,), out(S, 4)), "elements")


def test_slice():
    good = Slice((X,), out(2, 3), (1, 0), (2, 2))
    accepted(good)
    refused(replace(good, offsets=(1,)), "offsets has 1 entries")
    refused(replace(good, strides=(0, 1)), "stride 0 is not positive")
    refused(replace(good, offsets=(2, 0)), "reads 2 to 4 of a dim of 4")
    refused(replace(good, offsets=(-1, 0)), "reads -1")
    refused(replace(good, outputs=out(2, 3, dtype=I64)), "%out is i64")


def test_concat():
    accepted(Concat((X, X), out(8, 6), 0))
    refused(Concat((X, X), out(8, 6), 1), "shape must be")
    refused(Concat((X, X), out(8, 6), 2), "axis 2 is not a dim")
    refused(Concat((X, SYM), out(8, 6), 0), "%sym has type")
    refused(Concat((X, Q), out(8, 6), 0), "rank 4")
    refused(Concat((), out(8, 6), 0), "no operand")


def test_pad():
    good = Pad((X,), out(6, 6), (1, 0), (1, 0), 0.0)
    accepted(good)
    refused(replace(good, low=(1,)), "low has 1 entries")
    refused(replace(good, low=(-1, 0)), "padding -1 is negative")
    refused(replace(good, outputs=out(7, 6)), "shape must be")
    refused(replace(good, value=True), "not a literal of f32")


def test_scatter():
    good = Scatter((X, IDS, ROWS), out(4, 6))
    refused(replace(good, combiner="and"), "combiner 'and'")
    refused(replace(good, inputs=(X, N, ROWS)), "6 columns")
    refused(replace(good, inputs=(X, X, ROWS)), "not NxKxi64")
    refused(replace(good, inputs=(X, IDS, X)), "%x has type")
    refused(replace(good, outputs=out(4, 5)), "%out has type")
    refused(replace(good, inputs=(X, IDS)), "2 operands, not 3")


def test_sort_and_scan():
    order = value("order", 4, 6, dtype=I64)
    good = Sort((X,), (*out(4, 6), order), 1)
    accepted(good)
    refused(replace(good, axis=-1), "axis -1")
    refused(replace(good, outputs=out(4, 6)), "1 results, not 2")
    refused(replace(good, limit=7), "limit 7")
    refused(replace(good, limit=2), "shape must be")
    accepted(replace(good, limit=2, outputs=(*out(4, 2), value("order", 4, 2, dtype=I64))))
    running = Scan((X,), out(4, 6), 0)
    accepted(running)
    refused(replace(running, combiner="and"), "combiner 'and'")
    refused(replace(running, axis=2), "axis 2")
    refused(Scan((B,), out(4, 6, dtype=BOOL), 0), "is bool")


def test_attention():
    good = Attention((Q, K, V), out(2, 4, 5, 6), 0.5)
    refused(replace(good, inputs=(Q, K)), "2 operands, not 3 or 4")
    refused(replace(good, inputs=(X, K, V)), "rank 2, not 4")
    refused(replace(good, inputs=(Q, Q, V)), "%v has type")
    refused(replace(good, outputs=out(2, 4, 5, 8)), "shape must be")
    refused(replace(good, softcap=0.0), "softcap 0.0 is not positive")
    three = value("three", 2, 3, 5, 8)
    with pytest.raises(VerificationError, match="3 query heads are not a multiple of 2"):
        verify(Graph("main", (three, K, V), (), (Attention((three, K, V), out(2, 3, 5, 6), 0.5),)))

    def with_mask(mask: Value) -> None:
        verify(Graph("main", (Q, K, V, mask), (), (replace(good, inputs=(Q, K, V, mask)),)))

    with_mask(value("m", 5, 7, dtype=BOOL))
    with_mask(value("m", 1, 4, 1, 7))
    with pytest.raises(VerificationError, match="does not broadcast"):
        with_mask(value("m", 7, 5))
    with pytest.raises(VerificationError, match="not bool or float"):
        with_mask(value("m", 5, 7, dtype=I64))
    with pytest.raises(VerificationError, match="more than 4"):
        with_mask(value("m", 1, 1, 1, 5, 7))


def test_assert_and_unknown_ops():
    accepted(Assert((B,), (), "holds"))
    refused(Assert((X,), (), "holds"), "%x is f32, not bool")
    refused(Op((X,), out(4, 6)), "is not an op of the Graph IR")


def test_builder_verifies():
    b = GraphBuilder()
    x = b.input("x", (4, 6), F32)
    y = elementwise(b, "neg", x)
    b.append(Reshape((y,), (b.value("r", (5,), F32),)))
    with pytest.raises(VerificationError, match="24 elements"):
        b.build([y])
