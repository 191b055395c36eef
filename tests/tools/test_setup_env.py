"""tools/setup_env.sh says what is missing before it downloads anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

SCRIPT = ROOT / "tools" / "setup_env.sh"


def setup(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    shell = shutil.which("sh") or "/bin/sh"
    command = [shell, str(SCRIPT), str(folder / "venv")]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def tool(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_named_python_must_work(tmp_path: Path) -> None:
    result = setup(tmp_path, PATH=os.environ["PATH"], PYTHON="/nonexistent/python3")
    assert result.returncode == 1
    assert "PYTHON=/nonexistent/python3 is not a working Python 3.11, 3.12 or 3.13" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_pythons_that_do_not_run_are_passed_over(tmp_path: Path) -> None:
    """A version manager's shim is on PATH for versions that are not there."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name in ("python3.13", "python3.12", "python3.11", "python3", "python"):
        tool(bin_, name, "echo 'not selected' >&2; exit 127")
    result = setup(tmp_path, PATH=str(bin_))
    assert result.returncode == 1
    assert "no Python 3.11, 3.12 or 3.13 on PATH" in result.stderr

    # One of them works, but cannot make environments: that is said, so it was the one chosen.
    tool(bin_, "python3.11", f'case "$2" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"')
    result = setup(tmp_path, PATH=str(bin_))
    assert result.returncode == 1
    assert "python3.11 cannot make virtual environments" in result.stderr


def test_compiler_must_exist(tmp_path: Path) -> None:
    venv = tmp_path / "venv" / "bin"
    venv.mkdir(parents=True)
    tool(venv, "python", f'exec {sys.executable} "$@"')
    (tmp_path / "empty").mkdir()
    result = setup(tmp_path, PATH=str(tmp_path / "empty"))
    assert result.returncode == 1
    assert "no C compiler (cc) found" in result.stderr
