"""Index tensors whose rows are known to be pairwise different."""

import pytest

from mansard import dims
from mansard.analysis.distinct import distinct_rows
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap, Linear
from mansard.ir.scalar import Apply, Arg, Const, Index

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
