"""A signal at any instruction at which Python runs handlers, once or several in a row.

A tracer written in C sets the flag of the signal before an instruction, as a signal that arrives there would;
Python itself then runs the handler where it always does: at the entry of a function, at a jump back and after
a call.
"""

from __future__ import annotations

import ctypes
import dis
import gc
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

CHECKS = ("RESUME", "CALL", "JUMP_BACKWARD", "SEND", "BEFORE_WITH")
"""Parts of the names of instructions at which handlers run; a few more cost only time."""


class Interrupted(Exception):
    """Raised by the handler."""


class Tripwire:
    """Trips SIGINT at the n-th such instruction of the calls it follows, and again as the error goes up."""

    def __init__(self, at: int, more: int) -> None:
        self._left, self._more, self._armed = at, more, False
        self.tripped, self.on = 0, True
        # Called by the interpreter with (frame, event, argument), which it ignores.
        prototype = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.py_object, ctypes.py_object)
        self._trip: Any = prototype(("PyErr_SetInterrupt", ctypes.pythonapi))

    def handler(self, number: int, frame: FrameType | None) -> None:
        """Of SIGINT."""
        self.tripped += 1
        if self.tripped > self._more:
            sys.settrace(None)
        if self.on:
            raise Interrupted

    def follow(self, frame: FrameType, event: str, argument: object) -> Any:
        """The trace function."""
        if frame.f_code is Tripwire.handler.__code__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if self._armed:
            return self._trip
        name = dis.opname[frame.f_code.co_code[frame.f_lasti]] if frame.f_lasti >= 0 else "RESUME"
        self._left -= any(part in name for part in CHECKS)
        self._armed = self._left < 0
        return self._trip if self._armed else self.follow


def interrupted(call: Callable[[], object], at: int, more: int) -> bool:
    """Call, interrupted at the n-th place and ``more`` times after it; False when the call has fewer.

    The garbage collector is off meanwhile: libraries hang callbacks on it, which would be interrupted in
    place of the call.
    """
    wire, collects = Tripwire(at, more), gc.isenabled()
    gc.disable()
    previous, tracer = signal.signal(signal.SIGINT, wire.handler), sys.gettrace()
    try:
        sys.settrace(wire.follow)
        call()
    except Interrupted:
        pass
    finally:
        wire.on = False
        sys.settrace(tracer)
        signal.signal(signal.SIGINT, previous)
        if collects:
            gc.enable()
    return wire.tripped > 0
