"""Functions of JAX on each device, compared with JAX, in child processes with limits of time and memory.

    python -m benchmarks.jax_functions [--devices cpu,vulkan] [--every 12] [--only PATTERN] [--resume]

A case passes, is unsupported (an error of `mansard.errors`), is wrong, raises a foreign exception, kills the
process or stalls. Counts go to ``build/stablehlo-conformance.json``, the list of cases beside it, and a full
run writes its table into ``docs/coverage.md``. The exit code is 1 if a case did one of the last four.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax

from benchmarks.harness.conformance import arguments, conduct, exit_code, section, write_section
from benchmarks.jax_functions.cases import cases

COMMAND = "make stablehlo-conformance"


def main() -> int:
    """Run, print and write; returns an exit code."""
    options = arguments(__doc__.splitlines()[0], Path("build/stablehlo-conformance.json")).parse_args()
    rows = conduct(
        options, "benchmarks.jax_functions.worker", list(cases()), lambda name: cases()[name].entry
    )
    if options.markdown:
        introduction = (
            f"{len(cases())} calls of {len({c.entry for c in cases().values()})} functions of jax.numpy, "
            "jax.lax, jax.nn, jax.scipy, jax.random and jax.image over shapes and dtypes, each compiled for "
            f"one device and compared with jax {jax.__version__} on its CPU (relative 1e-4, 2e-3 in f16, "
            f"1.6e-2 in bf16, or two units in the last place of the largest number). "
            f"`{COMMAND}` makes this section."
        )
        write_section(options.markdown, section("JAX and StableHLO", introduction, rows), "jax functions")
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
