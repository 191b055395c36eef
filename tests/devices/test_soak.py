"""Calls with faults, cancellations, deadlines and signals; ``make soak`` makes a million of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.paths import TESTS

CALLS = os.environ.get("MANSARD_SOAK_CALLS", "300")


@pytest.mark.vulkan
def test_a_soak_leaves_nothing_behind() -> None:
    """In a process of its own: its signals would interrupt the tests too."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "support.stress.soak", CALLS],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.endswith("and nothing was left behind\n")
