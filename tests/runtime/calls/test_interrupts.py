"""Ctrl-C at every line of a call: nothing is lost, and the next call is right."""

from __future__ import annotations

import gc
import linecache
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from support.plans.builder import X, bound, scaled, there_and_back

import mansard
from mansard.errors import DeviceError
from mansard.hal import Semaphore
from mansard.runtime.calls import completion

FOLDER = str(Path(mansard.__file__).parent)


def interrupted_at(line: int, call: Callable[[], object]) -> str | None:
    """Interrupt a call at its n-th line within Mansard; where that was, None when the call has fewer."""
    seen, where = 0, None

    def follow(last: int) -> Any:
        def within(frame: FrameType, event: str, _: object) -> Any:
            nonlocal seen, where, last
            # The line of a `with` is named again before it is left, where no interrupt can come; and one that
            # a tracer raises between the rounds of a comprehension skips what encloses it (3.12).
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
            again, last = last == frame.f_lineno, frame.f_lineno
            if event == "line" and not again and not text.startswith("with "):
                seen += 1
                if seen == line:
                    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return within

        return within

    def entered(frame: FrameType, event: str, argument: object) -> Any:
        ours = frame.f_code.co_filename.startswith(FOLDER) and frame.f_code.co_name != "__del__"
        return follow(0) if ours else None

    before = sys.gettrace()
    gc.disable()  # garbage of other tests has finalizers, from which Python lets no exception out
    sys.settrace(entered)
    try:
        call()
    except KeyboardInterrupt:
        return where
    finally:
        sys.settrace(before)
        gc.enable()
    return None


# Most lines of the longer calls are those of a call of one device.
@pytest.mark.parametrize(("how", "stride"), [("one device", 1), ("two devices", 3), ("batches", 3)])
def test_an_interrupt_at_any_line_of_a_call(make, how, stride):
    model = (
        bound(scaled("cpu"), make()) if how != "two devices" else bound(there_and_back(), make(), make("gpu"))
    )
    rows = np.concatenate([X] * 3)

    def call() -> np.ndarray:
        return model.run_in_batches(rows) if how == "batches" else model(X)

    admission, expected = model.bind()._calls.admission, call()
    line = 1
    while (where := interrupted_at(line, call)) is not None:
        until = time.monotonic() + 5
        while admission._free < admission.permits:  # what devices have of the call ends in the background
            assert time.monotonic() < until, f"a permit was lost at {where}"
            time.sleep(0.0005)
        results: list[np.ndarray] = []
        caller = threading.Thread(target=lambda: results.append(call()), daemon=True)  # noqa: B023
        caller.start()
        caller.join(5)
        assert results, f"the call after the one interrupted at {where} hangs or fails"
        assert np.array_equal(results[0], expected), where
        line += stride
    assert line > 100


def test_a_timeline_knows_what_was_submitted(make):
    device = make()
    model = bound(scaled("cpu"), device)
    model(X)
    (context,) = model.bind()._calls.contexts()
    (point,) = context.timelines.finals
    assert point.semaphore.promised == point.value
    assert Semaphore("nobody signals it").promised == 0


def test_a_model_of_the_parent_in_a_forked_process(make, monkeypatch):
    """Calls that ran when the process was forked off keep their permits for ever: nobody waits for them."""
    device = make()
    model = bound(scaled("cpu"), device, max_in_flight=1)
    expected = model(X)
    device.gate.clear()
    submissions = device.submissions
    running = threading.Thread(target=model, args=(X,))
    running.start()
    while device.submissions == submissions:  # a permit alone does not say that the call has begun
        time.sleep(0.001)
    with monkeypatch.context() as child:
        child.setattr(completion, "process", object())
        with pytest.raises(DeviceError, match="loaded before this process was forked off"):
            model(X)
        other = bound(scaled("cpu"), make("other"))
        assert np.array_equal(other(X), expected)
    device.gate.set()
    running.join()
    assert np.array_equal(model(X), expected)
