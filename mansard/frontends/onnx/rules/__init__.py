"""Rules, one file for each family of ops."""

from __future__ import annotations

import functools
import importlib

FAMILIES = (
    "elementwise", "activation", "types", "shape", "reduction", "products", "indexing", "convolution",
    "pooling", "normalisation", "generation", "resizing", "quantisation", "control", "recurrent", "sequences",
    "sampling", "spectral", "dynamic", "selection", "distinct", "training", "microsoft",
    "small_weights",
)  # fmt: skip


@functools.cache
def load() -> None:
    """Enter the rules of all families in the table."""
    for family in FAMILIES:
        importlib.import_module(f"{__name__}.{family}")
