"""Rounding of weights to codes, scales and zeros."""

import numpy as np
import pytest

from mansard.dtypes import DType
from mansard.passes.products import quantiser
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


def test_blocks_do_not_matter(monkeypatch):
    weight = RNG.standard_normal((50, 96)).astype(np.float32)
    whole = quantise(weight, 4, 32, DType.BF16)
    monkeypatch.setattr(quantiser, "ROWS_BYTES", 4 * 96 * 7)
    parts = quantise(weight, 4, 32, DType.BF16)
    np.testing.assert_array_equal(whole.codes.astype(np.int8), parts.codes.astype(np.int8))
    np.testing.assert_array_equal(whole.scales, parts.scales)


def test_weights_that_are_not_finite_are_refused():
    weight = np.ones((2, 32), np.float32)
    weight[1, 7] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        quantise(weight, 8, 32, DType.BF16)
