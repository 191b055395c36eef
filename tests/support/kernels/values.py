"""Operands for tests of kernel instructions, and how their results are compared."""

from __future__ import annotations

import math

import numpy as np

from mansard.dtypes import DType

F32, F64, I64, I32, U8, BOOL = DType.F32, DType.F64, DType.I64, DType.I32, DType.U8, DType.BOOL
INTS = [DType.I64, DType.I32, DType.I16, DType.I8, DType.U64, DType.U32, DType.U16, DType.U8]
ALL = [d for d in DType if d.bits >= 8]
RNG = np.random.default_rng(11)


def binary(op):
    return lambda b, p, q: b.binary(op, p, q)


def unary(op):
    return lambda b, p: b.unary(op, p)


def ints(dtype, size=400):
    info = np.iinfo(dtype.numpy)
    edges = np.array([info.min, info.max, 0, 1, info.min + 1, info.max - 1, 2, 3], dtype.numpy)
    wide = RNG.integers(info.min, info.max, size, dtype=dtype.numpy, endpoint=True)
    small = RNG.integers(max(info.min, -9), 10, size).astype(dtype.numpy)
    return RNG.permutation(np.concatenate([np.repeat(edges, 12), wide, small]))


def floats(dtype=F32, size=600):
    edges = np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 1, -1, 0.5, 1.5, 2.5, -2.5, 3e9, -3e9, 1e19])
    spread = RNG.standard_normal(size) * np.exp(RNG.uniform(-12, 12, size))
    return RNG.permutation(np.concatenate([np.repeat(edges, 10), spread])).astype(dtype.numpy)


def values(dtype):
    if dtype is BOOL:
        return RNG.integers(0, 2, 200).astype(np.bool_)
    if dtype.is_int:
        return ints(dtype)
    with np.errstate(over="ignore"):
        return floats(F64).astype(dtype.numpy)


def same(actual, expected):
    """Equal values; NaN equals NaN."""
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(actual, expected)
    else:
        np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64))


COMBINERS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
             "and": np.bitwise_and, "or": np.bitwise_or}  # fmt: skip
