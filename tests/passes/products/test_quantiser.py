"""Rounding of weights to codes, scales and zeros."""

import numpy as np
import pytest

from mansard.dtypes import DType
from mansard.hal import small_integers
from mansard.passes.products.quantiser import quantise

RNG = np.random.default_rng(5)


def dense(rounded, group):
    codes = rounded.codes.astype(np.float32)
    if rounded.zeros is not None:
        codes -= rounded.zeros.astype(np.float32).repeat(group, 1)
    return codes * rounded.scales.astype(np.float32).repeat(group, 1)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("scale", [DType.F32, DType.BF16, DType.F16])
def test_errors_are_within_a_step(bits, scale, symmetric):
    weight = RNG.standard_normal((24, 128)).astype(np.float32) * 0.05
    weight[3] += 1.0
    rounded = quantise(weight, bits, 32, scale, symmetric=symmetric)
    step = np.abs(rounded.scales.astype(np.float32)).repeat(32, 1)
    # Half a step; a whole one at the end of a range that is not symmetric.
    limit = (0.501 if bits == 8 and symmetric else 1.01) * step
    assert (np.abs(dense(rounded, 32) - weight) <= limit).all()


def test_the_largest_element_of_four_bits_is_exact():
    weight = RNG.standard_normal((8, 64)).astype(np.float32)
    rounded = quantise(weight, 4, 64, DType.F32)
    place = np.abs(weight).argmax(1)[:, None]
    taken = np.take_along_axis(dense(rounded, 64), place, 1)
    np.testing.assert_allclose(taken, np.take_along_axis(weight, place, 1), rtol=1e-6)


@pytest.mark.parametrize("symmetric", [True, False])
def test_zero_groups_and_tiny_weights(symmetric):
    weight = np.zeros((2, 64), np.float32)
    weight[1, 32:] = 1e-30
    for bits in (8, 4):
        rounded = quantise(weight, bits, 32, DType.BF16, symmetric=symmetric)
        result = dense(rounded, 32)
        assert (result[0] == 0).all()
        np.testing.assert_allclose(result, weight, rtol=0.02)


def in_numpy(weight, bits, group, scale, *, symmetric):
    """The table of `quantiser`, in NumPy."""
    x = weight.astype(np.float32).reshape(len(weight), -1, group)
    limit = {8: 255, 4: 15}[bits]
    if symmetric:
        largest = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)[..., 0]
        step = np.abs(largest) / 127 if bits == 8 else largest / -8
    else:
        step = (np.maximum(x.max(-1), 0) - np.minimum(x.min(-1), 0)) / limit
    scales = step.astype(scale.numpy)
    if scale is not DType.F32:
        short = np.abs(scales.astype(np.float32)) < np.abs(step)
        scales = (scales.view(np.uint16) + short).view(scale.numpy)
    step = scales.astype(np.float32)[..., None]
    inverse = np.divide(1, step, out=np.zeros_like(step), where=step != 0)
    whole, zeros, low, high = np.rint(x * inverse), None, *((-127, 127) if bits == 8 else (-8, 7))
    if not symmetric:
        zero = np.clip(np.rint(-np.minimum(x.min(-1), 0) * inverse[..., 0]), 0, limit)
        whole, zeros, low, high = whole + zero[..., None], np.nan_to_num(zero).astype(np.uint8), 0, limit
    codes = np.nan_to_num(np.clip(whole, low, high)).reshape(weight.shape).astype(np.int32)
    return codes, scales, zeros


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("scale", [DType.F32, DType.BF16, DType.F16])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16])
def test_the_native_core_computes_what_numpy_does(monkeypatch, dtype, scale, bits, symmetric):
    monkeypatch.setattr(small_integers, "BLOCK", 1000)  # several threads
    weight = RNG.standard_normal((60, 96))
    weight *= 10.0 ** RNG.integers(-3, 2, (60, 1))
    weight[:4] = [[0.0], [1e-30], [3e-41], [0.25]]
    weight[4, ::2], weight[4, 1::2] = 0.25, -0.25  # the first of equals
    weight[5] = np.round(weight[5] * 50) / 4  # ties
    weight[6, 1:], weight[6, 0] = 0.0, 3e-41
    weight[7] = 6e4
    weight = weight.astype(dtype.numpy)
    expected = in_numpy(weight, bits, 32, scale, symmetric=symmetric)
    rounded = quantise(weight, bits, 32, scale, symmetric=symmetric)
    np.testing.assert_array_equal(rounded.codes.astype(np.int32), expected[0])
    np.testing.assert_array_equal(rounded.scales, expected[1])
    if not symmetric:
        np.testing.assert_array_equal(rounded.zeros, expected[2])


def test_weights_that_are_not_finite_are_refused():
    weight = np.ones((2, 32), np.float32)
    weight[1, 7] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        quantise(weight, 8, 32, DType.BF16)
