"""A storm of signals for some seconds; ``make stress-signals SECONDS=600`` is the long one."""

from __future__ import annotations

import os

import pytest
from support.stress.program import run_program

SECONDS = os.environ.get("MANSARD_SIGNAL_SECONDS", "2")
DEVICES = ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_storm_of_signals_loses_nothing(device):
    assert run_program("support.signal_stress", device, SECONDS).endswith("nothing was lost\n")
