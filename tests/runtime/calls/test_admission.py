"""Permits: who gets the next one, who is refused, and that none is lost."""

from __future__ import annotations

import random
import sys
import threading
import time

import pytest

from mansard.errors import QueueFullError
from mansard.runtime.calls.admission import Gate, Place


def filled(gate: Gate, *priorities: int) -> tuple[list[int], list[Place]]:
    """Waiters by number behind a gate without free permits, and a list of those that have got one."""
    entered: list[int] = []
    places = []
    for number, priority in enumerate(priorities):
        place = gate.enter(lambda number=number: entered.append(number), priority)
        assert place is not None
        places.append(place)
    return entered, places


def held(permits: int, max_queued: int | None = None) -> Gate:
    gate = Gate(permits, max_queued)
    for _ in range(permits):
        assert gate.wait()
    return gate


def test_permits_go_by_priority_then_by_arrival():
    gate = held(1)
    entered, _ = filled(gate, 0, 5, 0, -1, 5)
    for _ in range(5):
        gate.leave()
    assert entered == [1, 4, 0, 2, 3]
    gate.leave()
    assert gate.wait(timeout=0)


def test_a_full_queue_refuses_at_once_and_names_the_limit():
    gate = held(2, max_queued=2)
    _, places = filled(gate, 0, 0)
    with pytest.raises(QueueFullError, match=r"2 calls .* no more than 2 may \(max_queued\) while 2 run"):
        gate.enter(lambda: None, priority=9)
    with pytest.raises(QueueFullError):
        gate.wait(timeout=10)
    assert gate.withdraw(places[0])
    filled(gate, 0)
    with pytest.raises(QueueFullError):
        gate.wait()


def test_without_a_queue_only_free_permits_are_given():
    gate = Gate(1, max_queued=0)
    assert gate.wait()
    with pytest.raises(QueueFullError, match="no more than 0"):
        gate.wait()
    gate.leave()
    assert gate.wait()


def test_who_leaves_the_queue_is_passed_over():
    gate = held(1)
    entered, places = filled(gate, 0, 0, 0)
    assert gate.withdraw(places[0])
    assert not gate.withdraw(places[0])
    gate.leave()
    assert entered == [1]
    assert not gate.withdraw(places[1])  # it has its permit
    assert gate.withdraw(places[2])
    gate.leave()
    assert entered == [1]
    assert gate.wait(timeout=0)


def test_a_wait_ends_in_time_and_leaves_no_trace():
    gate = held(1, max_queued=1)
    for _ in range(3):
        assert not gate.wait(timeout=0.005)
    gate.leave()
    assert gate.wait(timeout=0)


def test_many_places_that_were_left_do_not_pile_up():
    gate = held(1)
    entered, (kept,) = filled(gate, 0)
    for _ in range(5000):
        place = gate.enter(lambda: None)
        assert place is not None
        gate.withdraw(place)
    assert len(gate._queue) < 200
    gate.leave()
    assert entered == [0]
    assert not gate.withdraw(kept)


def test_waiters_that_leave_at_once_do_not_nest():
    gate = held(1)
    depths = []

    def fail() -> None:
        depth, frame = 0, sys._getframe()
        while frame is not None:
            depth, frame = depth + 1, frame.f_back
        depths.append(depth)
        gate.leave()

    for _ in range(3000):
        gate.enter(fail)
    gate.leave()
    assert len(depths) == 3000
    assert len(set(depths)) == 1
    assert gate.wait(timeout=0)


def test_exclusive_waits_for_who_came_before_and_holds_off_who_comes_later():
    gate = held(2)
    entered, _ = filled(gate, 0, -7)
    inside, release, log = threading.Event(), threading.Event(), []

    def exclude() -> None:
        with gate.exclusive():
            log.extend(entered)
            inside.set()
            release.wait()

    threads = [threading.Thread(target=exclude) for _ in range(2)]
    threads[0].start()
    while len(gate._queue) < 4:
        time.sleep(0.001)
    late = gate.enter(lambda: entered.append(2), priority=100)
    assert late is not None
    threads[1].start()
    for _ in range(4):
        gate.leave()
    assert inside.wait(10)
    assert log == [0, 1]
    assert entered == [0, 1]
    release.set()
    threads[0].join(10)
    gate.leave()
    threads[1].join(10)
    assert entered == [0, 1, 2]
    assert gate.wait(timeout=0)
    assert gate.wait(timeout=0)


def test_threads_never_hold_more_than_there_are_and_lose_none():
    gate = Gate(3, max_queued=5)
    lock, running, most, refused = threading.Lock(), 0, 0, 0

    def work(seed: int) -> None:
        nonlocal running, most, refused
        rng = random.Random(seed)
        for _ in range(150):
            try:
                got = gate.wait(rng.randrange(-2, 3), rng.choice([None, 0.0005]))
            except QueueFullError:
                refused += 1
                continue
            if not got:
                continue
            with lock:
                running += 1
                most = max(most, running)
            if rng.random() < 0.3:
                time.sleep(0.0003)
            with lock:
                running -= 1
            gate.leave()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most <= 3
    assert running == 0
    with gate.exclusive():
        pass
