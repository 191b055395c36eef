"""Ranges and parameters."""

import numpy as np
import pytest

from mansard.dtypes import DType
from mansard.quantisation.parameters import of_range
from mansard.quantisation.ranges import METHODS, Observer


@pytest.mark.parametrize("dtype", [DType.U8, DType.I8, DType.I16])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 3.0), (0.5, 2.0), (-4.0, -1.0), (0.0, 0.0)])
def test_zero_is_exact_and_the_range_fits(dtype, low, high):
    how = of_range(low, high, dtype, symmetric=False)
    x = np.array([0.0, low, high], np.float32)
    rounded = how.rounded(x)
    assert rounded[0] == 0
    assert np.abs(rounded - x).max() <= how.scale / 2 * 1.001


def test_symmetric_codes_have_no_zero_point():
    how = of_range(-1.0, 4.0, DType.I8, symmetric=True)
    assert how.zero == 0 and how.scale == pytest.approx(4 / 127)


def test_outliers_widen_the_range_only_where_every_element_counts():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(100_000).astype(np.float32)
    x[5] = 100.0
    observer = Observer()
    observer.see(x[:50_000], "x")
    observer.see(x[50_000:], "x")
    steps = {m: observer.parameters(m, DType.U8, symmetric=False).scale for m in METHODS}
    assert steps["percentile"] < steps["mse"] < steps["minmax"]
    assert steps["minmax"] == pytest.approx((100 - x.min()) / 255)
