"""Rules, one file for each family of operators."""

from __future__ import annotations

import functools
import importlib

FAMILIES = (
    "elementwise", "activation", "types", "convolution", "transposed", "pooling", "products", "reduction",
    "shape", "blocks", "indexing", "resizing", "normalisation",
    "control", "spectral", "recurrent", "detection",
)  # fmt: skip


@functools.cache
def load() -> None:
    """Enter the rules of all families in the table."""
    for family in FAMILIES:
        importlib.import_module(f"{__name__}.{family}")
