"""Generated graphs and programs on devices, against the interpreter and PyTorch, for as long as asked.

    python tools/fuzz.py [--seconds 3600] [--seed N] [--devices cpu,vulkan] [--properties graph,sort]
    python tools/fuzz.py --reproduce FILE

Runs go on after a failure. Each distinct one is printed and kept as a file that ``--reproduce`` runs again;
``--task`` runs one round as the run named it. The exit code is 1 if anything failed. See docs/fuzzing.md.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def environment() -> None:
    """What the child processes take over: the tests' modules, and a cache of their own."""
    paths = [str(ROOT), str(ROOT / "tests")]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    os.environ["MANSARD_CACHE_DIR"] = tempfile.mkdtemp(prefix="mansard-fuzz-")


def main() -> int:
    """Run; returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=None, help="a random one by default")
    parser.add_argument("--devices", default="cpu,vulkan")
    parser.add_argument("--properties", default="", help="some of the properties, with commas between them")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--failures", type=Path, default=ROOT / "build" / "fuzz", help="folder of reproducers"
    )
    parser.add_argument("--reproduce", type=Path, metavar="FILE")
    parser.add_argument("--task", help="PROPERTY SEED DEVICES of one round, here in this process")
    options = parser.parse_args()
    environment()
    if options.reproduce:
        return reproduce(options.reproduce)
    if options.task:
        return play(options.task)
    return run(options)


def reproduce(path: Path) -> int:
    """Run a kept failure again."""
    from support.fuzzing.case import Disagreement
    from support.fuzzing.reproducer import reproduce as again

    try:
        again(path)
    except Disagreement as failure:
        print(failure)
        return 1
    print(f"{path} passes")
    return 0


def play(task: str) -> int:
    """One round in this process, so that a debugger can watch it."""
    from support.fuzzing.worker import play as one_round

    name, number, devices = task.split()
    answer = one_round(name, int(number), tuple(devices.split("+")))
    print(json.dumps({k: v for k, v in answer.items() if k != "failures"}, indent=1))
    for failure in answer["failures"]:
        print(failure["source"])
    return 1 if answer["failures"] else 0


def run(options: argparse.Namespace) -> int:
    """Rounds until the time is up."""
    from support.fuzzing.campaign import Campaign
    from support.fuzzing.case import available
    from support.fuzzing.properties import FRAMEWORK

    seed = options.seed if options.seed is not None else secrets.randbelow(2**31)
    asked = tuple(options.devices.split(","))
    devices = available(asked)
    for missing in set(asked) - set(devices):
        print(f"no {missing} device is present")
    places = [FRAMEWORK, *devices] + (["+".join(devices)] if len(devices) > 1 else [])
    print(f"seed {seed}, {options.seconds:g} s, on {', '.join(places)}", flush=True)
    campaign = Campaign(seed, places, options.failures)
    if options.properties:
        campaign.properties = options.properties.split(",")
    failed = campaign.run(options.seconds, options.workers)
    print(campaign.summary())
    return 1 if failed or set(asked) - set(devices) else 0


if __name__ == "__main__":
    sys.exit(main())
