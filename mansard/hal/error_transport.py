"""Exceptions on their way through the native core, from where they are raised to who waits."""

from __future__ import annotations

import copy
import inspect
import weakref
from types import FrameType, TracebackType
from typing import TypeVar

from mansard.errors import MansardError

_Error = TypeVar("_Error", bound=BaseException)
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Travelling:
    """An exception as the points it fails carry it: the original while anybody else has it, else its like.

    Were the original held here, it might never go: its traceback holds frames, whose variables hold the very
    semaphores that hold its status. Its like has its class, arguments, attributes and cause, and the
    lines of its traceback without the variables.
    """

    def __init__(self, error: MansardError) -> None:
        self._origin = _lines(error.__traceback__)
        self._original = weakref.ref(error)
        self._like = _likeness(error)

    def exception(self) -> MansardError | None:
        """The exception to raise; None when the original is gone and cannot be copied."""
        original = self._original()
        if original is not None:
            # Each raise adds frames to the traceback; begin again from where the error came from.
            return original.with_traceback(self._origin)
        return None if self._like is None else _likeness(self._like)


def _likeness(error: _Error) -> _Error | None:
    try:
        like = copy.copy(error)
    except Exception:  # a class whose constructor takes something else than its arguments
        return None
    if type(like) is not type(error):
        return None
    if error.__cause__ is not None:
        like.__cause__ = _likeness(error.__cause__)
    return like.with_traceback(_lines(error.__traceback__))


def _clear(frame: FrameType) -> bool:
    """Forget the variables of a frame that is over; False for one that is not, or may be suspended."""
    if frame.f_code.co_flags & _SUSPENDED:
        return False  # clearing would end the generator or coroutine
    try:
        frame.clear()
    except RuntimeError:
        return False  # it runs
    return True


def _lines(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames that still run or may, and without the variables of the others."""
    found = []
    while traceback is not None:
        if _clear(traceback.tb_frame):
            found.append(traceback)
        traceback = traceback.tb_next
    lines: TracebackType | None = None
    for each in reversed(found):
        lines = TracebackType(lines, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return lines
