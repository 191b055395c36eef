"""ONNX's node tests on each device, each in a child process with limits of time and memory.

    python -m benchmarks.onnx_nodes [--devices cpu,vulkan] [--every 12] [--only PATTERN] [--resume]

A test passes, is unsupported (an error of `mansard.errors`), is wrong, raises a foreign exception, kills the
process or stalls. Counts go to ``build/onnx-conformance.json``, the list of tests beside it, and a full run
writes its table into ``docs/coverage.md``. The exit code is 1 if a test did one of the last four.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx

from benchmarks.harness.conformance import arguments, conduct, exit_code
from benchmarks.onnx_nodes.cases import cases, op_of
from benchmarks.onnx_nodes.table import section, write_section

COMMAND = "make onnx-conformance"


def main() -> int:
    """Run, print and write; returns an exit code."""
    options = arguments(__doc__.splitlines()[0], Path("build/onnx-conformance.json")).parse_args()
    rows = conduct(options, "benchmarks.onnx_nodes.worker", list(cases()), op_of)
    if options.markdown:
        write_section(options.markdown, section(rows, onnx.__version__, COMMAND))
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
