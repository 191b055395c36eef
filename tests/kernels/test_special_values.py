"""Signs of zeros, unsigned and bool arithmetic, bits that are only moved, and lines of no length."""

import numpy as np
import pytest
from support.graph_runner import check, run
from support.graphs import maps

from mansard.dtypes import DType
from mansard.ir import GraphBuilder
from mansard.ir.scalar import Apply, Arg
from mansard.ir.types import IndexMap

DEVICES = ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]


def elementwise(op, dtype, count):
    b = GraphBuilder()
    inputs = [b.input(name, (5,), dtype) for name in "xy"[:count]]
    body = Apply(op, tuple(Arg(i, dtype) for i in range(count)), dtype)
    return b.build([b.generic(inputs, [maps(0)] * count, (5,), body)])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_odd_functions_keep_the_sign_of_zero(dtype, device):
    x = np.array([0.0, -0.0, 0.0, -0.0, -0.0], dtype.numpy)
    ops = ["sin", "tan", "erf", "tanh", "asin", "atan", "sinh", "expm1", "log1p", "sqrt"]
    b = GraphBuilder()
    value = b.input("x", x.shape, dtype)
    bodies = [Apply(op, (Arg(0, dtype),), dtype) for op in ops]
    graph = b.build([b.generic([value], [maps(0)], x.shape, body) for body in bodies])
    for op, result in zip(ops, run(graph, [x], device), strict=True):
        np.testing.assert_array_equal(result, x, err_msg=op)
        np.testing.assert_array_equal(np.signbit(result), np.signbit(x), err_msg=op)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", ["neg", "abs"])
def test_unsigned_integers_are_negated_modulo_their_range(op, device):
    check(elementwise(op, DType.U8, 1), [np.array([0, 1, 127, 128, 255], np.uint8)], device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", ["min", "max"])
def test_the_lesser_and_greater_of_bools(op, device):
    x, y = np.array([0, 0, 1, 1, 1], np.bool_), np.array([0, 1, 0, 1, 1], np.bool_)
    check(elementwise(op, DType.BOOL, 2), [x, y], device)


@pytest.mark.parametrize("device", DEVICES)
def test_divisors_beyond_the_range_of_reciprocals(device):
    x = np.array([np.inf, -np.inf, 1e38, np.nan, np.inf, np.inf, 3e-38, 7], np.float32)
    y = np.array([3.4e38, 2e38, 2e38, 3e38, np.inf, -3e38, 2e38, 2**64], np.float32)
    b = GraphBuilder()
    operands = [b.input(name, (8,), DType.F32) for name in "xy"]
    body = Apply("div", (Arg(0, DType.F32), Arg(1, DType.F32)), DType.F32)
    check(b.build([b.generic(operands, [maps(0)] * 2, (8,), body)]), [x, y], device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("combiner", ["argmin", "argmax"])
@pytest.mark.parametrize("shape", [(32,), (3, 32)])
def test_the_first_of_the_least_and_greatest_bools(shape, combiner, device):
    x = np.random.default_rng(0).random(shape) < 0.8
    x[..., 0] = combiner == "argmin"
    b = GraphBuilder()
    value = b.input("x", shape, DType.BOOL)
    body, rank = Arg(0, DType.BOOL), len(shape)
    op = b.generic([value], [IndexMap.identity(rank)], shape, body, reduced=1, combiner=combiner)
    check(b.build([op]), [x], device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.F8])
def test_what_is_moved_keeps_its_bits(dtype, device):
    """Subnormals too, which instructions that round to bf16 take for zeros."""
    integer = np.dtype(f"u{dtype.itemsize}")
    x = np.arange(1, 124, dtype=integer).view(dtype.numpy)
    b = GraphBuilder()
    value = b.input("x", x.shape, dtype)
    graph = b.build(
        [b.concat([value, value], 0), b.slice(value, (1,), (61,), (2,)), b.pad(value, (1,), (2,), 0.0)]
    )
    results = run(graph, [x], device)
    expected = [np.concatenate([x, x]), x[1::2], np.pad(x, (1, 2))]
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.view(integer), wanted.view(integer))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("shape", "axis", "limit"),
    [((0,), 0, None), ((0,), 0, 0), ((3, 0), 1, None), ((0, 3), 1, 2), ((0, 1), 1, 0)],
)
def test_sorts_of_nothing(shape, axis, limit, device):
    b = GraphBuilder()
    graph = b.build([*b.sort(b.input("x", shape, DType.F32), axis, False, limit)])
    check(graph, [np.zeros(shape, np.float32)], device)
