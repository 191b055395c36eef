"""Folders of the checkout that benchmarks read."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def import_from(*folders: Path) -> None:
    """Let this process import what lies in these folders, before what is installed."""
    sys.path[:0] = [str(folder) for folder in folders]
