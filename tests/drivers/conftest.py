"""Driver tests share the conformance suite, whose asserts explain themselves like those of tests."""

import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("conformance")

# The graph generators of the unit tests serve here too.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "unit"))
