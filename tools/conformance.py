"""Runs the driver conformance suite on every driver and device present, and prints a table of results.

    python tools/conformance.py [--quick] [--json FILE] [pytest arguments]

A row is a device in one variation: as it is, without one of its optional features, or held to the limits of
a smaller device. With ``--quick`` all optional features go at once, and two limit profiles are tried. The
exit code is pytest's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SUITES = "*/test_conformance.py"


@dataclass
class Row:
    """Counts of one device in one variation."""

    device: str
    variation: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0


class Collector:
    """A pytest plug-in that counts results by device and variation, in the order they come."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Count a test once: its call, or the setup or teardown that failed or was skipped."""
        report = yield
        adapter = getattr(getattr(item, "cls", None), "adapter", None)
        if adapter is not None and (report.when == "call" or report.outcome != "passed"):
            key = (adapter.title(), adapter.variation)
            row = self.rows.setdefault(key, Row(*key))
            setattr(row, report.outcome, getattr(row, report.outcome) + 1)
        return report


def table(rows: list[Row]) -> str:
    """The rows as text, a device's name once."""
    cells = [("device", "variation", "passed", "failed", "skipped")]
    last = ""
    for row in rows:
        name = row.device if row.device != last else ""
        cells.append((name, row.variation, str(row.passed), str(row.failed), str(row.skipped)))
        last = row.device
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), line[1].ljust(widths[1]), *(c.rjust(7) for c in line[2:])]
        ).rstrip()
        for line in cells
    )


def main() -> int:
    """Run and print; returns pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few variations, as the tests have them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows as JSON")
    options, rest = parser.parse_known_args()
    if not options.quick:
        os.environ["MANSARD_CONFORMANCE"] = "all"
    suites = sorted(str(path) for path in (ROOT / "tests" / "drivers").glob(SUITES))
    collector = Collector()
    code = pytest.main(["-q", "-rfE", "--no-header", *suites, *rest], plugins=[collector])
    rows = list(collector.rows.values())
    print("\n" + table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
