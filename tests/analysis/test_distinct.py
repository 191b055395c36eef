"""Index tensors whose rows are known to be pairwise different."""

import numpy as np
import pytest

from mansard import dims
from mansard.analysis.distinct import distinct_rows
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import Constant, GraphBuilder, IndexMap, Linear
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index

I64 = DType.I64
S = dims.symbol(Dim("s", 1, 64))


def _plus(a, b):
    return Apply("add", (a, b), I64)


def _column(number, then, otherwise):
    test = Apply("eq", (Index(2), Const(number, I64)), DType.BOOL)
    return Apply("select", (test, then, otherwise), I64)


def _where(*columns):
    body = columns[-1]
    for number in reversed(range(len(columns) - 1)):
        body = _column(number, columns[number], body)
    return body


def _distinct(body, rows=S):
    b = GraphBuilder()
    position, table = b.input("position", (), I64), b.input("table", (rows,), I64)
    maps = [IndexMap(), IndexMap((Linear.dim(1),))]
    where = b.generic([position, table], maps, (8, rows, 3), body)
    where = b.reshape(where, (rows * 8, 3))
    graph = b.build([where])
    return distinct_rows(where, graph.producers())


ZERO, HEAD, ROW, POSITION = Const(0, I64), Index(0), Index(1), Arg(0, I64)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (_where(ZERO, HEAD, _plus(ROW, POSITION)), True),
        (_where(ZERO, HEAD, _plus(POSITION, Apply("mul", (ROW, Const(2, I64)), I64))), True),
        (_where(Arg(1, I64), HEAD, _plus(ROW, POSITION)), True),  # a column that is not known does no harm
        (_where(ZERO, HEAD, POSITION), False),
        (_where(ZERO, HEAD, Arg(1, I64)), False),  # a table's entries may be equal
        (_where(ZERO, ZERO, _plus(_plus(HEAD, ROW), POSITION)), False),  # 1 + 0 and 0 + 1
        (_where(ZERO, HEAD, Apply("mul", (ROW, POSITION), I64)), False),  # the position may be 0
        (_where(ZERO, HEAD, Apply("floordiv", (ROW, Const(2, I64)), I64)), False),
    ],
)
def test_columns_that_tell_rows_apart(body, expected):
    assert _distinct(body) is expected


def test_positions_computed_by_another_op_are_followed():
    b = GraphBuilder()
    position, _ = b.input("position", (), I64), b.input("token", (S,), I64)
    places = b.generic([position], [IndexMap()], (S,), _plus(Index(0), Arg(0, I64)))
    where = b.generic([places], [IndexMap((Linear.dim(0),))], (S, 1), Arg(0, I64))
    assert distinct_rows(where, b.build([where]).producers())


def test_a_single_row_is_distinct_whatever_it_is():
    b = GraphBuilder()
    where = b.input("where", (1, 4), I64)
    assert distinct_rows(where, {})


@pytest.mark.parametrize(("width", "expected"), [(16, True), (15, False)])
def test_constant_columns_are_compared(width, expected):
    """Elements (head, column) of one position, as frontends spell out what a mask or a list selects."""
    b = GraphBuilder()
    position = b.input("position", (1,), I64)
    numbers = np.arange(8 * 16)
    heads, columns = (
        b.constant(name, Constant.of(array[:, None], name), (128, 1), I64)
        for name, array in (("heads", numbers // 16), ("columns", numbers % width))
    )
    column = IndexMap((Linear.dim(0), Linear()))
    two = Apply("eq", (Index(1), Const(1, I64)), DType.BOOL)
    body = Apply("select", (two, Arg(1, I64), Arg(2, I64)), I64)
    zero = Apply("eq", (Index(1), Const(0, I64)), DType.BOOL)
    body = Apply("select", (zero, Arg(0, I64), body), I64)
    maps = [column, IndexMap((Linear(),)), column]
    where = b.generic([heads, position, columns], maps, (128, 3), body)
    graph = b.build([where])
    assert distinct_rows(where, graph.producers(), graph.constants) is expected


def test_columns_that_a_join_gathers_and_wraps_are_compared():
    """What `index_copy` becomes: columns joined by gathers, negative indices counted from the end."""
    b = GraphBuilder()
    position = b.input("position", (1,), I64)
    numbers = np.arange(8 * 16)
    heads = b.constant("heads", Constant.of(numbers[:, None] // 16, "heads"), (128, 1), I64)
    columns = b.constant("columns", Constant.of(numbers[:, None] % 16, "columns"), (128, 1), I64)
    middle = Apply("select", (_below(2), Arg(1, I64), Gather(2, (Index(0), Index(1)), I64)), I64)
    body = Apply("select", (_below(1), Gather(0, (Index(0), Index(1)), I64), middle), I64)
    joined = b.generic([heads, position, columns], [None, IndexMap((Linear(),)), None], (128, 3), body)
    negative = Apply("lt", (Arg(0, I64), Const(0, I64)), DType.BOOL)
    wrapped = Apply("select", (negative, _plus(Arg(0, I64), Const(64, I64)), Arg(0, I64)), I64)
    where = b.generic([joined], [IndexMap.identity(2)], (128, 3), wrapped)
    graph = b.build([where])
    assert distinct_rows(where, graph.producers(), graph.constants)
    assert not distinct_rows(where, graph.producers())  # without the constants' values


def _below(end):
    return Apply("lt", (Index(1), Const(end, I64)), DType.BOOL)
