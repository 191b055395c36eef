"""Dumps of the IR after each pass, to a caller's function and to the folder that ``MANSARD_DUMP`` names.

``MANSARD_DUMP=FOLDER`` writes everything, ``MANSARD_DUMP=FOLDER:PASS`` what one pass made. The files are
numbered in the order of the passes; those of later compilations of a process follow.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from mansard.errors import CompileError
from mansard.passes.pass_manager import Step, pass_names

Dump = Callable[[str, str], None]
"""Called with the name of a pass or stage and the IR after it, as text."""
VARIABLE = "MANSARD_DUMP"
_OTHERS = ("before", "split")
"""IR that is not the result of a pass: as imported, and with dispatches divided over devices."""
_CODE = ("kernels-", "code-")


class DumpFolder:
    """Writes each text to a numbered file of a folder: ``004-lower_views.mir``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count()

    def write(self, name: str, text: str) -> None:
        """Write a file for the IR after the pass ``name``."""
        suffix = ".txt" if name.startswith(_CODE) else ".mir"
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{next(self._numbers):03}-{name}{suffix}"
        file.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


class Dumps:
    """The dumps of one compilation: of the IR, and of kernels and their code."""

    def __init__(self, dump: Dump | None, steps: Sequence[Step]) -> None:
        """``dump`` is the caller's function. Raises CompileError where ``MANSARD_DUMP`` names no pass."""
        folder, only = _from_environment(steps)
        everything = [dump, folder.write if folder and not only else None]
        self.ir = _all_of([*everything, _only(folder.write, only) if folder and only else None])
        self.code = _all_of(everything)


def _from_environment(steps: Sequence[Step]) -> tuple[DumpFolder | None, str | None]:
    value = os.environ.get(VARIABLE, "")
    if not value:
        return None, None
    folder, colon, only = value.rpartition(":")
    if not colon or "/" in only:
        return _folder(Path(value)), None
    known = [*pass_names(steps), *_OTHERS]
    if only not in known:
        raise CompileError(
            f"{VARIABLE}={value}: no pass {only!r} in the pipeline; its passes: {', '.join(known)}"
        )
    return _folder(Path(folder)), only


@functools.cache
def _folder(path: Path) -> DumpFolder:
    """One for each folder, so that compilations of a process do not overwrite each other's files."""
    return DumpFolder(path)


def _only(dump: Dump, name: str) -> Dump:
    def write(step: str, text: str) -> None:
        if name in (step, step.partition(".")[0]):
            dump(step, text)

    return write


def _all_of(dumps: Sequence[Dump | None]) -> Dump | None:
    functions = [dump for dump in dumps if dump is not None]
    if not functions:
        return None

    def write(name: str, text: str) -> None:
        for dump in functions:
            dump(name, text)

    return write
