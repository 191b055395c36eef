"""Calls with faults, cancellations, deadlines and signals; ``make soak`` makes a million of them."""

from __future__ import annotations

import os

import pytest
from support.stress.program import run_program

CALLS = os.environ.get("MANSARD_SOAK_CALLS", "300")


@pytest.mark.vulkan
def test_a_soak_leaves_nothing_behind() -> None:
    assert run_program("support.stress.soak", CALLS).endswith("and nothing was left behind\n")
