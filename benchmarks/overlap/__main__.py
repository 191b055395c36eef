"""How well devices overlap, beside the best possible and beside lockstep execution of the same plans.

    python -m benchmarks.overlap [--json] [--case branches-2] [--runs 5] [--graphs FOLDER] [--list]

Every case runs in a process of its own. Its row has ``bound_ms`` (the best possible time; of simulated
devices by their performance model), ``measured_ms`` (the shortest of the runs, for all requests together),
``lockstep_ms`` (the same plan with one batch of all devices at a time, one request after another),
``efficiency`` (bound over measured), ``speedup`` (lockstep over measured; at most the number of devices),
``busy`` (the part of the time in which each device worked) and the ``goal`` for the efficiency, if there is
one. ``--case`` takes the beginning of a name and may be repeated. The exit code is 1 when a case misses its
goal.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.overlap.case import Result

MODULES = ("simulated", "split", "copies", "gpus", "models")
"""Each has ``cases()``: (name, function of the number of runs that gives a list of results)."""


def cases() -> Iterator[tuple[str, Callable[[int], list[Result]]]]:
    """Every case of every module."""
    for module in MODULES:
        yield from importlib.import_module(f"benchmarks.overlap.{module}").cases()


def row(result: Result) -> dict[str, Any]:
    """A result as plain data, with what follows from it."""
    fields = asdict(result)
    return {**fields, "efficiency": result.efficiency, "speedup": result.speedup}


def in_child(case: str, runs: int) -> list[dict[str, Any]]:
    """Run one case in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, "--child", case, "--runs", str(runs)]
    # Simulated devices compute with NumPy in threads of their own, which must not wait for more threads.
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        return [{"case": case, "error": (done.stderr.strip().splitlines() or ["it failed"])[-1]}]
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return [{**row, "case": case} for row in rows]


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    if "error" in row:
        return f"{row['case']:24s} {row['error']}"
    busy = ", ".join(f"{name} {100 * part:.0f} %" for name, part in row["busy"].items())
    missed = row["goal"] is not None and row["efficiency"] < row["goal"]
    return (
        f"{row['case']:24s} bound {row['bound_ms']:8.2f} ms  measured {row['measured_ms']:8.2f} ms  "
        f"lockstep {row['lockstep_ms']:8.2f} ms  efficiency {row['efficiency']:.3f}  "
        f"speedup {row['speedup']:.2f}  busy {busy}"
        + (f"  ({row['overruns']} overruns)" if row["overruns"] else "")
        + (f"  below {row['goal']}" if missed else "")
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", metavar="NAME")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--graphs", type=Path, help="of real models, see benchmarks/overlap/models.py")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.graphs:
        os.environ["MANSARD_OVERLAP_GRAPHS"] = str(options.graphs)  # for the children too
    if options.child:
        print(json.dumps([row(result) for result in dict(cases())[options.child](options.runs)]))
        return 0
    wanted = options.case or [""]
    names = [name for name, _ in cases() if any(name.startswith(start) for start in wanted)]
    if options.list or not names:
        print("\n".join(name for name, _ in cases()))
        return 0 if options.list else 2
    rows = []
    for name in names:
        for measured in in_child(name, options.runs):
            rows.append(measured)
            if not options.json:
                print(line(measured), flush=True)
    if options.json:
        machine = {
            "date": time.strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "runs": options.runs,
        }
        print(json.dumps({"machine": machine, "cases": rows}, indent=1))
    goals = [row for row in rows if row.get("goal") is not None]
    failed = any(row["efficiency"] < row["goal"] for row in goals) or any("error" in r for r in rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
