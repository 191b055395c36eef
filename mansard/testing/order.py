"""Submission: waits, signals, failures, threads, closing."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pytest

from mansard.errors import CallCancelledError, DeviceError, ExecutionError, WaitTimeoutError
from mansard.hal import BufferRef, FillCommand, Point, Semaphore, Submission
from mansard.testing.adapter import WAIT, Suite, Workbench, computes

SOON = 0.03
"""Seconds in which something that must not happen would have happened."""
AT_ONCE = 1.0
"""Seconds a call that must not block may take on a loaded machine."""


def points(label: str, count: int) -> list[Point]:
    """The first point of each of ``count`` semaphores."""
    return [Point(Semaphore(f"{label} {i}"), 1) for i in range(count)]


class OrderTests(Suite):
    """Contract of `Device.submit` and `Device.close`."""

    def test_a_batch_signals(self, bench: Workbench) -> None:
        done = Point(Semaphore("done"), 5)
        bench.device.submit([Submission(bench.empty(), signal=(done,))])
        done.wait(WAIT)
        assert done.done()
        assert done.error() is None
        assert done.semaphore.value == 5

    def test_a_batch_signals_several_points(self, bench: Workbench) -> None:
        signal = points("several", 5)
        bench.device.submit([Submission(bench.empty(), signal=tuple(signal))])
        for point in signal:
            point.wait(WAIT)

    def test_nothing_to_submit(self, bench: Workbench) -> None:
        bench.device.submit([])
        bench.device.submit([Submission(bench.empty())])

    def test_wait_before_signal(self, bench: Workbench) -> None:
        gate, done = points("gate", 2)
        bench.device.submit([Submission(bench.empty(), wait=(gate,), signal=(done,))])
        with pytest.raises(WaitTimeoutError, match=r"gate 1.*value 1 .*seen is 0"):
            done.wait(SOON)
        assert not done.done()
        gate.semaphore.signal(1)
        done.wait(WAIT)

    def test_every_wait_counts(self, bench: Workbench) -> None:
        *gates, done = points("every", 4)
        bench.device.submit([Submission(bench.empty(), wait=tuple(gates), signal=(done,))])
        for gate in gates:
            time.sleep(SOON / 3)
            assert not done.done()
            gate.semaphore.signal(1)
        done.wait(WAIT)

    def test_submission_does_not_block_on_a_point(self, bench: Workbench) -> None:
        gate, done = points("block", 2)
        start = time.monotonic()
        for value in range(1, 51):
            signal = (Point(done.semaphore, value),)
            bench.device.submit([Submission(bench.empty(), wait=(gate,), signal=signal)])
        assert time.monotonic() - start < AT_ONCE
        gate.semaphore.signal(1)
        Point(done.semaphore, 50).wait(WAIT)

    @computes
    def test_submission_does_not_block_on_the_device(self, bench: Workbench) -> None:
        done = points("busy", 12)
        work = [bench.busy() for _ in done]
        start = time.monotonic()
        for recorded, point in zip(work, done, strict=True):
            bench.device.submit([Submission(recorded, signal=(point,))])
        submitted = time.monotonic() - start
        for point in done:
            point.wait(WAIT)
        assert submitted < (time.monotonic() - start) / 2

    def test_a_waiting_batch_holds_back_nobody(self, bench: Workbench) -> None:
        never, blocked, done = points("never", 3)
        bench.device.submit(
            [
                Submission(bench.empty(), wait=(never,), signal=(blocked,)),
                Submission(bench.empty(), signal=(done,)),
            ]
        )
        done.wait(WAIT)
        for value in range(2, 20):
            point = Point(done.semaphore, value)
            bench.device.submit([Submission(bench.empty(), signal=(point,))])
            point.wait(WAIT)
        assert not blocked.done()
        never.semaphore.signal(1)
        blocked.wait(WAIT)

    def test_a_chain_submitted_backwards(self, bench: Workbench) -> None:
        timeline = Semaphore("backwards")
        submissions = [
            Submission(bench.empty(), wait=(Point(timeline, i),), signal=(Point(timeline, i + 1),))
            for i in reversed(range(1, 300))
        ]
        bench.device.submit(submissions)
        assert timeline.value == 0
        timeline.signal(1)
        Point(timeline, 300).wait(WAIT)

    def test_hundreds_of_semaphores(self, bench: Workbench) -> None:
        chain = points("link", 200)
        for before, after in itertools.pairwise(chain):
            bench.device.submit([Submission(bench.empty(), wait=(before,), signal=(after,))])
        chain[0].semaphore.signal(1)
        chain[-1].wait(WAIT)

    def test_a_diamond(self, bench: Workbench) -> None:
        top, left, right, bottom = points("diamond", 4)
        bench.device.submit(
            [
                Submission(bench.empty(), wait=(left, right), signal=(bottom,)),
                Submission(bench.empty(), wait=(top,), signal=(right,)),
                Submission(bench.empty(), wait=(top,), signal=(left,)),
            ]
        )
        top.semaphore.signal(1)
        bottom.wait(WAIT)
        assert left.done()
        assert right.done()

    @computes
    def test_points_order_results(self, bench: Workbench) -> None:
        count = 20_000
        one = bench.shared(np.ones(count, dtype=np.float32))
        total = bench.shared(np.zeros(count, dtype=np.float32))
        steps = [bench.device.record([bench.add(total, one, total, count)]) for _ in range(40)]
        timeline = Semaphore("steps")
        submissions = [
            Submission(step, wait=(Point(timeline, i),), signal=(Point(timeline, i + 1),))
            for i, step in enumerate(steps, start=1)
        ]
        bench.device.submit(submissions[::-1])
        timeline.signal(1)
        Point(timeline, len(steps) + 1).wait(WAIT)
        np.testing.assert_array_equal(total.view().view(np.float32), np.full(count, len(steps)))

    @computes
    def test_the_host_takes_part(self, bench: Workbench) -> None:
        count = 1000
        a, b = (bench.shared(np.zeros(count, dtype=np.float32)) for _ in range(2))
        out = bench.shared(np.zeros(count, dtype=np.float32))
        gate, done = points("host", 2)
        recorded = bench.device.record([bench.add(a, b, out, count)])
        bench.device.submit([Submission(recorded, wait=(gate,), signal=(done,))])
        a.view().view(np.float32)[:] = 2
        b.view().view(np.float32)[:] = 3
        gate.semaphore.signal(1)
        done.wait(WAIT)
        np.testing.assert_array_equal(out.view().view(np.float32), np.full(count, 5))

    # ---- failure ----

    def test_a_failed_wait_poisons(self, bench: Workbench) -> None:
        gate, first, second = points("poison", 3)
        bench.device.submit([Submission(bench.empty(), wait=(gate,), signal=(first, second))])
        error = ExecutionError("the original error")
        gate.semaphore.fail(1, error)
        for point in (first, second):
            with pytest.raises(ExecutionError) as caught:
                point.wait(WAIT)
            assert caught.value is error
            assert point.error() is error

    def test_a_point_that_has_failed_already(self, bench: Workbench) -> None:
        gate, done = points("already", 2)
        gate.semaphore.fail(1, ExecutionError("long ago"))
        bench.device.submit([Submission(bench.empty(), wait=(gate,), signal=(done,))])
        with pytest.raises(ExecutionError, match="long ago"):
            done.wait(WAIT)

    def test_failure_travels_down_a_chain(self, bench: Workbench) -> None:
        chain = points("fall", 100)
        for before, after in itertools.pairwise(chain):
            bench.device.submit([Submission(bench.empty(), wait=(before,), signal=(after,))])
        chain[0].semaphore.fail(1, ExecutionError("at the top"))
        with pytest.raises(ExecutionError, match="at the top"):
            chain[-1].wait(WAIT)
        assert all(point.error() is not None for point in chain)

    def test_failure_leaves_others_alone(self, bench: Workbench) -> None:
        bad, good, poisoned, fine = points("other", 4)
        bench.device.submit(
            [
                Submission(bench.empty(), wait=(bad,), signal=(poisoned,)),
                Submission(bench.empty(), wait=(good,), signal=(fine,)),
            ]
        )
        bad.semaphore.fail(1, ExecutionError("bad"))
        good.semaphore.signal(1)
        fine.wait(WAIT)
        with pytest.raises(ExecutionError, match="bad"):
            poisoned.wait(WAIT)
        later = Point(poisoned.semaphore, 2)
        bench.device.submit([Submission(bench.empty(), signal=(later,))])
        later.wait(WAIT)
        assert poisoned.error() is not None

    def test_a_failed_batch_ends_after_all_its_waits(self, bench: Workbench) -> None:
        bad, slow, done = points("after", 3)
        bench.device.submit([Submission(bench.empty(), wait=(bad, slow), signal=(done,))])
        bad.semaphore.fail(1, ExecutionError("early"))
        with pytest.raises(WaitTimeoutError):
            done.wait(SOON)
        slow.semaphore.signal(1)
        with pytest.raises(ExecutionError, match="early"):
            done.wait(WAIT)

    @computes
    def test_a_poisoned_batch_does_not_run(self, bench: Workbench) -> None:
        gate, done = points("idle", 2)
        target = bench.shared(np.full(16, 9, dtype=np.int32))
        recorded = bench.device.record([FillCommand(BufferRef(target), 64)])
        bench.device.submit([Submission(recorded, wait=(gate,), signal=(done,))])
        gate.semaphore.fail(1, ExecutionError("no"))
        with pytest.raises(ExecutionError):
            done.wait(WAIT)
        assert set(target.view().view(np.int32).tolist()) == {9}

    # ---- threads and the end ----

    def test_withdrawn_batches_do_not_run_and_others_do(self, bench: Workbench) -> None:
        """They fail once what they wait for is complete, not before; their timeline stays of use."""
        gate, other = points("gate", 2)
        mine = Semaphore("given up")
        target = bench.shared(np.ones(64, dtype=np.uint32))
        fill = bench.device.record([FillCommand(BufferRef(target), 256, 7)])
        bench.device.submit(
            [
                Submission(fill, wait=(gate,), signal=(Point(mine, 1),)),
                Submission(bench.empty(), wait=(Point(mine, 1),), signal=(Point(mine, 2),)),
                Submission(bench.empty(), wait=(gate,), signal=(other,)),
            ]
        )
        error = CallCancelledError("enough")
        mine.withdraw(error)
        time.sleep(SOON)
        assert not Point(mine, 1).done()
        gate.semaphore.signal(1)
        other.wait(WAIT)
        for value in (1, 2):
            with pytest.raises(CallCancelledError) as caught:
                Point(mine, value).wait(WAIT)
            assert caught.value is error
        assert (target.view().view(np.uint32) == 1).all()
        bench.device.submit([Submission(bench.empty(), signal=(Point(mine, 3),))])
        Point(mine, 3).wait(WAIT)

    def test_two_threads_submit(self, bench: Workbench) -> None:
        errors: list[BaseException] = []

        def work(timeline: Semaphore) -> None:
            try:
                for value in range(1, 101):
                    wait = (Point(timeline, value - 1),)
                    bench.device.submit(
                        [Submission(bench.empty(), wait=wait, signal=(Point(timeline, value),))]
                    )
                Point(timeline, 100).wait(WAIT)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(Semaphore(f"thread {i}"),)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors

    def test_close_fails_what_waits(self, fresh: Workbench) -> None:
        never, blocked, done = points("close", 3)
        fresh.device.submit([Submission(fresh.empty(), signal=(done,))])
        fresh.device.submit([Submission(fresh.empty(), wait=(never,), signal=(blocked,))])
        done.wait(WAIT)
        fresh.device.close()
        with pytest.raises(ExecutionError, match=r"closed.*close 0"):
            blocked.wait(WAIT)
        with pytest.raises(DeviceError, match="closed"):
            fresh.device.submit([Submission(fresh.empty(), signal=(Point(Semaphore(), 1),))])
        fresh.device.close()

    @computes
    def test_close_waits_for_what_runs(self, fresh: Workbench) -> None:
        done = points("running", 3)
        work = [fresh.busy() for _ in done]
        fresh.device.submit([Submission(w, signal=(p,)) for w, p in zip(work, done, strict=True)])
        fresh.device.close()
        for point in done:
            assert point.done()
            assert point.error() is None
