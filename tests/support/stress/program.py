"""Runs a program of the tests in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from support.paths import TESTS


def run_program(module: str, *arguments: str) -> str:
    """What a module prints, which has to succeed. Its signals would interrupt the tests too."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout
