"""Awaited calls whose entry or whose callbacks in the event loop are interrupted."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest
from support.plans.builder import X, bound, scaled

from mansard.errors import DeadlineExceededError
from mansard.runtime.calls.async_call import AsyncCall
from mansard.runtime.calls.call import Call
from mansard.runtime.execution.context import Context


class Interrupted(Exception):
    """What a signal handler raises."""


class InterruptedFuture(asyncio.Future):
    """A signal arrives when it is to be resolved."""

    interrupts = 2

    def done(self) -> bool:
        in_loop = threading.current_thread() is threading.main_thread()
        if self.interrupts and in_loop and asyncio.current_task() is None:
            self.interrupts -= 1
            raise Interrupted
        return super().done()


def run(main, patience: float = 5):
    """Run a coroutine in a loop of interrupted futures, which gives up after some seconds."""
    loop = asyncio.new_event_loop()
    loop.create_future = lambda: InterruptedFuture(loop=loop)
    loop.set_exception_handler(lambda *_: None)
    task = loop.create_task(main)
    giving_up = loop.call_later(patience, task.cancel)
    try:
        return loop.run_until_complete(task)
    finally:
        giving_up.cancel()
        loop.close()


@pytest.mark.parametrize("batches", [False, True])
def test_a_result_whose_callback_is_interrupted_comes_again(make, batches):
    model = bound(scaled("cpu"), make())
    rows = np.concatenate([X] * 3)
    call = model.run_in_batches_async if batches else model.run_async
    x = rows if batches else X
    assert np.array_equal(run(call(x)), model.run_in_batches(rows) if batches else model(X))


def test_a_deadline_whose_callback_is_interrupted_comes_again(make):
    device = make()
    model = bound(scaled("cpu"), device)
    device.gate.clear()
    with pytest.raises(DeadlineExceededError):
        run(model.run_async(X, deadline=0.01))
    device.gate.set()
    assert np.array_equal(model(X), bound(scaled("cpu"), make())(X))


def test_an_interrupted_entry_of_a_call_that_another_thread_has_begun(make, monkeypatch):
    """The service thread, which cleans up, does not take a context that the completion thread is starting."""
    device = make()
    model = bound(scaled("cpu"), device, max_in_flight=1)
    expected = model(X)
    calls = model.bind()._calls
    reached, go = threading.Event(), threading.Event()
    enter, reserve = AsyncCall._enter, Context.reserve

    def interrupted(self: AsyncCall, call: Call, counts: bool = False) -> None:
        enter(self, call, counts)
        device.gate.set()
        reached.wait(10)
        raise Interrupted

    def reserve_slowly(self: Context) -> None:
        if threading.current_thread().name == "mansard completions":
            reached.set()
            go.wait(10)
        reserve(self)

    device.gate.clear()
    running = threading.Thread(target=model, args=(X,))
    running.start()
    while calls.admission._free:
        time.sleep(0.001)
    monkeypatch.setattr(AsyncCall, "_enter", interrupted)
    monkeypatch.setattr(Context, "reserve", reserve_slowly)
    with pytest.raises(Interrupted):
        asyncio.run(model.run_async(X))
    assert reached.is_set()
    assert not calls.contexts(), "the context is given away while it is being started"
    assert calls.admission._free == 0
    go.set()
    running.join()
    while calls.admission._free < calls.admission.permits:
        time.sleep(0.001)
    assert np.array_equal(model(X), expected)
