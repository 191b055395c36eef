"""Tests under emulation use the cases and graphs of the driver and unit tests."""

import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_TESTS / folder) for folder in ("unit", "drivers", "models")]
