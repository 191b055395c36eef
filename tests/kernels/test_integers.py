"""Integers at their extremes: every scalar op, reduction, scan and sort on every device, exactly as in the
interpreter."""

import numpy as np
import pytest
from support.graph_runner import compiled, outputs
from support.graphs import maps, matmul
from support.kernels.pairs import pairs

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.parser import parse_graph
from mansard.ir.scalar import Apply, Arg, Cast, Const, Index
from mansard.ir.scalar_ops import Domain, scalar_ops

pytestmark = pytest.mark.variants(2)

INTEGERS = (
    DType.U8, DType.U16, DType.U32, DType.U64, DType.I8, DType.I16, DType.I32, DType.I64,
)  # fmt: skip
# Of each signedness and width class one runs by default; `test_every_scalar_op` has every type.
SOME = [
    pytest.param(d, marks=[] if d in (DType.U16, DType.U32, DType.I8, DType.I64) else pytest.mark.slow)
    for d in INTEGERS
]


def on(device, dtype, default):
    """A type on a device, by default or as a slow variant."""
    marks = [pytest.mark.vulkan] if device == "vulkan" else []
    return pytest.param(device, dtype, marks=marks if default else [*marks, pytest.mark.slow])


def extremes(dtype):
    """Values around zero, around the ends of the type, and above what floats hold exactly."""
    info = np.iinfo(dtype.numpy)
    near = [-100, -33, -3, -2, -1, 0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 100]
    ends = [info.min, info.min + 1, info.max - 1, info.max]
    beyond = [sign * (2**power + 1) for power in (24, 53) for sign in (1, -1)]
    values = [v for v in (*near, *ends, *beyond) if info.min <= v <= info.max]
    return np.array(values, dtype.numpy)


def agree(graph, inputs, device):
    wanted = interpret(graph, inputs)
    with compiled(graph, device) as model:
        results = outputs(model, inputs)
    for value, result, expected in zip(graph.outputs, results, wanted, strict=True):
        np.testing.assert_array_equal(result, expected, err_msg=f"{value.name} on {device}")


# By default each type is on one of the devices.
@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        on(where, d, (where == "cpu") == (n % 2 == 0))
        for where in ("cpu", "vulkan")
        for n, d in enumerate(INTEGERS)
    ],
    indirect=["device"],
)
def test_every_scalar_op(device, dtype):
    """Division by zero, quotients that overflow, and shifts by any amount included."""
    b = GraphBuilder()
    size = len(extremes(dtype))
    x, y = b.input("x", (size, 1), dtype), b.input("y", (1, size), dtype)
    results = []
    for op in scalar_ops():
        if Domain.INT not in op.reference:
            continue
        args = tuple(Arg(i, dtype) for i in range(op.arity - op.conditional))
        if op.conditional:
            args = (Apply("lt", (args[0], args[1]), DType.BOOL), *args)
        body = Apply(op.name, args, op.result_dtype(dtype))
        used = [x, y][: op.arity - op.conditional]
        reads = [maps(0, None), maps(None, 1)][: len(used)]
        results.append(
            b.generic(used, reads, (size, size) if len(used) == 2 else (size, 1), body, name=op.name)
        )
    data = extremes(dtype)
    agree(b.build(results), [data[:, None].copy(), data[None, :].copy()], device)


LITERALS = {"cpu": (DType.I64,), "vulkan": (DType.U32, DType.I8)}
"""The types whose literals are tested by default, with 200 kernels each: one of each signedness and width
class. What is made of a literal is the same on every device, before code is emitted."""


@pytest.mark.parametrize(
    ("device", "dtype"),
    [on(where, d, d in LITERALS[where]) for where in LITERALS for d in INTEGERS],
    indirect=["device"],
)
def test_operands_that_are_literals(device, dtype):
    """Kernels treat a divisor, an amount or an exponent that they know in its own way."""
    b = GraphBuilder()
    size = len(extremes(dtype))
    x = b.input("x", (size,), dtype)
    results = []
    for name in ("div", "floordiv", "rem", "shl", "shr", "pow", "mul", "sub", "min", "max", "lt", "ge"):
        for literal in (-1, 0, 1, 2, 3, -3, dtype.bits - 1, dtype.bits, dtype.bits + 1):
            if literal < 0 and not dtype.is_signed:
                continue
            for args in ((Arg(0, dtype), Const(literal, dtype)), (Const(literal, dtype), Arg(0, dtype))):
                target = DType.BOOL if name in ("lt", "ge") else dtype
                title = f"{name}_{literal % 256}_{isinstance(args[0], Const)}"
                results.append(b.generic([x], [maps(0)], (size,), Apply(name, args, target), name=title))
    agree(b.build(results), [extremes(dtype)], device)


@pytest.mark.parametrize("dtype", [*SOME, DType.BOOL])
def test_conversions_to_every_integer(device, dtype):
    b = GraphBuilder()
    data = np.array([False, True, True]) if dtype is DType.BOOL else extremes(dtype)
    x = b.input("x", data.shape, dtype)
    results = [
        b.generic([x], [maps(0)], data.shape, Cast(Arg(0, dtype), target), name=f"to_{target.value}")
        for target in (*INTEGERS, DType.BOOL, DType.F32)
        if target is not dtype
    ]
    agree(b.build(results), [data], device)


