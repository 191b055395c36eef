"""A signal at every instruction of a call at which Python runs handlers, once or several in a row."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.plans.builder import X, bound, scaled, there_and_back
from support.stress.tripwire import interrupted

from mansard.hal import native
from mansard.runtime.calls.completion import completions

ROWS = np.concatenate([X] * 3)


@pytest.fixture(params=["one device", "two devices", "batches", "new shapes"])
def subject(request, make) -> Iterator[tuple[Any, Callable[[], np.ndarray], int]]:
    """A model, a call of it, and at one of how many instructions it is interrupted: the long storms of
    ``make stress-signals`` come to the others."""
    two = request.param == "two devices"
    model = bound(there_and_back(), make(), make("gpu")) if two else bound(scaled("cpu"), make())

    def call() -> np.ndarray:
        if request.param == "new shapes":
            model.bind()._calls.lifecycle.free_idle_contexts()
        return model.run_in_batches(ROWS) if request.param == "batches" else model(X)

    yield model, call, 3 if request.param == "one device" else 8
    model.close()


# One more signal is a part of what six more do.
@pytest.mark.parametrize("more", [0, pytest.param(1, marks=pytest.mark.slow), 6])
def test_a_signal_at_any_instruction_of_a_call(subject, more, monkeypatch):
    # Interrupts of generators; pytest would keep them, and all that their frames hold.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    model, call, stride = subject
    calls, expected = model.bind()._calls, call()
    admission, workspaces = calls.admission, calls._environment.workspaces
    at, stride = 0, stride if not more else 12
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
    gc.collect()
    assert native.transported_errors() == 0
    for slot in model.bind().slots:
        native.drop_retired(slot.device.queue.handle, slot.device.queue._held)
        assert not slot.device.queue._held, "a submission's buffers are kept"


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
