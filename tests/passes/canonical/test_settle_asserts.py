"""Asserts: dropped where they always hold, errors where they never do, reduced where they are large."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.ir_graphs import BOOL, F32, I64, arg, call, const, elementwise, index, plain

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.errors import CompileError, IndexOutOfRangeError, InputError, ModelAssertionError
from mansard.ir import Assert, Constant, Graph, GraphBuilder, Value
from mansard.ir.interpreter.graph import interpret
from mansard.ir.parser import parse_graph
from mansard.ir.printer import print_graph
from mansard.ir.scalar import Cast
from mansard.passes.canonical.settle_asserts import READ_ELEMENTS, drop_index_asserts, settle_asserts


def asserts(graph: Graph) -> list[Assert]:
    return [op for op in graph.ops if isinstance(op, Assert)]


def checked(b: GraphBuilder, value: Value, low: int, high: int) -> Graph:
    b.assert_indices(value, "embedding", low, high)
    return b.build([])


@pytest.mark.parametrize(("high", "left"), [(9, 1), (10, 0), (64, 0)])
def test_an_affine_range_is_proven(high: int, left: int) -> None:
    b = GraphBuilder()
    positions = b.generic([], [], (8,), call("add", index(0), const(2, I64)))
    assert len(asserts(settle_asserts(checked(b, positions, 0, high)))) == left


def test_a_symbolic_range_is_proven_against_a_symbolic_size() -> None:
    s = dims.symbol(Dim("s", 1, 512))
    for size, left in ((s, 0), (512, 0), (511, 1), (dims.add(s, -1), 1)):
        b = GraphBuilder()
        b.input("x", (s,), F32)
        positions = b.generic([], [], (s,), index(0))
        b.assert_indices(positions, "embedding", 0, size)
        assert len(asserts(settle_asserts(b.build([])))) == left


def test_ranges_follow_operands_reshapes_extremes_and_sorts() -> None:
    for make, high in (
        (lambda b, x: b.generic([x], [plain(0, 1)], (4, 16), arg(0), reduced=1, combiner="argmax"), 16),
        (lambda b, x: b.sort(x, 1)[1], 16),
        (lambda b, x: b.reshape(b.sort(x, 1)[1], (64,)), 16),
    ):
        for limit, left in ((high, 0), (high - 1, 1)):
            b = GraphBuilder()
            value = make(b, b.input("x", (4, 16), F32))
            shifted = b.generic(
                [value],
                [plain(*range(value.type.rank))],
                value.type.shape,
                call("add", arg(0, I64), const(3, I64)),
            )
            assert len(asserts(settle_asserts(checked(b, value, 0, limit)))) == left
            assert len(asserts(settle_asserts(checked(b, shifted, 0, limit + 3)))) <= 1 + left


def test_an_input_is_asserted_itself() -> None:
    b = GraphBuilder()
    x = b.input("x", (64, 512), DType.I32)
    wide = b.generic([x], [plain(0, 1)], (64, 512), Cast(arg(0, DType.I32), I64))
    (check,) = asserts(settle_asserts(checked(b, b.reshape(wide, (64 * 512,)), 0, 7)))
    assert check.inputs == (x,)
    narrowed = GraphBuilder()
    x = narrowed.input("x", (64, 512), I64)
    other = narrowed.generic([x], [plain(0, 1)], (64, 512), Cast(arg(0, I64), DType.I32))
    assert all(check.inputs != (x,) for check in asserts(settle_asserts(checked(narrowed, other, 0, 7))))


@pytest.mark.parametrize(("low", "high"), [(0, 100), (-100, 100), (5, 60)])
@pytest.mark.parametrize("dtype", [I64, DType.I32])
def test_many_computed_indices_are_reduced_to_the_extremes(low: int, high: int, dtype: DType) -> None:
    b = GraphBuilder()
    x = b.input("x", (READ_ELEMENTS + 1,), dtype)
    graph = checked(b, elementwise(b, "neg", x), low, high)
    after = settle_asserts(graph)
    assert [check.inputs[0].type.shape for check in asserts(after)] == [(), ()]
    largest = np.iinfo(dtype.numpy).max
    for bad in (low - 1, high, -largest, largest - 200):
        data = np.full(READ_ELEMENTS + 1, -max(low, 0), dtype.numpy)  # the op under test negates it
        data[17] = -bad
        for program in (graph, after, parse_graph(print_graph(after))):
            with pytest.raises(IndexOutOfRangeError, match=f"valid are {low} to {high - 1}") as caught:
                interpret(program, [data])
            assert caught.value.index == bad
    for good in (low, high - 1):
        data = np.full(READ_ELEMENTS + 1, -good, dtype.numpy)
        interpret(graph, [data]), interpret(after, [data])


def test_asserts_of_constants_hold_or_are_errors() -> None:
    def of(array: np.ndarray[Any, Any], *limits: int) -> Graph:
        b = GraphBuilder()
        dtype = BOOL if array.dtype == bool else I64
        value = b.constant("c", Constant.of(array), array.shape, dtype)
        if limits:
            return checked(b, value, *limits)
        b.assert_true(value, "must hold")
        return b.build([])

    assert not settle_asserts(of(np.array([True, True]))).ops
    assert not settle_asserts(of(np.array([0, 4]), 0, 5)).ops
    with pytest.raises(CompileError, match="every call of the model would fail: must hold"):
        settle_asserts(of(np.array([True, False])))
    with pytest.raises(CompileError, match="embedding: index 5 is out of range; valid are 0 to 4"):
        settle_asserts(of(np.array([0, 5]), 0, 5))


def test_equal_asserts_are_one_and_the_option_drops_those_of_indices() -> None:
    b = GraphBuilder()
    x, ok = b.input("x", (4,), I64), b.input("ok", (), BOOL)
    b.assert_indices(x, "embedding", 0, 5)
    b.assert_indices(x, "embedding", 0, 5)
    b.assert_indices(x, "embedding", 0, 4)
    b.assert_true(ok, "must hold")
    graph = b.build([])
    assert len(asserts(settle_asserts(graph))) == 3
    assert [check.message for check in asserts(drop_index_asserts(graph))] == ["must hold"]


def test_errors_are_errors_of_inputs() -> None:
    assert issubclass(ModelAssertionError, InputError) and issubclass(IndexOutOfRangeError, InputError)
    assert "the dim is empty" in str(IndexOutOfRangeError("gather", 0, 0, 0))
