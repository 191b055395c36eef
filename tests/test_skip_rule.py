"""The rules of tests/conftest.py, with a process of pytest-xdist and without: in CI a skipped Vulkan or
emulation test fails the run, and what the validation layer reports fails a test."""

from __future__ import annotations

import os
import re
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


REPORTING_DRIVER = """
import pytest
from types import SimpleNamespace
from mansard.hal import registry

driver = SimpleNamespace(validation_messages=lambda clear: ["VUID-of-the-sample"])
registry.drivers = lambda: {"vulkan": driver}

@pytest.mark.vulkan
def test_uses_the_device_wrongly():
    pass
"""


def run_pytest(
    folder: Path, *sources: str, ci: str | None = None, processes: int = 0
) -> subprocess.CompletedProcess[str]:
    shutil.copy(CONFTEST, folder / "conftest.py")
    for number, source in enumerate(sources):
        (folder / f"test_sample_{number}.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = vulkan: sample\n\temulation: sample\n")
    env = {key: value for key, value in os.environ.items() if key != "CI" and not key.startswith("PYTEST")}
    if ci is not None:
        env["CI"] = ci
    # With a folder of its own for temporary files it does not tidy up what other runs left.
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'temporary'}", "-n", str(processes)]
    command = [sys.executable, "-m", "pytest", *options, str(folder)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("processes", [0, 1])
def test_skipped_vulkan_tests_fail_in_ci_and_other_outcomes_are_left_alone(
    tmp_path: Path, processes: int
) -> None:
    sources = (MARKED_SKIP, EMULATION_SKIP, SKIP_IN_FIXTURE, UNMARKED_SKIP, EXPECTED_FAILURE)
    result = run_pytest(tmp_path, *sources, ci="true", processes=processes)
    assert result.returncode == 1, result.stdout
    assert "2 failed, 1 skipped, 1 xfailed, 1 error" in result.stdout
    # Each of the first three, and no other.
    for number in range(3):
        assert re.search(rf"^(FAILED|ERROR) \S*test_sample_{number}\.py::", result.stdout, re.MULTILINE)
    assert result.stdout.count("may not be skipped in CI: Skipped: no device here") >= 3


@pytest.mark.parametrize("processes", [0, 1])
def test_a_skipped_module_of_vulkan_tests_fails_in_ci(tmp_path: Path, processes: int) -> None:
    result = run_pytest(tmp_path, SKIP_OF_MODULE, ci="true", processes=processes)
    assert result.returncode not in (0, 5), result.stdout
    assert "no device here" in result.stdout
    assert "may not be skipped in CI" in result.stdout


def test_skip_is_a_skip_elsewhere(tmp_path: Path) -> None:
    result = run_pytest(tmp_path, MARKED_SKIP)
    assert result.returncode == 0, result.stdout
    assert "1 skipped" in result.stdout


# The rule is applied in the process that runs the test; how its reports travel is above.
@pytest.mark.parametrize("processes", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_what_the_validation_layer_reports_fails_a_test(tmp_path: Path, processes: int) -> None:
    result = run_pytest(tmp_path, REPORTING_DRIVER, processes=processes)
    assert result.returncode == 1, result.stdout
    assert "VUID-of-the-sample" in result.stdout
