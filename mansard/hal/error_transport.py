"""Error transport: exceptions carried through the native core, from where they are raised to who waits."""

from __future__ import annotations

import copy
import inspect
import weakref
from types import FrameType, TracebackType
from typing import TypeVar

from mansard.errors import MansardError

_Error = TypeVar("_Error", bound=BaseException)
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class TransportedError:
    """An exception as failed points carry it: the original while somebody else holds it, else a copy.

    A strong reference to the original could keep it alive forever: its traceback holds frames, whose
    variables hold the very semaphores that hold its status. The copy has its class, arguments, attributes
    and cause, and the lines of its traceback without the variables.
    """

    def __init__(self, error: MansardError) -> None:
        self._traceback = _without_variables(error.__traceback__)
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
    return copied.with_traceback(_without_variables(error.__traceback__))


def _clear(frame: FrameType) -> bool:
    """Drop the variables of a frame that has ended; False for one that has not, or may be suspended."""
    if frame.f_code.co_flags & _SUSPENDED:
        return False  # clearing would end the generator or coroutine
    try:
        frame.clear()
    except RuntimeError:
        return False  # it runs
    return True


def _without_variables(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames that still run or may, and without the variables of the others."""
    ended: list[TracebackType] = []
    while traceback is not None:
        if _clear(traceback.tb_frame):
            ended.append(traceback)
        traceback = traceback.tb_next
    copied: TracebackType | None = None
    for each in reversed(ended):
        copied = TracebackType(copied, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return copied
