"""The round_bytes instruction: on this CPU, on targets with less, and where bodies become it."""

import numpy as np
import pytest
from support.kernels.runner import Machine
from support.quantised.windows import to_bytes

from mansard.analysis.byte_rounding import ByteRounding, byte_rounding
from mansard.codegen.kernel import KernelBuilder
from mansard.codegen.kernel.verify import verify
from mansard.codegen.llvm import module
from mansard.codegen.llvm import target as cpu_target
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.ir.scalar import Apply, Arg, Cast, Const

F32, I8, U8 = DType.F32, DType.I8, DType.U8
LIMITS = [
    (U8, 0, 0, 255),
    (U8, 131, 0, 255),
    (U8, 3, 3, 200),
    (I8, 0, -128, 127),
    (I8, -128, -128, 127),
    (I8, 5, 0, 99),
]
X = Arg(0, F32)


def kernel(limits, lanes, count):
    """Rounds every number to bytes with each of the limits: dtype, zero point, lowest and highest."""
    b = KernelBuilder("rounds", [(F32, False), *((dtype, True) for dtype, *_ in limits)], 0)
    x, *results = b.bindings
    with b.for_(0, count, lanes) as loop:
        data = b.load(x, loop.index, lanes)
        for y, each in zip(results, limits, strict=True):
            b.store(y, loop.index, b.round_bytes(data, *each))
    return b.build()


def numbers():
    halves = np.arange(-300, 300, 0.5)
    beyond = [2.0**31, 2.0**31 - 128, 2.0**32, 1e30, np.inf, np.nan]
    ends = np.array([*beyond, *(-v for v in beyond), -0.0, 0.49999997, 254.50002])
    return np.resize(np.concatenate([halves, ends]), 1280).astype(np.float32)


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3", "cpu:x86-64-v2", "cpu:x86-64"])
@pytest.mark.parametrize("lanes", [2, 4, 8, 16, 32])
def test_numbers_become_the_nearest_bytes(target, lanes):
    x = numbers()
    results = [np.empty(x.size, dtype.numpy) for dtype, *_ in LIMITS]
    Machine(target).run(kernel(LIMITS, lanes, x.size), [x, *results])
    for (dtype, zero, low, high), result in zip(LIMITS, results, strict=True):
        whole = np.clip(np.rint(x.astype(np.float64)) + zero, low, high)
        np.testing.assert_array_equal(result, np.where(np.isnan(x), 0, whole).astype(dtype.numpy))


def test_unsigned_bytes_take_few_instructions():
    parsed = cpu_target.parse("cpu:znver4")
    text = module.assembly(module.emit([kernel([(U8, 7, 0, 255)], 16, 64)], parsed), parsed)
    assert "vcvtps2dq" in text
    assert "vpmovusdb" in text
    assert "vcmp" not in text
    assert "vrndscale" not in text


def test_bodies_that_round_to_a_byte():
    body = to_bytes(X, 7, 0, 255, U8)
    assert byte_rounding(body) == ByteRounding(X, 7, 0, 255)
    nearest = Apply("round", (X,), F32)
    limited = Apply("max", (Apply("min", (nearest, Const(6.0, F32)), F32), Const(-6.0, F32)), F32)
    assert byte_rounding(Cast(limited, I8)) == ByteRounding(X, 0, -6, 6)


@pytest.mark.parametrize(
    "body",
    [
        to_bytes(X, 7, 0, 300, U8),
        to_bytes(X, 7, 9, 3, U8),
        to_bytes(X, 1 << 20, 0, 255, U8),
        Cast(Apply("round", (X,), F32), U8),
        Cast(Apply("min", (Apply("max", (X, Const(0.0, F32)), F32), Const(255.0, F32)), F32), U8),
        Cast(Apply("round", (X,), F32), DType.I32),
    ],
)
def test_bodies_that_do_something_else(body):
    assert byte_rounding(body) is None


def test_limits_outside_the_type_are_errors():
    b = KernelBuilder("bad", [], 0)
    b.round_bytes(b.const(0.0, F32, 4), I8, 0, 0, 255)
    with pytest.raises(CodegenError, match="no limits"):
        verify(b.build())
