"""The benchmark of serving runs, and what it measures is what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT


def test_every_case_is_measured(tmp_path: Path) -> None:
    """In a process of its own: it registers a plug-in and asks the system to run before others."""
    command = [sys.executable, "-m", "benchmarks.serving", "--call-ms", "1", "--repeat", "8", "--json"]
    environment = {**os.environ, "MANSARD_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr[-4000:]
    figures = json.loads(run.stdout)
    assert figures["call_ms"] == 1
    for row in (figures["urgent"]["priority_0"], figures["urgent"]["priority_1"]):
        assert 1 <= row["median"] <= row["p90"]
    for row in (figures["deadline"]["blocking"], figures["deadline"]["awaited"]):
        assert 0 <= row["median"] <= row["p90"]
    assert figures["batches"]["together_ms"] >= figures["batches"]["bound_ms"] == 33
