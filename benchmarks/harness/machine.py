"""The machine: what it is, what it can do at most, and how near Mansard's kernels come to that."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.cases import CASES
from benchmarks.harness.children import processors
from benchmarks.harness.paths import ROOT

SOURCE = Path(__file__).with_name("machine.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-pthread")


def describe(
    threads: int, versions: Mapping[str, str], program: str = "benchmarks.models.cpu"
) -> dict[str, Any]:
    """Processor, memory, system, versions, load, and the command, which runs the module ``program``."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": " ".join([f"python -m {program}", *sys.argv[1:]]),
        "processor": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "threads": str(threads),
        "memory": _field("/proc/meminfo", "MemTotal") or "unknown",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load average at the start": f"{os.getloadavg()[0]:.2f}",
        "versions": dict(versions),
    }


def limits(work: Path, threads: int) -> dict[str, float]:
    """``gflops`` of f32 fused multiply-adds and ``gbs`` of reads from memory on that many threads.

    Raises OSError when there is no C compiler and subprocess.CalledProcessError when it fails.
    """
    program = work / "machine"
    if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
        if compiler is None:
            raise OSError("the machine's limits are measured by a C program, and there is no compiler (cc)")
        work.mkdir(parents=True, exist_ok=True)
        subprocess.run([compiler, *FLAGS, "-o", program, SOURCE], check=True)
    chosen = processors(threads)
    answer = subprocess.run(
        [program, str(threads)],
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, chosen),  # no threads here
    )
    rate, bandwidth = map(float, answer.stdout.split())
    return {"gflops": rate, "gbs": bandwidth}


def shares(
    threads: int, limit: Mapping[str, float], micro: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, Any]]:
    """Figures for the report: the limits, and what Mansard reaches in ``micro`` (rows by case name).

    Best times are compared with best rates: both are what the machine does when nothing disturbs it.
    """
    where = f"{threads} thread{'s' if threads > 1 else ''}"
    rows: dict[str, dict[str, Any]] = {}

    def add(name: str, value: float, unit: str) -> None:
        rows[f"{name}, {where}"] = {"value": value, "unit": unit}

    add("FMA peak, f32", limit["gflops"], "GFLOP/s")
    add("reads from memory", limit["gbs"], "GB/s")
    for name, title, key in (
        ("gemm_1024", "GEMM f32 1024³", "gflops"),
        ("gemv_256mib", "GEMV f32 8192²", "gbs"),
    ):
        if name in micro:
            amount = CASES[name].work or CASES[name].traffic
            rate = amount / micro[name]["min_ms"] * 1e-6
            add(title, rate, "GFLOP/s" if key == "gflops" else "GB/s")
            add(f"{title}, share of the limit", 100 * rate / limit[key], "%")
    return rows


def dispatch_costs(threads: int) -> dict[str, dict[str, Any]]:
    """What a dispatch costs Mansard beyond its kernel, as `benchmarks/dispatch/executor.py` measures it.

    Raises subprocess.CalledProcessError when that program fails.
    """
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "dispatch.json"
        command = [
            sys.executable,
            "-m",
            "benchmarks.dispatch.executor",
            "--threads",
            str(threads),
            "--seconds",
            "0.1",
            "--json",
            answer,
        ]
        chosen = processors(threads)
        subprocess.run(
            [str(part) for part in command],
            check=True,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, chosen),  # no threads here
        )
        report = json.loads(answer.read_text())
    return {
        f"dispatch of {row['kernel_us']:.0f} µs of work, beyond the kernel, {threads} threads": {
            "value": row["beyond_kernel_us"]["min"],
            "unit": "µs",
        }
        for row in report["work"]
    }


def _field(path: str, name: str) -> str | None:
    if Path(path).exists():
        for line in Path(path).read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return None
