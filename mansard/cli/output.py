"""Output of commands: tables and text, or one JSON value.

With ``--json`` exactly one JSON value goes to standard output; everything else, including what libraries
print, goes to standard error.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Annotated, Any, Self

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPE_WIDTH = 160
"""Columns where the terminal's width is unknown."""

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON value on standard output, the rest on standard error.")
]


class Output:
    """The output of one command; use as a context manager."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._stdout = sys.stdout
        if isinstance(sys.stdout, io.TextIOWrapper):  # names of files may be no text
            sys.stdout.reconfigure(errors="backslashreplace")
        self._redirect = contextlib.redirect_stdout(sys.stderr)

    def __enter__(self) -> Self:
        if self.as_json:
            self._redirect.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.as_json:
            self._redirect.__exit__(kind, error, trace)

    def show(self, renderable: RenderableType) -> None:
        """Print text or a table; nothing with ``--json``."""
        if not self.as_json:
            console(self._stdout).print(renderable)

    def text(self, text: str) -> None:
        """Print text unchanged, with lines of any length; nothing with ``--json``."""
        if not self.as_json:
            self._stdout.write(text.rstrip("\n") + "\n")

    def stream(self, text: str) -> None:
        """Print a piece of text at once, without a line's end; nothing with ``--json``."""
        if not self.as_json:
            self._stdout.write(text)
            self._stdout.flush()

    def note(self, text: str) -> None:
        """Print a note on standard error."""
        print(text, file=sys.stderr)

    def result(self, value: Any) -> None:
        """Print the JSON value; nothing without ``--json``. Called once per command."""
        if self.as_json:
            json.dump(plain(value), self._stdout, allow_nan=False)
            self._stdout.write("\n")
            self._stdout.flush()


def console(stream: IO[str]) -> Console:
    """A rich console as wide as the terminal, or `PIPE_WIDTH` where there is none."""
    from rich.console import Console

    return Console(
        file=stream, width=None if stream.isatty() else PIPE_WIDTH, highlight=False, markup=False, emoji=False
    )


def plain(value: Any) -> Any:
    """``value`` in JSON types: mappings and sequences recursively, NaN and infinities as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (str, bool, int)) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    return str(value)


def milliseconds(value: float) -> str:
    """A duration as text."""
    return f"{value:.3f} ms" if value < 100 else f"{value:.1f} ms"


def si(value: float, unit: str) -> str:
    """A quantity with a decimal prefix: ``si(2.5e9, "B")`` is ``2.5 GB``."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.1f} {prefix}{unit}"
    return f"{value:.0f} {unit}"
