"""Folders of the checkout, for tests that read files or start programs."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