@pytest.mark.parametrize("dtype", SOME)
def test_reductions_and_scans_wrap(device, dtype):
    b = GraphBuilder()
    data = np.stack([extremes(dtype), np.roll(extremes(dtype), 5)])
    x = b.input("x", data.shape, dtype)
    body, (rows, columns) = Arg(0, dtype), data.shape
    results = []
    for combiner in ("add", "mul", "min", "max", "and", "or", "argmin", "argmax"):
        results.append(b.generic([x], [maps(0, 1)], (rows, columns), body, reduced=1, combiner=combiner))
        results.append(b.generic([x], [maps(1, 0)], (columns, rows), body, reduced=1, combiner=combiner))
    for combiner in ("add", "mul", "min", "max"):
        results += [b.scan(x, axis, combiner) for axis in (0, 1)]
    agree(b.build(results), [data], device)


@pytest.mark.parametrize("length", [30, 3000])
@pytest.mark.parametrize("dtype", [*SOME, DType.BOOL])
def test_sorts_of_extremes_and_equal_values(device, dtype, length):
    b = GraphBuilder()
    pool = np.array([False, True]) if dtype is DType.BOOL else extremes(dtype)
    data = np.random.default_rng(5).choice(pool, (2, length))
    x = b.input("x", data.shape, dtype)
    results = []
    for descending in (False, True):
        results += [*b.sort(x, 1, descending), *b.sort(x, 1, descending, 5), b.sort(x, 1, descending)[0]]
    agree(b.build(results), [data], device)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.F16])
def test_sorts_of_nan_infinities_and_zeros(device, dtype):
    b = GraphBuilder()
    pool = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 6e-8, np.finfo(dtype.numpy).max])
    data = np.random.default_rng(5).choice(pool, (2, 300)).astype(dtype.numpy)
    x = b.input("x", data.shape, dtype)
    graph = b.build([*b.sort(x, 1), *b.sort(x, 1, True), *b.sort(x, 1, True, 7), *b.sort(x, 0)])
    agree(graph, [data], device)


# Nothing to combine -----------------------------------------------------------------------------
# Shapes and types do not depend on each other: by default each meets some of the other.
@pairs(
    *("shape", [(0,), (3, 0), (0, 70), (2, 0, 3)]),
    *("dtype", [DType.F32, DType.F16, DType.I32, DType.I64, DType.U8]),
)
def test_reductions_of_nothing_give_the_neutral_element(device, shape, dtype):
    b = GraphBuilder()
    axis = shape.index(0)
    kept = [i for i in range(len(shape)) if i != axis]
    extents = (*(shape[i] for i in kept), 0)
    reads = maps(*(kept.index(i) if i != axis else len(kept) for i in range(len(shape))))
    x = b.input("x", shape, dtype)
    results = [
        b.generic([x], [reads], extents, Arg(0, dtype), reduced=1, combiner=combiner, name=combiner)
        for combiner in ("add", "mul", "min", "max")
    ]
    agree(b.build(results), [np.zeros(shape, dtype.numpy)], device)


def test_dims_that_are_zero_at_run_time(device):
    """Reductions, products, sorts and scans over a dim that may be 0."""
    b = GraphBuilder()
    n = dims.symbol(Dim("n", 0, 400))
    x, y = b.input("x", (4, n), DType.F32), b.input("y", (n, 5), DType.F32)
    body = Arg(0, DType.F32)
    combiners = ("add", "mul", "min", "max")
    results = [b.generic([x], [maps(0, 1)], (4, n), body, reduced=1, combiner=c) for c in combiners]
    results += [b.generic([y], [maps(1, 0)], (5, n), body, reduced=1, combiner=c) for c in combiners]
    results += [
        matmul(b, x, y),
        *b.sort(x, 1),
        *b.sort(y, 0),
        b.scan(x, 1),
        b.scan(y, 0),
        b.concat([x, x], 1),
    ]
    graph = b.build(results)
    with compiled(graph, device) as model:
        for size in (0, 3):
            inputs = [np.ones((4, size), np.float32), np.ones((size, 5), np.float32)]
            for result, expected in zip(outputs(model, inputs), interpret(graph, inputs), strict=True):
                np.testing.assert_array_equal(result, expected)


def test_index_arithmetic_that_leaves_the_type_wraps(device):
    """Of literals; of extents it cannot, since no tensor has so many elements."""
    n = dims.symbol(Dim("n", 1, 2**31 - 1))
    b = GraphBuilder()
    x = b.input("x", (n,), DType.I64)
    place, results = Index(0), []
    for number, (op, literal) in enumerate((("mul", 2**62), ("add", 2**63 - 2), ("sub", -(2**63)))):
        moved = Apply(op, (place, Const(literal, DType.I64)), DType.I64)
        below = Apply("lt", (moved, Const(0, DType.I64)), DType.BOOL)
        for extent in (n, 4):
            ones = Apply("select", (below, Const(1, DType.I64), Const(0, DType.I64)), DType.I64)
            body = Apply("add", (Arg(0, DType.I64), ones), DType.I64) if extent is n else ones
            inputs = [x] if extent is n else []
            results.append(b.generic(inputs, [maps(0)] * len(inputs), (extent,), body, name=f"v{number}"))
    agree(b.build(results), [np.zeros(6, np.int64)], device)


def test_a_sum_whose_literal_is_subtracted_again_is_compared_as_it_was(device):
    text = (
        "graph main\n"
        "  input  %x: 5x3xf32\n"
        "  %v: 5xf32 = generic (d0:5 | d1:5) add "
        "{t0 = (d0 + 1) - d1; select((t0 >= 0) & (t0 < 3), %x{d1, t0}, 0.0)}\n"
        "  return %v as y\n"
    )
    agree(parse_graph(text), [np.arange(15, dtype=np.float32).reshape(5, 3)], device)
