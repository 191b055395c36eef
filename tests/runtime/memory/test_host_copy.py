"""Copies by the host: all bytes, nothing beside them, and points in order."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from mansard.errors import InputError
from mansard.hal import Point, Semaphore
from mansard.runtime.memory import host_copy
from mansard.runtime.memory.host_copy import NATIVE_COPY_BYTES, HostCopy, copy_all, copy_threads, flat

MB = 1 << 20
SIZES = [
    (NATIVE_COPY_BYTES - 1,),
    (NATIVE_COPY_BYTES,),
    (9 * MB + 77,),
    (3 * MB, 0, 5, 4 * MB + 1, 130),
    (1,) * 40,
]


def _pairs(sizes, shift=1):
    rng = np.random.default_rng(0)
    sources = [rng.integers(0, 256, size + shift, np.uint8)[shift:] for size in sizes]
    targets = [np.full(size + 2 * shift + 1, 7, np.uint8) for size in sizes]
    return [
        HostCopy(s, t[shift + 1 : shift + 1 + s.size]) for s, t in zip(sources, targets, strict=True)
    ], targets


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("shift", [0, 1, 63])
def test_copies_what_it_is_told_and_nothing_else(sizes, threads, shift):
    copies, targets = _pairs(sizes, shift)
    copy_all(copies, threads)
    for copy, target in zip(copies, targets, strict=True):
        np.testing.assert_array_equal(copy.source, copy.target)
        assert (target[: shift + 1] == 7).all() and (target[shift + 1 + copy.source.size :] == 7).all()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_points_come_in_order_each_behind_its_bytes(sizes):
    copies, _ = _pairs(sizes)
    timeline = Semaphore("copies")
    copies = [HostCopy(c.source, c.target, Point(timeline, n + 1)) for n, c in enumerate(copies)]
    wrong = []

    def watch():
        for copy in copies:
            copy.done.wait(10)
            wrong.extend([copy.done.value] if (copy.source != copy.target).any() else [])

    watcher = threading.Thread(target=watch)
    watcher.start()
    copy_all(copies, 3)
    watcher.join()
    assert (wrong, timeline.value) == ([], len(sizes))


def test_several_threads_copy_at_once():
    jobs = [_pairs((2 * MB + n, 3 * MB), n)[0] for n in range(4)]

    def work(copies):
        for _ in range(10):
            for copy in copies:
                copy.target[:] = 0
            copy_all(copies, 4)
            for copy in copies:
                np.testing.assert_array_equal(copy.source, copy.target)

    errors = []
    threads = [threading.Thread(target=lambda c=c: errors.append(_error(work, c))) for c in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [None] * 4


def _error(work, copies):
    try:
        work(copies)
    except AssertionError as error:
        return error
    return None


@pytest.mark.threads_after_fork
def test_a_forked_process_has_helpers_of_its_own():
    copies, _ = _pairs((8 * MB,))
    copy_all(copies, 3)
    child = os.fork()
    if child == 0:
        copies[0].target[:] = 0
        copy_all(copies, 3)
        os._exit(0 if (copies[0].source == copies[0].target).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_flat_shares_memory():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.shares_memory(flat(array), array) and flat(array).size == 24


@pytest.mark.parametrize(("text", "threads"), [("", 0), ("1", 1), ("16", 16)])
def test_the_environment_may_say_how_many_threads(monkeypatch, text, threads):
    monkeypatch.setenv(host_copy.THREADS_VARIABLE, text)
    assert copy_threads.__wrapped__() == threads


@pytest.mark.parametrize("text", ["0", "17", "-1", "two", "1.5"])
def test_wrong_numbers_of_threads_are_refused(monkeypatch, text):
    monkeypatch.setenv(host_copy.THREADS_VARIABLE, text)
    with pytest.raises(InputError, match=f"MANSARD_COPY_THREADS={text}: a copy takes 1 to 16"):
        copy_threads.__wrapped__()
