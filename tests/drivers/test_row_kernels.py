"""Elementwise and row kernels of the CPU in the shapes that get code of their own."""

import numpy as np
import pytest
from graph_runner import check
from graphs import F32, op

from mansard.dtypes import DType
from mansard.ir import GraphBuilder
from mansard.ir.scalar import Apply, Const, Gather, Index

RNG = np.random.default_rng(5)


def random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def number(value):
    return Const(value, DType.I64)


def below(dim, value):
    return Apply("lt", (Index(dim), number(value)), DType.BOOL)


def moved(dim, by):
    return op("add", Index(dim), number(by))


@pytest.mark.parametrize(("rows", "half"), [(7, 64), (5, 8), (3, 5), (1, 1), (40, 24)])
def test_halves_of_rows_that_change_places(rows, half):
    b = GraphBuilder()
    x = b.input("x", (rows, 2 * half), F32)
    upper = op("neg", Gather(0, (Index(0), moved(1, half)), F32))
    lower = Gather(0, (Index(0), moved(1, -half)), F32)
    y = b.generic([x], [None], (rows, 2 * half), Apply("select", (below(1, half), upper, lower), F32))
    check(b.build([y]), [random(rows, 2 * half)], "cpu")


@pytest.mark.parametrize("width", [70, 40])
def test_parts_of_a_row_from_three_places(width):
    b = GraphBuilder()
    x, y = b.input("x", (6, width), F32), b.input("y", (6, width), F32)
    first, rest = Gather(0, (Index(0), Index(1)), F32), Gather(1, (Index(0), moved(1, -17)), F32)
    middle = Apply("select", (below(1, 17), first, rest), F32)
    last = Apply("eq", (Index(1), number(width - 1)), DType.BOOL)
    body = Apply("select", (last, Const(3.0, F32), middle), F32)
    z = b.generic([x, y], [None, None], (6, width), body)
    check(b.build([z]), [random(6, width), random(6, width)], "cpu")
