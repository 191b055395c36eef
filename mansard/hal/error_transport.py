"""Error transport: exceptions carried through the native core, from where they are raised to who waits."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Generator
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import TypeVar

from mansard.errors import MansardError

_Error = TypeVar("_Error", bound=BaseException)


class TransportedError:
    """An exception as failed points carry it: the original while somebody else holds it, else a copy.

    A strong reference to the original could keep it alive forever: its traceback holds frames, whose
    variables hold the very semaphores that hold its status. The copy has its class, arguments, attributes
    and cause, and the lines of its traceback without the frames.
    """

    def __init__(self, error: MansardError) -> None:
        self._traceback = _lines_of(error.__traceback__)
        self._original = weakref.ref(error)
        self._copied = _copy(error)

    def exception(self) -> MansardError | None:
        """The exception to raise; None when the original is gone and cannot be copied."""
        original = self._original()
        if original is not None:
            # Each raise adds frames to the traceback; begin again from where the error came from.
            return original.with_traceback(self._traceback)
        return None if self._copied is None else _copy(self._copied)


def _copy(error: _Error) -> _Error | None:
    try:
        copied = copy.copy(error)
    except Exception:  # a class whose constructor takes something else than its arguments
        return None
    if type(copied) is not type(error):
        return None
    if error.__cause__ is not None:
        copied.__cause__ = _copy(error.__cause__)
    return copied.with_traceback(_lines_of(error.__traceback__))


def _lines_of(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback of the same lines, which holds nothing else.

    The frames of the given one would keep their variables, and through ``f_back`` those of all callers, also
    of callers that have returned by then.
    """
    entries: list[TracebackType] = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    lines: TracebackType | None = None
    for entry in reversed(entries):
        lines = TracebackType(lines, _frame(entry.tb_frame.f_code, entry.tb_lineno), -1, entry.tb_lineno)
    return lines


def _frame(code: CodeType, line: int) -> FrameType:
    """A frame for a line: of a generator that has not begun, which has neither variables nor a caller."""
    named = _never_begun.__code__.replace(
        co_filename=code.co_filename, co_name=code.co_name, co_qualname=code.co_qualname, co_firstlineno=line
    )
    frame: FrameType = FunctionType(named, {})().gi_frame
    return frame


def _never_begun() -> Generator[None]:
    yield
