"""Queues and completion queues of the native core, without a device."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
import weakref

import pytest

from mansard.errors import CallCancelledError, DeviceError, DeviceLostError, ExecutionError, InputError
from mansard.hal import Point, Semaphore, core_abi, native
from mansard.hal.queue import Queue, QueueEntry


class Thing:
    """Something a submission keeps alive."""


def points(count: int) -> list[Point]:
    return [Point(Semaphore(f"point {i}"), 1) for i in range(count)]


def test_pull_hands_out_ready_batches_in_order() -> None:
    queue, gate, signal = Queue.pulled("pull"), Point(Semaphore(), 1), points(3)
    queue.submit([QueueEntry(0, "late", [gate], [signal[0]])])
    queue.submit([QueueEntry(0, "first", [], [signal[1]]), QueueEntry(0, "second", [], [signal[2]])])
    jobs = [queue.pop(1), queue.pop(1)]
    assert [entry.keep for entry in jobs if entry] == ["first", "second"]
    assert queue.pop(0) is None
    gate.semaphore.signal(1)
    late = queue.pop(1)
    assert late is not None
    assert late.keep == "late"
    for entry in (*jobs, late):
        assert entry is not None
        queue.finish(entry)
    assert all(point.done() for point in signal)
    assert queue.close(1)
    with pytest.raises(EOFError):
        queue.pop(0)


def test_finishing_with_an_error_fails_the_points() -> None:
    queue, (done,) = Queue.pulled("fail"), points(1)
    queue.submit([QueueEntry(0, None, [], [done])])
    entry = queue.pop(1)
    assert entry is not None
    error = ExecutionError("broken")
    queue.finish(entry, error)
    assert done.error() is error
    assert queue.stats().failed == 1
    queue.close()


def test_a_batch_keeps_what_it_uses_until_it_is_done() -> None:
    queue, gate = Queue.pulled("keep"), Point(Semaphore(), 1)
    thing = Thing()
    alive = weakref.ref(thing)
    queue.submit([QueueEntry(0, thing, [gate], [])])
    del thing
    gc.collect()
    assert alive() is not None
    gate.semaphore.signal(1)
    entry = queue.pop(1)
    assert entry is not None
    queue.finish(entry)
    del entry
    queue.submit([])
    assert alive() is None
    queue.close()


def test_a_batch_outlives_its_semaphores() -> None:
    queue = Queue.pulled("outlive")
    gate, done = points(2)
    queue.submit([QueueEntry(0, None, [gate], [done])])
    gate.semaphore.signal(1)
    del gate, done
    gc.collect()
    entry = queue.pop(1)
    assert entry is not None
    queue.finish(entry)
    queue.close()


def test_close_waits_for_what_runs_and_fails_what_waits() -> None:
    queue = Queue.pulled("closing")
    gate, running, waiting = points(3)
    queue.submit([QueueEntry(0, None, [], [running]), QueueEntry(0, None, [gate], [waiting])])
    entry = queue.pop(1)
    assert entry is not None
    assert not queue.close(0.05)
    with pytest.raises(
        ExecutionError, match=r"closing was closed while .*point 1 of semaphore point 0 \(now at 0\)"
    ):
        waiting.wait(1)
    with pytest.raises(DeviceError, match="closing is closed"):
        queue.submit([QueueEntry(0, None)])
    queue.finish(entry)
    running.wait(1)
    assert queue.close(1)


def test_close_runs_what_is_ready() -> None:
    queue, (done,) = Queue.pulled("ready"), points(1)
    queue.submit([QueueEntry(0, None, [], [done])])
    closer = threading.Thread(target=queue.close)
    closer.start()
    time.sleep(0.02)
    entry = queue.pop(1)
    assert entry is not None
    queue.finish(entry)
    closer.join(10)
    assert not closer.is_alive()
    done.wait(0)


def test_poison_fails_everything() -> None:
    queue = Queue.pulled("lost")
    gate, waiting, ready, later = points(4)
    queue.submit([QueueEntry(0, None, [gate], [waiting]), QueueEntry(0, None, [], [ready])])
    lost = DeviceLostError("gone")
    queue.poison(lost)
    queue.submit([QueueEntry(0, None, [], [later])])
    assert [p.error() for p in (waiting, ready, later)] == [lost] * 3
    assert queue.pop(0) is None
    assert queue.close(1)


def test_stats_and_records() -> None:
    queue, gate = Queue.pulled("stats"), Point(Semaphore(), 1)
    queue.submit([QueueEntry(0, None), QueueEntry(0, None, [gate])])
    assert (queue.stats().submitted, queue.stats().waiting) == (2, 1)
    entry = queue.pop(1)
    assert entry is not None
    time.sleep(0.02)
    assert queue.stats().busy_ns > 15_000_000
    queue.finish(entry)
    busy = queue.stats().busy_ns
    time.sleep(0.01)
    assert queue.stats().busy_ns == busy
    (record,) = queue.records()
    assert record.submit_ns <= record.ready_ns <= record.start_ns < record.end_ns
    assert record.end_ns - record.start_ns <= busy
    gate.semaphore.fail(1, ExecutionError("x"))
    assert queue.records()[1].start_ns == 0
    assert [r.token for r in queue.records(1)] == [2]
    assert queue.stats().failed == 1
    queue.close()


def test_a_chain_of_ten_thousand_uses_a_bounded_stack() -> None:
    queue, timeline = Queue.pulled("deep"), Semaphore("deep")
    entries = [
        QueueEntry(0, None, [Point(timeline, i)], [Point(timeline, i + 1)])
        for i in reversed(range(1, 10_001))
    ]
    queue.submit(entries)
    error = ExecutionError("first of many")
    timeline.fail(1, error)
    assert Point(timeline, 10_001).error() is error
    assert queue.close(5)


def taken(queue: Queue) -> list[object]:
    """What the ready submissions of a queue keep, in the order in which they are handed out."""
    kept = []
    while entry := queue.pop(0):
        kept.append(entry.keep)
        queue.finish(entry)
    return kept


def test_ready_batches_are_ordered_by_priority_then_by_submission() -> None:
    queue, gate = Queue.pulled("urgent"), Point(Semaphore("gate"), 1)
    done = {name: Semaphore(name) for name in ("early", "late", "urgent", "idle", "urgent and waiting")}
    for name, priority in (("urgent", 7), ("idle", -3), ("urgent and waiting", 7)):
        done[name].priority = priority
    waits = {"early": [gate], "urgent and waiting": [gate]}
    for name in ("idle", "early", "urgent and waiting", "late", "urgent"):
        queue.submit([QueueEntry(0, name, waits.get(name, ()), [Point(done[name], 1)])])
    queue.submit([QueueEntry(0, "without a point")])
    gate.semaphore.signal(1)
    assert taken(queue) == ["urgent and waiting", "urgent", "early", "late", "without a point", "idle"]
    queue.close()


def test_a_batch_keeps_the_priority_it_was_submitted_with() -> None:
    queue, (a, b) = Queue.pulled("kept"), (Semaphore(), Semaphore())
    a.priority = 1
    queue.submit([QueueEntry(0, "b", (), [Point(b, 1)]), QueueEntry(0, "a", (), [Point(a, 1)])])
    a.priority = -1
    assert taken(queue) == ["a", "b"]
    with pytest.raises(InputError, match="not 2147483648"):
        a.priority = 2**31
    queue.close()


def test_withdrawing_fails_what_has_not_begun_and_nothing_else() -> None:
    one, two = Queue.pulled("one"), Queue.pulled("two")
    mine, others, gate = Semaphore("mine"), Semaphore("others"), Point(Semaphore("gate"), 1)
    one.submit([QueueEntry(0, "begun", (), [Point(mine, 1)])])
    begun = one.pop(0)
    assert begun is not None
    one.submit([QueueEntry(0, "ready", (), [Point(mine, 2)]), QueueEntry(0, "other", (), [Point(others, 1)])])
    two.submit([QueueEntry(0, "waiting", [Point(mine, 1), gate], [Point(mine, 3)])])
    two.submit([QueueEntry(0, "other", [Point(mine, 1)], [Point(others, 2)])])
    error = CallCancelledError("enough")
    mine.withdraw(error)
    assert Point(mine, 2).error() is error
    assert taken(one) == ["other"]
    assert not Point(mine, 3).done()  # what it waits for may still run
    one.finish(begun)
    assert Point(mine, 1).error() is None
    assert taken(two) == ["other"]
    assert not Point(mine, 3).done()
    gate.semaphore.signal(1)
    assert Point(mine, 3).error() is error
    assert taken(two) == []
    one.submit([QueueEntry(0, "later", (), [Point(mine, 4)])])
    assert taken(one) == ["later"]
    assert (one.stats().failed, two.stats().failed) == (1, 1)
    assert one.close(1)
    assert two.close(1)


class Completion:
    """The completion queue of the core, for tests."""

    def __init__(self) -> None:
        self.handle = native.check_handle(native.core.mn_completion_create())

    def add(self, point: Point, token: int) -> None:
        native.check(native.core.mn_completion_add(self.handle, point.semaphore.handle, point.value, token))

    def next(self, timeout: float, capacity: int = 8) -> tuple[int, list[int]]:
        tokens, count = (ctypes.c_uint64 * capacity)(), ctypes.c_uint32()
        code = native.core.mn_completion_next(
            self.handle, int(timeout * 1e9), tokens, capacity, ctypes.byref(count)
        )
        return code, tokens[: count.value]


def test_completion_queue_delivers_reached_and_failed_points() -> None:
    completion, (a, b, c) = Completion(), points(3)
    for token, point in enumerate((a, b, c), start=10):
        completion.add(point, token)
    assert completion.next(0) == (core_abi.TIMEOUT, [])
    b.semaphore.signal(1)
    a.semaphore.fail(1, ExecutionError("x"))
    assert completion.next(0, capacity=1) == (core_abi.OK, [11])
    assert completion.next(0) == (core_abi.OK, [10])
    completion.add(b, 99)
    assert completion.next(0) == (core_abi.OK, [99])
    threading.Timer(0.02, c.semaphore.signal, (1,)).start()
    assert completion.next(10) == (core_abi.OK, [12])
    native.core.mn_completion_release(completion.handle)


def test_completion_queue_closes_and_withdraws() -> None:
    completion, (a, b) = Completion(), points(2)
    completion.add(a, 1)
    completion.add(b, 2)
    a.semaphore.signal(1)
    threading.Timer(0.02, native.core.mn_completion_close, (completion.handle,)).start()
    assert completion.next(10) == (core_abi.OK, [1])
    assert completion.next(10) == (core_abi.CLOSED, [])
    native.core.mn_completion_release(completion.handle)
    b.semaphore.signal(1)
