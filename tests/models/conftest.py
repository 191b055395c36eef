"""Tests of models use the helpers of the driver tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "drivers"))
