"""The rule of tests/conftest.py: in CI a skipped Vulkan or emulation test fails the run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
MARKED_SKIP = """
import pytest

@pytest.mark.vulkan
def test_needs_a_device():
    pytest.skip("no device here")
"""
EMULATION_SKIP = MARKED_SKIP.replace("vulkan", "emulation")
SKIP_IN_FIXTURE = """
import pytest

@pytest.fixture
def device():
    pytest.skip("no device here")

@pytest.mark.vulkan
def test_needs_a_device(device):
    pass
"""
SKIP_OF_MODULE = """
import pytest

pytestmark = pytest.mark.vulkan
pytest.skip("no device here", allow_module_level=True)
"""
UNMARKED_SKIP = """
import pytest

def test_other():
    pytest.skip("no device here")
"""
EXPECTED_FAILURE = """
import pytest

@pytest.mark.vulkan
@pytest.mark.xfail(strict=True)
def test_known():
    raise ValueError
"""


def run_pytest(folder: Path, source: str, ci: str | None) -> subprocess.CompletedProcess[str]:
    shutil.copy(CONFTEST, folder / "conftest.py")
    (folder / "test_sample.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = vulkan: sample\n\temulation: sample\n")
    env = {key: value for key, value in os.environ.items() if key != "CI" and not key.startswith("PYTEST")}
    if ci is not None:
        env["CI"] = ci
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("source", [MARKED_SKIP, EMULATION_SKIP, SKIP_IN_FIXTURE, SKIP_OF_MODULE])
def test_skipped_vulkan_test_fails_in_ci(tmp_path: Path, source: str) -> None:
    result = run_pytest(tmp_path, source, "true")
    assert result.returncode not in (0, 5), result.stdout
    assert "no device here" in result.stdout
    assert "may not be skipped in CI" in result.stdout


def test_skip_is_a_skip_elsewhere(tmp_path: Path) -> None:
    result = run_pytest(tmp_path, MARKED_SKIP, None)
    assert result.returncode == 0, result.stdout
    assert "1 skipped" in result.stdout


@pytest.mark.parametrize(
    ("source", "summary"), [(UNMARKED_SKIP, "1 skipped"), (EXPECTED_FAILURE, "1 xfailed")]
)
def test_other_outcomes_are_left_alone_in_ci(tmp_path: Path, source: str, summary: str) -> None:
    result = run_pytest(tmp_path, source, "true")
    assert result.returncode == 0, result.stdout
    assert summary in result.stdout
