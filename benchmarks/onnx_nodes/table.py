"""The section of the documentation made from a run of the node tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.harness import conformance
from benchmarks.harness.conformance import counts

__all__ = ["counts", "section", "write_section"]


def section(rows: list[dict[str, Any]], version: str, command: str) -> str:
    """Counts, then ops with what passes and why the rest does not."""
    introduction = (
        f"The {len({r['case'] for r in rows})} node tests of onnx {version}'s backend test suite, each "
        "compiled for one device and compared with the suite's results within its tolerances (relative 1e-3, "
        "absolute 1e-7, or two units in the last place of the largest number; shapes and types where the op "
        "draws random numbers). Inputs whose content decides a shape or the form of the computation (axes, "
        f"sizes, pads) are given to the compiler as constants. `{command}` makes this section."
    )
    return conformance.section("ONNX", introduction, rows)


def write_section(path: Path, text: str) -> None:
    """Put the section between its markers in a document."""
    conformance.write_section(path, text, "onnx node tests")
