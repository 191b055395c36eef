"""The architectures of transformers, small and with random weights, on each device, compared with PyTorch.

    python -m benchmarks.transformers_models [--devices cpu] [--only PATTERN] [--resume]

Each is built from its configuration and called by keywords as in PyTorch, by `mansard.compile(model,
kwargs=inputs)`. A case passes, is unsupported (an error of `mansard.errors`), is wrong, raises a foreign
exception, kills the process, stalls, or is ``invalid``: the numbers of models.py make no small model of it.
Counts go to ``build/transformers-conformance.json``, the list of cases beside it; ``--markdown
docs/coverage.md`` writes the table. The exit code is 1 if a case did anything but pass or be refused.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness.conformance import Row, arguments, conduct, exit_code, section, write_section
from benchmarks.transformers_models.models import KINDS

COMMAND = "make transformers-conformance"


def main() -> int:
    """Run, print and write; returns an exit code."""
    options = arguments(__doc__.splitlines()[0], Path("build/transformers-conformance.json")).parse_args()
    rows = conduct(options, "benchmarks.transformers_models.worker", list(KINDS), KINDS.__getitem__)
    rows = [row for row in rows if row["outcome"] != "invalid"]
    if options.markdown:
        text = section("Architectures of transformers", _introduction(rows), rows) + "\n" + _names(rows)
        write_section(options.markdown, text, "transformers architectures")
    return exit_code(rows)


def _introduction(rows: Sequence[Row]) -> str:
    worst = max((row.get("worst", 0.0) for row in rows if row["outcome"] == "passed"), default=0.0)
    return (
        f"Architectures of transformers {version('transformers')} with random weights and a few layers, "
        "compiled by `mansard.compile(model, kwargs=inputs)` and compared with PyTorch: every tensor of the "
        f"result, within {worst:.0e} of its largest number. `{COMMAND}` makes this section."
    )


def _names(rows: Sequence[Row]) -> str:
    """The architectures that pass on every device, by family, and why others do not."""
    by_kind: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_kind[row["case"]].append(row)
    passed: dict[str, list[str]] = defaultdict(list)
    refused = []
    for kind, of_kind in sorted(by_kind.items()):
        failed = next((row for row in of_kind if row["outcome"] != "passed"), None)
        if failed is None:
            passed[KINDS[kind]].append(kind)
        else:
            refused.append(f"| {kind} | {failed['outcome']} | {_cell(failed['detail'])} |")
    lines = [f"- {family}: {', '.join(kinds)}" for family, kinds in sorted(passed.items())]
    if refused:
        lines += ["", "| architecture | outcome | why |", "|---|---|---|", *refused]
    return "\n".join(lines) + "\n"


def _cell(detail: str) -> str:
    return detail.partition(": ")[2].replace("|", "\\|")[:200]


if __name__ == "__main__":
    sys.exit(main())
