"""Permits: who gets the next one, who is refused, and that none is lost."""

from __future__ import annotations

import random
import sys
import threading
import time

import pytest

from mansard.errors import QueueFullError
from mansard.runtime.calls.admission import Admission, WaitingCall


def filled(admission: Admission, *priorities: int) -> tuple[list[int], list[WaitingCall]]:
    """Waiters by number behind a admission without free permits, and a list of those that have got one."""
    entered: list[int] = []
    entries = []
    for number, priority in enumerate(priorities):
        entry = admission.admit(lambda number=number: entered.append(number), priority)
        assert entry is not None
        entries.append(entry)
    return entered, entries


def held(permits: int, max_queued: int | None = None) -> Admission:
    admission = Admission(permits, max_queued)
    for _ in range(permits):
        assert admission.acquire()
    return admission


def test_permits_go_by_priority_then_by_arrival():
    admission = held(1)
    entered, _ = filled(admission, 0, 5, 0, -1, 5)
    for _ in range(5):
        admission.release()
    assert entered == [1, 4, 0, 2, 3]
    admission.release()
    assert admission.acquire(timeout=0)


def test_a_full_queue_refuses_at_once_and_names_the_limit():
    admission = held(2, max_queued=2)
    _, entries = filled(admission, 0, 0)
    with pytest.raises(QueueFullError, match=r"2 calls .* no more than 2 may \(max_queued\) while 2 run"):
        admission.admit(lambda: None, priority=9)
    with pytest.raises(QueueFullError):
        admission.acquire(timeout=10)
    assert admission.cancel(entries[0])
    filled(admission, 0)
    with pytest.raises(QueueFullError):
        admission.acquire()


def test_without_a_queue_only_free_permits_are_given():
    admission = Admission(1, max_queued=0)
    assert admission.acquire()
    with pytest.raises(QueueFullError, match="no more than 0"):
        admission.acquire()
    admission.release()
    assert admission.acquire()


def test_who_leaves_the_queue_is_passed_over():
    admission = held(1)
    entered, entries = filled(admission, 0, 0, 0)
    assert admission.cancel(entries[0])
    assert not admission.cancel(entries[0])
    admission.release()
    assert entered == [1]
    assert not admission.cancel(entries[1])  # it has its permit
    assert admission.cancel(entries[2])
    admission.release()
    assert entered == [1]
    assert admission.acquire(timeout=0)


def test_a_wait_ends_in_time_and_leaves_no_trace():
    admission = held(1, max_queued=1)
    for _ in range(3):
        assert not admission.acquire(timeout=0.005)
    admission.release()
    assert admission.acquire(timeout=0)


def test_many_places_that_were_left_do_not_pile_up():
    admission = held(1)
    entered, (kept,) = filled(admission, 0)
    for _ in range(5000):
        entry = admission.admit(lambda: None)
        assert entry is not None
        admission.cancel(entry)
    assert len(admission._queue) < 200
    admission.release()
    assert entered == [0]
    assert not admission.cancel(kept)


def test_waiters_that_leave_at_once_do_not_nest():
    admission = held(1)
    depths = []

    def fail() -> None:
        depth, frame = 0, sys._getframe()
        while frame is not None:
            depth, frame = depth + 1, frame.f_back
        depths.append(depth)
        admission.release()

    for _ in range(3000):
        admission.admit(fail)
    admission.release()
    assert len(depths) == 3000
    assert len(set(depths)) == 1
    assert admission.acquire(timeout=0)


def test_exclusive_waits_for_who_came_before_and_holds_off_who_comes_later():
    admission = held(2)
    entered, _ = filled(admission, 0, -7)
    inside, release, log = threading.Event(), threading.Event(), []

    def exclude() -> None:
        with admission.exclusive():
            log.extend(entered)
            inside.set()
            release.wait()

    threads = [threading.Thread(target=exclude) for _ in range(2)]
    threads[0].start()
    while len(admission._queue) < 4:
        time.sleep(0.001)
    late = admission.admit(lambda: entered.append(2), priority=100)
    assert late is not None
    threads[1].start()
    for _ in range(4):
        admission.release()
    assert inside.wait(10)
    assert log == [0, 1]
    assert entered == [0, 1]
    release.set()
    threads[0].join(10)
    admission.release()
    threads[1].join(10)
    assert entered == [0, 1, 2]
    assert admission.acquire(timeout=0)
    assert admission.acquire(timeout=0)


def test_threads_never_hold_more_than_there_are_and_lose_none():
    admission = Admission(3, max_queued=5)
    lock, running, peak, refused = threading.Lock(), 0, 0, 0

    def work(seed: int) -> None:
        nonlocal running, peak, refused
        rng = random.Random(seed)
        for _ in range(150):
            try:
                got = admission.acquire(rng.randrange(-2, 3), rng.choice([None, 0.0005]))
            except QueueFullError:
                refused += 1
                continue
            if not got:
                continue
            with lock:
                running += 1
                peak = max(peak, running)
            if rng.random() < 0.3:
                time.sleep(0.0003)
            with lock:
                running -= 1
            admission.release()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert peak <= 3
    assert running == 0
    with admission.exclusive():
        pass
