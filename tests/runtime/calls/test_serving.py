"""Priorities, deadlines and cancellation of calls, and what a full queue does."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time

import numpy as np
import pytest
from support.fake_device import gpu_options
from support.plans.builder import PlanBuilder, X, bound, scaled, there_and_back

from mansard.errors import (
    CallCancelledError,
    DeadlineExceededError,
    InputError,
    QueueFullError,
    WaitTimeoutError,
)


def labelled(label: str) -> PlanBuilder:
    """``2 x`` in one dispatch of that name."""
    b = PlanBuilder("cpu")
    x, y = b.input(), b.output()
    b.segment(0, b.step("scale", x, y, params=(2,), label=label))
    return b


def busy(device, model, **options) -> threading.Thread:
    """A thread whose call is on the device, which stands still."""
    device.gate.clear()
    thread = threading.Thread(target=lambda: model(X, **options), daemon=True)
    thread.start()
    while not device.queue.stats().running:
        time.sleep(0.001)
    return thread


async def settled() -> None:
    """Let what was scheduled happen."""
    for _ in range(3):
        await asyncio.sleep(0.005)


async def submitted(device, count: int) -> None:
    """Let that many calls come as far as the device, which stands still in another."""
    while (stats := device.queue.stats()).submitted - stats.completed <= count:
        await asyncio.sleep(0.001)


# Priorities ---------------------------------------------------------------------------------------


def test_calls_begin_by_priority_then_in_order_of_arrival(make):
    device = make()
    model = bound(labelled("any"), device, max_in_flight=1)
    ended: list[int] = []

    async def main() -> None:
        thread = busy(device, model)

        async def call(number: int, priority: int) -> None:
            assert np.array_equal(await model.run_async(X * number, priority=priority), 2 * X * number)
            ended.append(number)

        calls = [asyncio.ensure_future(call(n, p)) for n, p in enumerate((0, 3, 0, 3, -1))]
        await settled()
        device.gate.set()
        await asyncio.gather(*calls)
        thread.join()

    asyncio.run(main())
    assert ended == [1, 3, 0, 2, 4]


def test_priorities_count_between_models_on_one_device(make):
    device = make()
    models = {name: bound(labelled(name), device) for name in ("first", "low", "high", "urgent")}

    async def main() -> None:
        thread = busy(device, models["first"])
        calls = [
            asyncio.ensure_future(models[name].run_async(X, priority=priority))
            for name, priority in (("low", -1), ("high", 1), ("urgent", 2), ("low", -1), ("urgent", 2))
        ]
        await submitted(device, 5)
        device.gate.set()
        await asyncio.gather(*calls)
        thread.join()

    asyncio.run(main())
    assert device.log == ["first", "urgent", "urgent", "high", "low", "low"]


def test_a_context_does_not_keep_the_priority_of_an_earlier_call(make):
    device = make()
    first, other, third = (bound(labelled(name), device) for name in ("first", "other", "third"))
    first(X, priority=9)
    other(X)

    async def main() -> None:
        thread = busy(device, third)
        calls = [asyncio.ensure_future(other.run_async(X)), asyncio.ensure_future(first.run_async(X))]
        await submitted(device, 2)
        device.gate.set()
        await asyncio.gather(*calls)
        thread.join()

    asyncio.run(main())
    assert device.log[2:] == ["third", "other", "first"]


def test_a_priority_out_of_range_is_refused(make):
    with pytest.raises(InputError, match="priority"):
        bound(scaled("cpu"), make())(X, priority=2**40)


# The queue ----------------------------------------------------------------------------------------


def test_a_full_queue_refuses_a_call_at_once(make):
    device = make()
    model = bound(scaled("cpu"), device, max_in_flight=1, max_queued=1)

    async def main() -> None:
        thread = busy(device, model)
        waiting = asyncio.ensure_future(model.run_async(X))
        await settled()
        with pytest.raises(QueueFullError, match=r"no more than 1 may \(max_queued\) while 1 run"):
            await model.run_async(X, priority=5)
        with pytest.raises(QueueFullError):
            model(X)
        device.gate.set()
        assert np.array_equal(await waiting, 6 * X + 0.5)
        thread.join()

    asyncio.run(main())
    assert np.array_equal(model(X), 6 * X + 0.5)
    assert (model.stats.calls, model.stats.refused, model.stats.dropped) == (3, 2, 0)


@pytest.mark.parametrize("limits", [{"max_in_flight": 0}, {"max_queued": -1}])
def test_limits_that_make_no_sense_are_refused(make, limits):
    with pytest.raises(InputError, match=next(iter(limits))):
        bound(scaled("cpu"), make(), **limits)


# Deadlines ----------------------------------------------------------------------------------------


def test_a_queued_call_fails_at_its_deadline_and_never_runs(make):
    device = make()
    model = bound(labelled("any"), device, max_in_flight=1)

    async def main() -> None:
        thread = busy(device, model)
        start = time.monotonic()
        with pytest.raises(DeadlineExceededError, match=r"deadline of 0.03 s: .* not begun; 1 run"):
            await model.run_async(X, deadline=0.03)
        assert 0.03 <= time.monotonic() - start < 5
        with pytest.raises(DeadlineExceededError, match="not begun"):
            model(X, deadline=0.01)
        with pytest.raises(TimeoutError):  # of Python's own kind, too
            model(X, deadline=0.01)
        with pytest.raises(WaitTimeoutError, match=r"timeout of 0.01 s: .* not begun"):
            model(X, timeout=0.01, deadline=60)
        device.gate.set()
        thread.join()

    asyncio.run(main())
    assert device.log == ["any"]
    assert np.array_equal(model(X), 2 * X)
    assert (model.stats.calls, model.stats.refused, model.stats.dropped) == (2, 0, 4)


def test_a_deadline_that_has_passed_is_not_begun(make):
    device = make()
    model = bound(scaled("cpu"), device)
    for deadline in (0, -1.0):
        with pytest.raises(DeadlineExceededError):
            model(X, deadline=deadline)
        with pytest.raises(DeadlineExceededError):
            asyncio.run(model.run_async(X, deadline=deadline))
    assert device.submissions == 0
    assert model.stats.dropped == 4
    assert np.array_equal(model(X, deadline=60), 6 * X + 0.5)
    assert np.array_equal(asyncio.run(model.run_async(X, deadline=60)), 6 * X + 0.5)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_running_call_is_withdrawn_at_its_deadline(make, blocking):
    """The batch that hangs ends in the background, those behind it on both devices are not run."""
    cpu, gpu = make("cpu"), make("gpu", **gpu_options("discrete"))
    model = bound(there_and_back(), cpu, gpu, max_in_flight=1)
    model(X)
    first, rest = list(cpu.log), list(gpu.log)
    cpu.log.clear()
    gpu.log.clear()
    cpu.gate.clear()
    start = time.monotonic()
    with pytest.raises(DeadlineExceededError, match=r"deadline of 0.05 s: the call was still running"):
        if blocking:
            model(X, deadline=0.05)
        else:
            asyncio.run(model.run_async(X, deadline=0.05))
    assert 0.05 <= time.monotonic() - start < 5
    with pytest.raises(WaitTimeoutError, match="not begun"):  # the permit is held while the device works
        model(X, timeout=0.02)
    cpu.gate.set()
    assert np.array_equal(model(X, timeout=10), 11 * X)
    assert gpu.log == rest
    assert len(cpu.log) < 2 * len(first)
    assert model.stats.contexts == 1  # the context serves again


def test_deadlines_of_others_do_not_matter(make):
    device = make()
    model = bound(scaled("cpu"), device, max_in_flight=4)

    async def main() -> list[object]:
        thread = busy(device, model)
        calls = [
            asyncio.ensure_future(model.run_async(X * n, deadline=0.03 if n % 2 else 60)) for n in range(10)
        ]
        while not all(call.done() for call in calls[1::2]):
            await asyncio.sleep(0.005)
        assert not any(call.done() for call in calls[::2])
        device.gate.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        thread.join()
        return results

    for n, result in enumerate(asyncio.run(main())):
        if n % 2:
            assert isinstance(result, DeadlineExceededError)
        else:
            assert np.array_equal(result, 6 * X * n + 0.5)
    assert model.stats.contexts <= 4


def test_recording_for_one_call_delays_no_other(make, monkeypatch):
    """Not on the event loop, nor on the thread that tells of the ends of calls."""
    slow, device = make(), make()
    recording, other = bound(scaled("cpu"), slow), bound(scaled("cpu"), device)
    other(X)
    record, go_on = slow.record, threading.Event()
    monkeypatch.setattr(slow, "record", lambda *args, **options: go_on.wait() and record(*args, **options))

    async def main() -> np.ndarray:
        waiting = asyncio.ensure_future(recording.run_async(X))
        late = asyncio.ensure_future(recording.run_async(X, deadline=0.03))
        await settled()
        for n in range(20):
            assert np.array_equal(await other.run_async(X * n), 6 * X * n + 0.5)
        with pytest.raises(DeadlineExceededError):
            await late
        assert not waiting.done()
        go_on.set()
        return await waiting

    assert np.array_equal(asyncio.run(main()), 6 * X + 0.5)


# Cancellation -------------------------------------------------------------------------------------


def test_a_cancelled_call_is_withdrawn_and_others_are_not_touched(make):
    cpu, gpu = make("cpu"), make("gpu", **gpu_options("discrete"))
    model = bound(there_and_back(), cpu, gpu, max_in_flight=2)

    async def main() -> np.ndarray:
        cpu.gate.clear()
        calls = [asyncio.ensure_future(model.run_async(X * n)) for n in range(4)]
        await settled()
        for n in (0, 2):  # one runs, one is queued
            calls[n].cancel()
        await settled()
        assert [call.done() for call in calls] == [True, False, True, False]
        cpu.gate.set()
        for n in (0, 2):
            with pytest.raises(asyncio.CancelledError):
                await calls[n]
        assert np.array_equal(await calls[1], 11 * X)
        assert np.array_equal(await calls[3], 33 * X)
        return await model.run_async(X * 5)

    assert np.array_equal(asyncio.run(main()), 55 * X)
    assert sum(label == gpu.log[0] for label in gpu.log) == 3
    assert (model.stats.calls, model.stats.dropped) == (3, 2)
    assert model.stats.contexts == 2


def test_wait_for_of_asyncio_gives_a_call_up(make):
    device = make()
    model = bound(scaled("cpu"), device, max_in_flight=1)

    async def main() -> np.ndarray:
        device.gate.clear()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(model.run_async(X), 0.03)
        device.gate.set()
        return await asyncio.wait_for(model.run_async(X), 10)

    assert np.array_equal(asyncio.run(main()), 6 * X + 0.5)


def test_a_call_that_changes_states_is_done_to_the_end(make):
    """Half a step would leave the states between two calls."""
    b = PlanBuilder("cpu", "gpu")
    x, y = b.input(), b.output()
    before, there = b.value(kind="state"), b.value(1)
    back = b.value()
    b.states.append((before, before))
    b.segment(0, b.step("add", before, x, before))
    b.segment(1, b.move(before, there), b.step("scale", there, there, params=(2,)), wait=[(0, 0)])
    b.segment(0, b.move(there, back), b.step("scale", back, before, params=(1,)), wait=[(1, 0)])
    b.segment(0, b.step("scale", before, y, params=(1,)), wait=[(0, 1)])
    cpu = make("cpu")
    model = bound(b, cpu, make("gpu", **gpu_options("discrete")))
    assert np.array_equal(model(X), 2 * X)
    cpu.gate.clear()
    with pytest.raises(DeadlineExceededError):
        model(X, deadline=0.02)
    cpu.gate.set()
    assert np.array_equal(model(X), 14 * X)  # ((2 + 1) 2 + 1) 2


def test_a_closed_model_refuses_those_who_wait(make):
    device = make()
    model = bound(scaled("cpu"), device, max_in_flight=1)

    async def main() -> list[object]:
        thread = busy(device, model)
        calls = [asyncio.ensure_future(model.run_async(X)) for _ in range(2000)]
        await settled()
        closing = threading.Thread(target=model.close)
        closing.start()
        while not model.bind()._calls.closed:
            time.sleep(0.001)
        device.gate.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        closing.join()
        thread.join()
        return results

    assert all("is closed" in str(result) for result in asyncio.run(main()))


def test_an_interrupt_while_another_call_is_begun_reaches_that_call_alone(make, monkeypatch):
    device = make()
    model = bound(labelled("any"), device, max_in_flight=1)
    lifecycle = model.bind()._calls.lifecycle
    start, interrupts = lifecycle.start, [KeyboardInterrupt()]

    def interrupted(call):
        if call.priority == 7 and interrupts:
            raise interrupts.pop()
        start(call)

    monkeypatch.setattr(lifecycle, "start", interrupted)
    caught: list[BaseException] = []

    def first() -> None:
        try:
            model(X)
        except KeyboardInterrupt as error:
            caught.append(error)

    async def main() -> None:
        model(X)
        device.gate.clear()
        thread = threading.Thread(target=first)
        thread.start()
        while not device.queue.stats().running:
            await asyncio.sleep(0.001)
        queued = asyncio.ensure_future(model.run_async(X, priority=7))
        another = asyncio.ensure_future(model.run_async(X))
        await settled()
        device.gate.set()
        assert np.array_equal(await another, 2 * X)
        with pytest.raises(CallCancelledError, match="interrupted as it began"):
            await queued
        thread.join(10)
        assert np.array_equal(await model.run_async(X), 2 * X)

    asyncio.run(main())
    assert not caught


def test_every_call_is_counted_once_and_leaves_nothing_behind(make):
    device = make()
    model = bound(labelled("any"), device, max_in_flight=3, max_queued=4)
    rng = random.Random(7)

    async def one(n: int) -> None:
        deadline = rng.choice([None, 1e-4, 1e-3, 60])
        task = asyncio.ensure_future(model.run_async(X * n, priority=rng.randrange(-2, 3), deadline=deadline))
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 1e-3)
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, DeadlineExceededError, QueueFullError):
            assert np.array_equal(await task, 2 * X * n)

    async def main() -> None:
        for first in range(0, 400, 40):
            # Every other burst meets a device that holds back its work: some are refused, however fast it is.
            if first % 80:
                device.gate.clear()
            burst = asyncio.gather(*(one(first + n) for n in range(40)))
            await settled()
            device.gate.set()
            await burst

    asyncio.run(main())
    admission, stats = model.bind()._calls.admission, model.stats
    with admission.exclusive():
        assert not admission._queue
    assert stats.contexts <= 3
    assert min(stats.calls, stats.dropped, stats.refused) > 0
    # A cancelled task may not even have begun its call.
    assert 300 < stats.calls + stats.dropped + stats.refused <= 400
    model.close()
    assert device.live == 0
