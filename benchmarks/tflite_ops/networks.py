"""Cases of several operators: control flow, variables, spectra, recurrent networks and detectors."""

from __future__ import annotations

from benchmarks.tflite_ops.cases import Grid


def enter(grid: Grid) -> None:
    """Add the cases."""
