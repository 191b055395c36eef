"""What happens around a call: failures, timeouts, threads, tasks, cancellation, states."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest
from support import fake_device
from support.fake_device import gpu_options
from support.plans.builder import PlanBuilder, X, bound, scaled, there_and_back

from mansard.dtypes import DType
from mansard.errors import (
    DeviceLostError,
    ExecutionError,
    IndexOutOfRangeError,
    ModelAssertionError,
    WaitTimeoutError,
)
from mansard.plan.plan import AssertSpec, TensorSpec

# Failures -----------------------------------------------------------------------------------------


def failing() -> PlanBuilder:
    b = PlanBuilder("cpu", "gpu")
    x, y = b.input(0), b.output(1)
    t, t_gpu = b.value(0), b.value(1)
    b.segment(0, b.step("explode", x, params=()), b.step("scale", x, t, params=(1,)))
    b.segment(1, b.move(t, t_gpu), b.step("scale", t_gpu, y, params=(1,)), wait=[(0, 0)])
    return b


def test_a_failure_reaches_the_caller_and_later_calls_work(make, monkeypatch):
    model = bound(failing(), make("cpu"), make("gpu", **gpu_options("discrete")))
    for _ in range(3):
        with pytest.raises(ExecutionError, match="the kernel exploded"):
            model(X)
    with pytest.raises(ExecutionError, match="the kernel exploded"):
        asyncio.run(model.run_async(X))
    monkeypatch.setitem(fake_device.KERNELS, "explode", lambda buffers, params: None)
    assert np.array_equal(model(X), X)


def test_a_refused_submission_ends_the_call_everywhere(make):
    cpu, gpu = make("cpu"), make("gpu", **gpu_options("discrete"))
    model = bound(there_and_back(), cpu, gpu)
    gpu.refuse_submissions = DeviceLostError("the device is gone")
    for _ in range(6):  # more often than there are permits
        with pytest.raises(DeviceLostError, match="is gone"):
            model(X)
    with pytest.raises(DeviceLostError, match="is gone"):
        asyncio.run(model.run_async(X))
    gpu.refuse_submissions = None
    assert np.array_equal(model(X), 11 * X)


def test_a_call_ends_after_what_a_device_took_before_it_refused(make, monkeypatch):
    """Until then its memory is in use, though the points of the submissions behind have failed."""
    cpu = make("cpu")
    model = bound(there_and_back(), cpu, make("gpu"))
    model(X)
    admission = model.bind()._calls.admission
    submit, cpu_submit, begun = cpu.queue.submit, cpu.submit, threading.Event()

    class Gate(threading.Event):
        def wait(self, timeout=None):
            begun.set()
            return super().wait(timeout)

    def take_one_of(submissions):
        monkeypatch.setattr(cpu.queue, "submit", refuse)
        cpu_submit(submissions)

    def refuse(entries):
        monkeypatch.setattr(cpu.queue, "submit", full)
        submit(entries)

    def full(entries):
        begun.wait()  # else what the device has not begun would be withdrawn
        raise ExecutionError("full")

    cpu.gate = gate = Gate()
    monkeypatch.setattr(cpu, "submit", take_one_of)
    with pytest.raises(ExecutionError, match="full"):
        asyncio.run(model.run_async(X))
    assert admission._free == admission.permits - 1
    monkeypatch.undo()
    gate.set()
    while admission._free < admission.permits:
        time.sleep(0.001)
    assert np.array_equal(model(X), 11 * X)


def test_asserts_are_checked_at_the_end(make):
    for options in ({}, gpu_options("unified"), gpu_options("discrete")):
        b = PlanBuilder("dev")
        x, y = b.input(), b.output()
        ok = b.value(size=1)
        b.asserts.append(AssertSpec(ok, "values must be positive", "net.py:7"))
        b.segment(0, b.step("is_positive", x, ok), b.step("scale", x, y, params=(2,)))
        model = bound(b, make("dev", **options))
        assert np.array_equal(model(X), 2 * X)
        with pytest.raises(ModelAssertionError, match=r"must be positive \(at net.py:7\)"):
            model(-X)
        assert np.array_equal(model(X), 2 * X)


def test_an_assert_of_an_input_is_checked_before_the_call(make):
    good, bad = np.arange(6, dtype=np.int32), np.arange(6, dtype=np.int32) - 1
    for options in ({}, gpu_options("unified"), gpu_options("discrete")):
        b = PlanBuilder("dev")
        x, y, ids = b.input(), b.output(), b.value(0, "input")
        b.inputs.append(TensorSpec("ids", DType.I32, (6,), ids))
        b.asserts.append(AssertSpec(ids, "embedding", "net.py:7", (0, 6), DType.I32))
        b.segment(0, b.step("scale", x, y, params=(2,)))
        device = make("dev", **options)
        model = bound(b, device)
        assert np.array_equal(model(X, good), 2 * X)
        submissions = device.submissions
        for _ in range(6):  # more often than there are permits
            with pytest.raises(IndexOutOfRangeError, match=r"embedding at net\.py:7: index -1 "):
                model(X, bad)
        with pytest.raises(IndexOutOfRangeError, match="index 6 "):
            asyncio.run(model.run_async(X, good + 1))
        assert device.submissions == submissions
        assert np.array_equal(model(X, good), 2 * X)


def test_a_failed_assert_gives_back_its_context_and_permit(make):
    b = PlanBuilder("dev")
    x, y, ok = b.input(), b.output(), b.value(size=1)
    b.asserts.append(AssertSpec(ok, "values must be positive"))
    b.segment(0, b.step("is_positive", x, ok), b.step("scale", x, y, params=(2,)))
    model = bound(b, make("dev"), max_in_flight=1)
    for _ in range(3):
        with pytest.raises(ModelAssertionError):
            model(-X)
        assert np.array_equal(model(X), 2 * X)
    assert model.stats.contexts == 1


def test_a_timeout_names_the_point_and_the_call_ends_later(make):
    device = make()
    model = bound(scaled("cpu"), device, max_in_flight=1)
    model(X)
    device.gate.clear()
    with pytest.raises(WaitTimeoutError, match="cpu"):
        model(X, timeout=0.02)
    device.gate.set()
    assert np.array_equal(model(X), 6 * X + 0.5)  # the only permit came back


# Concurrency --------------------------------------------------------------------------------------


def test_threads_do_not_disturb_each_other(make):
    model = bound(there_and_back(), make("cpu"), make("gpu", **gpu_options("discrete")))
    wrong: list[object] = []

    def work(seed: int) -> None:
        for i in range(20):
            x = X * (seed + i)
            if not np.array_equal(model(x), 11 * x):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(s,)) for s in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert model.stats.calls == 120
    assert model.stats.contexts <= 4


def test_awaited_calls_run_at_once_up_to_the_limit(make):
    device = make()
    model = bound(scaled("cpu"), device, max_in_flight=3)
    device.gate.clear()

    async def main() -> list[np.ndarray]:
        calls = [asyncio.ensure_future(model.run_async(X * i)) for i in range(8)]
        await asyncio.sleep(0.05)
        assert device.submissions == 3
        assert not any(call.done() for call in calls)
        device.gate.set()
        return await asyncio.gather(*calls)

    for i, y in enumerate(asyncio.run(main())):
        assert np.array_equal(y, 6 * X * i + 0.5)
    assert model.stats.contexts == 3


def test_cancelling_an_await_leaves_the_model_usable(make):
    device = make()
    model = bound(scaled("cpu"), device, max_in_flight=1)

    async def main() -> np.ndarray:
        device.gate.clear()
        running = asyncio.ensure_future(model.run_async(X))
        queued = asyncio.ensure_future(model.run_async(X))
        await asyncio.sleep(0.02)
        running.cancel()
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(asyncio.CancelledError):
            await queued
        device.gate.set()
        return await model.run_async(X * 2)

    assert np.array_equal(asyncio.run(main()), 12 * X + 0.5)
    assert np.array_equal(model(X), 6 * X + 0.5)


def test_a_loop_that_ended_early_does_no_harm(make):
    device = make()
    model = bound(scaled("cpu"), device, max_in_flight=1)

    async def main() -> None:
        device.gate.clear()
        started.append(asyncio.ensure_future(model.run_async(X)))
        await asyncio.sleep(0.01)

    started: list[asyncio.Future] = []
    asyncio.run(main())
    assert started[0].cancelled()
    device.gate.set()
    assert np.array_equal(model(X), 6 * X + 0.5)


# States -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, gpu_options("unified"), gpu_options("discrete")])
@pytest.mark.parametrize("in_place", [False, True])
def test_states_live_across_calls(make, options, in_place):
    b = PlanBuilder("dev")
    x, y = b.input(), b.output()
    before = b.value(kind="state")
    after = before if in_place else b.value(kind="state")
    b.states.append((before, after))
    b.segment(0, b.step("add", before, x, after), b.step("scale", after, y, params=(1,)))
    model = bound(b, make("dev", **options))
    for total in (1, 2, 3):
        assert np.array_equal(model(X), total * X)
    model.reset_states()
    assert np.array_equal(model(X), X)

    async def many() -> list[np.ndarray]:
        return await asyncio.gather(*(model.run_async(X) for _ in range(5)))

    totals = asyncio.run(many())
    assert [int(y[0]) for y in totals] == [2, 3, 4, 5, 6]  # one at a time, in order


def test_a_state_starts_from_its_weight(make):
    for options in ({}, gpu_options("discrete")):
        b = PlanBuilder("dev")
        x, y = b.input(), b.output()
        b.constant(np.full(6, 10.0))
        before = b.value(kind="state", weight=0)
        b.states.append((before, before))
        b.segment(0, b.step("add", before, x, before), b.step("scale", before, y, params=(1,)))
        model = bound(b, make("dev", **options))
        assert np.array_equal(model(X), X + 10)
        assert np.array_equal(model(X), 2 * X + 10)
