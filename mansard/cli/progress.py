"""Progress of a compilation on standard error."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from mansard.cli.output import console

Progress = Callable[[str, int, int], None]
"""Called with the name of the step, the units done in it and the total units."""


@contextlib.contextmanager
def progress_bar(stream_is_terminal: bool | None = None) -> Iterator[Progress]:
    """A callback that draws a bar on a terminal, or writes one line per step to a log."""
    terminal = sys.stderr.isatty() if stream_is_terminal is None else stream_is_terminal
    with _bar() if terminal else _lines() as report:
        yield report


@contextlib.contextmanager
def _bar() -> Iterator[Progress]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task("compile", total=None)

        def report(step: str, done: int, total: int) -> None:
            bar.update(task, description=step, completed=done, total=total)

        yield report


@contextlib.contextmanager
def _lines() -> Iterator[Progress]:
    begin = time.monotonic()
    last = ""

    def report(step: str, done: int, total: int) -> None:
        nonlocal last
        if step != last:
            last = step
            print(f"[{time.monotonic() - begin:7.1f} s] {step}", file=sys.stderr, flush=True)

    yield report
