"""Networks of `benchmarks/npu` in int8 on a U85: minutes, so that they run by ``-m slow``."""

from __future__ import annotations

import pytest
from mansard_ethos_u import vendor

from benchmarks.npu import ethos_u

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(vendor.absence() is not None, reason=f"{vendor.absence()}"),
]


@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet50", "deeplabv3"])
def test_a_network_is_one_region_of_the_reference_models_own_results(name):
    row = ethos_u.measure(name, ethos_u.TARGET)
    assert len(row["regions"]) == 1 and row["share"] == 1
    assert row["different"] == 0 < row["elements"]
    assert row["answers_different"] == 0 < row["answers"]
    (region,) = row["regions"]
    assert region["cycles"] > region["macs"] / 256
    assert any("Conv module." in label for *_, label in region["ops"])


def test_a_network_with_an_op_that_vela_refuses_runs_that_op_on_the_cpu():
    row = ethos_u.measure("deeplabv3_refined", ethos_u.SMALL)
    assert len(row["regions"]) == 2 and row["share"] == 1
    assert row["different"] == 0 < row["elements"]
    assert row["answers_error"] < 0.01
    assert "Vela: Non-passthrough operation (Resize) could not run on NPU" in row["others"]
