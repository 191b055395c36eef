"""Scans whose prefixes overflow, and of what is not finite, on every device against the interpreter."""

import numpy as np
import pytest
from support.graph_runner import check
from support.kernels.pairs import pairs

from mansard.dtypes import DType
from mansard.ir import GraphBuilder

INF, NAN = np.inf, np.nan


@pairs("length", [8, 700], "axis", [0, 1])
@pytest.mark.parametrize("combiner", ["add", "mul"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
def test_a_prefix_out_of_range_does_not_spoil_those_after(device, length, dtype, axis, combiner):
    """PyTorch keeps sums and products of f32 in f64."""
    if combiner == "add":
        row = [1e38, 3e38, -3e38, -5e37, 2e38, 2e38, 1e38, -3e38]
        row = [x / 1e34 for x in row] if dtype is DType.F16 else row
    else:
        row = [1e30, 1e30, 1e-30, 1e-20, 1e25, 1e10, 1e-30, 1.0]
        row = [60000.0, 8.0, 0.0625, 0.5, 40.0, 0.01, 1.0, 2.0] if dtype is DType.F16 else row
    line = np.zeros(length) if combiner == "add" else np.ones(length)
    line[-8:] = row
    data = np.stack([line, line], 1 - axis).astype(dtype.numpy)
    b = GraphBuilder()
    x = b.input("x", data.shape, dtype)
    graph = b.build([b.scan(x, axis, combiner), b.scan(x, axis, combiner, inclusive=False)])
    check(graph, [data], device, rtol=1e-5 if dtype is DType.F32 else 1e-2)


@pytest.mark.parametrize("combiner", ["add", "mul", "min", "max"])
@pytest.mark.parametrize("length", [9, 300])
def test_nan_and_infinities_stay(device, length, combiner):
    data = np.ones((4, length), np.float32)
    data[0, 5], data[1, 3], data[2, 2], data[2, 6], data[3, 4] = NAN, INF, INF, -INF, -INF
    b = GraphBuilder()
    x = b.input("x", data.shape, DType.F32)
    check(b.build([b.scan(x, 1, combiner), b.scan(x, 0, combiner)]), [data], device)
