"""The Makefile's targets: each has one recipe."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_no_target_has_two_recipes() -> None:
    result = subprocess.run(["make", "-n", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "overriding recipe" not in result.stderr, result.stderr


def test_documented_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = next(line for line in makefile.splitlines() if line.startswith(".PHONY:"))
    missing = [target for target in phony.split()[1:] if f"\n{target}:" not in makefile]
    assert not missing
