"""Rules, one file for each family of ops."""

from __future__ import annotations

import functools
import importlib

FAMILIES = (
    "elementwise", "functions", "types", "shape", "slices", "reduction", "windows", "products", "convolution",
    "indexing", "sorting", "control", "calls", "sizes",
)  # fmt: skip


@functools.cache
def load() -> None:
    """Enter the rules of all families in the table."""
    for family in FAMILIES:
        importlib.import_module(f"{__name__}.{family}")
