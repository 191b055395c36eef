"""TFLite's operators over a grid of shapes, types and options, on each device, compared with LiteRT.

    python -m benchmarks.tflite_ops [--devices cpu,vulkan] [--every 12] [--only PATTERN] [--resume]

A case passes, is unsupported (an error of `mansard.errors`), is wrong, raises a foreign exception, kills the
process or stalls. Counts go to ``build/tflite-conformance.json``, the list of cases beside it, and a full run
writes its table into ``docs/coverage.md``. The exit code is 1 if a case did one of the last four.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness.conformance import arguments, conduct, exit_code, section, write_section
from benchmarks.tflite_ops.cases import cases

COMMAND = "make tflite-conformance"


def main() -> int:
    """Run, print and write; returns an exit code."""
    options = arguments(__doc__.splitlines()[0], Path("build/tflite-conformance.json")).parse_args()
    rows = conduct(options, "benchmarks.tflite_ops.worker", list(cases()), lambda name: cases()[name].op)
    if options.markdown:
        introduction = (
            f"{len(cases())} models of one operator, or of the few that belong together, over shapes, "
            "element types, quantisations and options, each compiled for one device and compared with LiteRT "
            f"{version('ai-edge-litert')}'s reference kernels: floats within 1e-4, stored numbers within one "
            "step (16-bit functions within eight), products of real numbers with stored weights, which both "
            f"round in the call, within 5e-3. `{COMMAND}` makes this section."
        )
        write_section(options.markdown, section("TFLite", introduction, rows), "tflite operators")
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
