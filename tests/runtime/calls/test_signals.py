"""A signal at every instruction of a call at which Python runs handlers, once or several in a row.

A tracer written in C sets the flag of the signal before an instruction, as a signal that arrives there would;
Python itself then runs the handler where it always does: at the entry of a function, at a jump back and after
a call.
"""

from __future__ import annotations

import ctypes
import dis
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from support.plans.builder import X, bound, scaled, there_and_back

from mansard.hal import native
from mansard.runtime.calls.completion import completions

CHECKS = ("RESUME", "CALL", "JUMP_BACKWARD", "SEND", "BEFORE_WITH")
"""Parts of the names of instructions at which handlers run; a few more cost only time."""
ROWS = np.concatenate([X] * 3)


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
    """Call, interrupted at the n-th place and ``more`` times after it; False when the call has fewer."""
    wire = Tripwire(at, more)
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
    return wire.tripped > 0


@pytest.fixture(params=["one device", "two devices", "batches", "new shapes"])
def subject(request, make) -> Iterator[tuple[Any, Callable[[], np.ndarray], int]]:
    """A model, a call of it, and at one of how many instructions it is interrupted."""
    two = request.param == "two devices"
    model = bound(there_and_back(), make(), make("gpu")) if two else bound(scaled("cpu"), make())

    def call() -> np.ndarray:
        if request.param == "new shapes":
            model.bind()._calls.lifecycle.free_idle_contexts()
        return model.run_in_batches(ROWS) if request.param == "batches" else model(X)

    yield model, call, 1 if request.param == "one device" else 5
    model.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of generators
@pytest.mark.parametrize("more", [0, 1, 6])
def test_a_signal_at_any_instruction_of_a_call(subject, more):
    model, call, stride = subject
    calls, expected = model.bind()._calls, call()
    admission, workspaces = calls.admission, calls._environment.workspaces
    at, stride = 0, stride if not more else 7
    while interrupted(call, at, more):
        until = time.monotonic() + 10
        while admission._free < admission.permits or completions()._watches:
            assert time.monotonic() < until, f"something was lost at instruction {at}"
            time.sleep(0.0005)
        assert not admission._granted, at
        assert not admission._queued, at
        assert not any(each.user is not None for each in workspaces.all()), at
        results: list[np.ndarray] = []
        if at % 5 == 0:  # from another thread, in turn
            caller = threading.Thread(target=lambda: results.append(call()), daemon=True)  # noqa: B023
            caller.start()
            caller.join(10)
        else:
            results.append(call())
        assert results, f"the call after an interrupt at instruction {at} hangs or fails"
        assert np.array_equal(results[0], expected), at
        at += stride
    assert at > 100


def test_a_guarded_call_is_settled_by_another_thread_before_its_error_goes_on():
    settled = []

    def fail(record: str) -> None:
        raise ValueError(record)

    def settle(record: str, error: BaseException) -> None:
        settled.append((record, str(error), threading.get_ident()))

    with pytest.raises(ValueError, match="what"):
        native.guarded(settle, fail, "what")
    ((record, error, thread),) = settled
    assert (record, error) == ("what", "what")
    assert thread != threading.get_ident()
    assert native.guarded(settle, str.upper, "done") == "DONE"
    assert len(settled) == 1
