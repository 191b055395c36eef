"""Memory lent and taken back at points of timelines."""

from __future__ import annotations

import numpy as np
import pytest
from support.fake_device import FakeDevice

from mansard.errors import ExecutionError, OutOfMemoryError
from mansard.hal import BufferPool, BufferRef, FillCommand, MemoryKind, Point, Semaphore, Submission

DEVICE, SHARED = MemoryKind.DEVICE, MemoryKind.SHARED


@pytest.fixture
def device():
    device = FakeDevice("gpu")
    yield device
    device.close()


def test_memory_is_lent_again_in_the_order_of_the_queue(device):
    pool = device.pool
    assert device.pool is pool
    first = pool.alloca(4096)
    assert first.wait == ()
    done = Point(Semaphore("work"), 1)
    pool.dealloca(first.buffer, (done,))
    second = pool.alloca(4000)
    assert second.buffer is first.buffer
    assert second.wait == (done,)
    done.semaphore.signal(1)
    pool.dealloca(second.buffer, (done,))
    assert pool.alloca(4096).wait == ()


def test_idle_memory_goes_first_and_the_smallest_that_fits(device):
    pool = device.pool
    busy, large, small = (pool.alloca(size).buffer for size in (300_000, 500_000, 400_000))
    pending = Point(Semaphore("pending"), 1)
    pool.dealloca(busy, (pending,))
    pool.dealloca(large)
    pool.dealloca(small)
    assert pool.alloca(300_000).buffer is small
    assert pool.alloca(300_000).buffer is large
    assert pool.alloca(300_000).wait == (pending,)
    assert pool.alloca(300_000).buffer not in (busy, large, small)


def test_neither_other_kinds_nor_much_larger_memory_is_lent(device):
    pool = device.pool
    shared, huge = pool.alloca(4096, SHARED).buffer, pool.alloca(1 << 20).buffer
    pool.dealloca(shared)
    pool.dealloca(huge)
    assert pool.alloca(4096).buffer not in (shared, huge)
    assert pool.alloca(4096, SHARED).buffer is shared


def test_a_failed_point_is_passed(device):
    pool = device.pool
    buffer, failed = pool.alloca(4096).buffer, Point(Semaphore("failed"), 1)
    pool.dealloca(buffer, (failed,))
    failed.semaphore.fail(1, ExecutionError("lost"))
    assert pool.alloca(4096).wait == ()


def test_free_memory_beyond_what_is_kept_goes_back(device):
    pool = BufferPool(device.allocate, kept=100_000)
    pending = Point(Semaphore("pending"), 1)
    buffers = [pool.alloca(size).buffer for size in (60_000, 70_000, 80_000)]
    pool.dealloca(buffers[0], (pending,))  # in use: cannot go yet
    pool.dealloca(buffers[1])
    assert buffers[1].closed and not buffers[0].closed
    pool.dealloca(buffers[2])
    assert buffers[2].closed and pool.free_bytes == 60_000
    pool.close()
    assert buffers[0].closed and pool.free_bytes == 0


def test_idle_memory_makes_room(device):
    left = [2]

    def allocate(size, kind, label):
        if not left[0]:
            raise OutOfMemoryError("full")
        left[0] -= 1
        return device.allocate(size, kind, label)

    pool = BufferPool(allocate)
    buffers = [pool.alloca(1 << 20).buffer for _ in range(2)]
    with pytest.raises(OutOfMemoryError):
        pool.alloca(4096)
    pool.dealloca(buffers[0])

    def close(self=buffers[0], original=buffers[0].close):
        left[0] += 1
        original()

    buffers[0].close = close
    assert pool.alloca(4096).buffer.size >= 4096
    assert buffers[0].closed


def test_work_on_lent_memory_follows_the_work_before(device):
    pool, timeline = device.pool, Semaphore("timeline")
    device.gate.clear()  # the device does not get on
    seen = pool.alloca(4096, SHARED).buffer
    for number in range(1, 4):
        point = Point(timeline, number)
        loan = pool.alloca(64, SHARED) if number > 1 else None
        buffer, wait = (seen, ()) if loan is None else (loan.buffer, loan.wait)
        assert buffer is seen
        assert wait == (() if number == 1 else (Point(timeline, number - 1),))
        device.submit(
            [Submission(device.record([FillCommand(BufferRef(buffer), 4096, number)]), wait, (point,))]
        )
        pool.dealloca(buffer, (point,))
    assert not Point(timeline, 1).done()
    device.gate.set()
    Point(timeline, 3).wait(10)
    assert (seen.view().view(np.uint32) == 3).all()
