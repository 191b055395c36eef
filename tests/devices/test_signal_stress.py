"""A storm of signals for some seconds; ``make stress-signals SECONDS=600`` is the long one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.paths import TESTS

SECONDS = os.environ.get("MANSARD_SIGNAL_SECONDS", "4")
DEVICES = ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_storm_of_signals_loses_nothing(device):
    """In a process of its own: its handler would interrupt the tests too."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "support.signal_stress", device, SECONDS],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.endswith("nothing was lost\n")
