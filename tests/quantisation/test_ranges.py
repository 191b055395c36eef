"""Ranges and parameters."""

import numpy as np
import pytest

from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap
from mansard.ir.scalar import Arg
from mansard.quantisation.norms import normalised
from mansard.quantisation.parameters import of_range
from mansard.quantisation.ranges import METHODS, Observer
from mansard.testing.graphs import binary, layer_norm


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


def test_a_row_of_outliers_is_clamped_where_rows_count_alike():
    x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    x[0, 3] = 500.0
    exact, by_row = Observer(), Observer(rows=True)
    for observer in (exact, by_row):
        observer.see(x.reshape(4, 16, 32), "x")
    steps = [o.parameters("mse", DType.U8, symmetric=False).scale for o in (exact, by_row)]
    assert steps[0] == pytest.approx((500 - x.min()) / 255, rel=0.8) and steps[1] < steps[0] / 4
    assert by_row.parameters("minmax", DType.U8, symmetric=False).scale > 1.9


def test_values_that_norms_read_are_found():
    b = GraphBuilder()
    x, y = (b.input(name, (4, 8), DType.F32) for name in "xy")
    gamma, beta = (b.input(name, (8,), DType.F32) for name in ("gamma", "beta"))
    total = binary(b, "add", x, y)
    norm = layer_norm(b, total, gamma, beta)
    average = b.generic([y], [IndexMap.identity(2)], (4, 8), Arg(0, DType.F32), reduced=1, combiner="add")
    found = normalised(b.build([norm, average]))
    assert {v: found.get(v) for v in (x, y, total, norm)} == {x: total, y: total, total: total, norm: None}
