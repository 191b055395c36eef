"""Mutates plans of artifacts and signs them anew, with their kernels left alone: none may do any harm.

    python tools/fuzz_artifacts.py [--mutants N] [--seconds S] [--state N] [--devices cpu,vulkan]

Every mutant is read and checked; those that pass run in another process, with pages without access around
all that kernels of the CPU use. A mutant that crashes, hangs or raises what is no error of Mansard is printed
and kept; mutant ``n`` of a state is the same every time (``--first n --mutants 1``). At the end: the lines of
the checks that no mutant has reached.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import coverage

if TYPE_CHECKING:
    from support.plan_fuzz.campaign import Campaign

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
CHECKS = ("check", "claims", "contracts", "serialise", "value_check")
MEASURED_MUTANTS = 50_000
"""Coverage costs half of the speed: it is measured for the first mutants only."""


class CheckCoverage:
    """Which lines of the checks have run."""

    def __init__(self) -> None:
        self._coverage = coverage.Coverage(include=[str(self.file(name)) for name in CHECKS], data_file=None)
        with self.measured():  # what runs when they are imported
            for name in CHECKS:
                importlib.import_module(f"mansard.plan.{name}")

    @staticmethod
    def file(name: str) -> Path:
        """The source of a module of checks."""
        return ROOT / "mansard" / "plan" / f"{name}.py"

    @contextmanager
    def measured(self) -> Iterator[None]:
        """What runs meanwhile counts."""
        self._coverage.start()
        try:
            yield
        finally:
            self._coverage.stop()

    def report(self) -> str:
        """By file: the part of the lines that ran, and those that did not."""
        rows = []
        for name in CHECKS:
            _, statements, _, missing, text = self._coverage.analysis2(str(self.file(name)))
            reached = 1 - len(missing) / len(statements)
            rows.append(f"  plan/{name}.py: {reached:.0%} reached{f'; not {text}' if missing else ''}")
        return "\n".join(rows)


def main() -> int:
    """Run a campaign; 1 if a mutant did what none may do."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--state", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--devices", default="cpu,vulkan")
    parser.add_argument("--run-share", type=float, default=1.0, help="of accepted plans for GPUs")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"))
    options = parser.parse_args()
    checks = CheckCoverage()
    from support.plan_fuzz.campaign import Campaign
    from support.plan_fuzz.seeds import make_seeds

    with tempfile.TemporaryDirectory() as folder:
        seeds = make_seeds(Path(folder), set(options.devices.split(",")))
        campaign = Campaign(seeds, options.state, options.run_share)
        print(f"state {options.state}; seeds: {', '.join(seed.name for seed in seeds)}", flush=True)
        begin = shown = time.monotonic()
        told = 0
        for number in range(options.first, options.first + options.mutants):
            if number - options.first < MEASURED_MUTANTS:
                with checks.measured():
                    campaign.step(number)
            else:
                campaign.step(number)
            told = keep(campaign, told, options.keep)
            now = time.monotonic()
            if now - shown > 60:
                shown = now
                print(f"{now - begin:.0f} s: {campaign.counts}", flush=True)
            if now - begin > options.seconds:
                break
        campaign.finish()
        keep(campaign, told, options.keep)
    print(f"{time.monotonic() - begin:.0f} s: {campaign.counts}")
    print(f"lines of the checks that no mutant reached:\n{checks.report()}")
    print(f"{len(campaign.findings)} findings")
    return 1 if campaign.findings else 0


def keep(campaign: Campaign, told: int, folder: Path) -> int:
    """Print findings but the first ``told``, and keep their plans; returns how many there are."""
    for finding in campaign.findings[told:]:
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / f"plan-{campaign.state}-{finding.number}.json"
        kept.write_text(finding.plan)
        print(f"--- {finding}\nkept as {kept}", flush=True)
    return len(campaign.findings)


if __name__ == "__main__":
    sys.exit(main())
