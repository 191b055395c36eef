"""Semaphores and points."""

from __future__ import annotations

import _thread
import asyncio
import gc
import signal
import threading
import time
import weakref

import pytest

from mansard import errors
from mansard.hal import Point, Semaphore, core_abi, native


def test_values_only_rise() -> None:
    semaphore = Semaphore("rise")
    assert semaphore.value == 0
    semaphore.signal(5)
    semaphore.signal(3)
    assert semaphore.value == 5
    assert [Point(semaphore, v).done() for v in (0, 3, 5, 6)] == [True, True, True, False]


def test_failure_belongs_to_one_point() -> None:
    semaphore = Semaphore("one")
    semaphore.signal(1)
    error = errors.ExecutionError("three")
    semaphore.fail(3, error)
    assert semaphore.value == 3
    assert Point(semaphore, 3).error() is error
    assert not Point(semaphore, 2).done()
    semaphore.signal(5)
    Point(semaphore, 2).wait()
    Point(semaphore, 4).wait()
    assert Point(semaphore, 4).error() is None
    with pytest.raises(errors.ExecutionError, match="three"):
        Point(semaphore, 3).wait()


def test_the_first_failure_wins() -> None:
    semaphore = Semaphore()
    first = errors.DeviceError("first")
    semaphore.fail(1, first)
    semaphore.fail(1, errors.DeviceError("second"))
    assert Point(semaphore, 1).error() is first


def test_many_failures_in_any_order() -> None:
    semaphore = Semaphore()
    values = [7, 1, 9, 3, 5, 11, 2]
    for value in values:
        semaphore.fail(value, errors.DeviceError(str(value)))
    semaphore.signal(20)
    failures = {v: str(e) for v in range(1, 21) if (e := Point(semaphore, v).error()) is not None}
    assert failures == {v: str(v) for v in values}


@pytest.mark.parametrize(
    "error",
    [
        errors.MansardError("x"),
        errors.DeviceError("x"),
        errors.DeviceUnavailableError("x"),
        errors.OutOfMemoryError("x"),
        errors.DeviceLostError("x"),
        errors.ExecutionError("x"),
        errors.InputError("x"),
        errors.WaitTimeoutError("x"),
        errors.UnsupportedOpError("op", "place", "detail"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_survives_as_itself_or_as_its_class(error: errors.MansardError) -> None:
    semaphore = Semaphore()
    semaphore.fail(1, error)
    assert Point(semaphore, 1).error() is error
    # Natively there are only code and message: the nearest class the core knows is made of them.
    rebuilt = native.exception_of(native.code_of(error), str(error))
    assert isinstance(error, type(rebuilt))
    assert str(rebuilt) == str(error)


def test_subclasses_take_the_code_of_their_nearest_base() -> None:
    class MyExecutionError(errors.ExecutionError):
        pass

    assert native.code_of(MyExecutionError("x")) == core_abi.EXECUTION
    assert native.code_of(errors.ShapeContractError("x")) == core_abi.INPUT


def test_every_waiter_gets_the_same_error_without_a_growing_traceback() -> None:
    semaphore = Semaphore()
    try:
        raise errors.ExecutionError("here")
    except errors.ExecutionError as caught:
        error = caught
    semaphore.fail(1, error)
    depths = []
    for _ in range(3):
        with pytest.raises(errors.ExecutionError) as caught_again:
            Point(semaphore, 1).wait()
        assert caught_again.value is error
        depths.append(len(caught_again.traceback))
    assert depths[0] == depths[1] == depths[2]


class TiredError(errors.ExecutionError):
    """Carries more than a message."""

    def __init__(self, hours: int) -> None:
        super().__init__(hours)
        self.since = "noon"

    def __str__(self) -> str:
        return f"awake for {self.args[0]} hours"


def fail_deep_down(semaphore: Semaphore, *values: int) -> None:
    def raising() -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise TiredError(20) from error

    try:
        raising()
    except TiredError as error:
        for value in values:
            semaphore.fail(value, error)


def test_waiters_get_the_like_of_an_error_that_nobody_has_any_more() -> None:
    semaphore = Semaphore()
    fail_deep_down(semaphore, 1, 2)
    for value in (1, 2, 1):
        with pytest.raises(TiredError, match="awake for 20 hours") as caught:
            Point(semaphore, value).wait()
        assert (caught.value.args, caught.value.since) == ((20,), "noon")
        assert repr(caught.value.__cause__) == "KeyError('first')"
        assert [entry.name for entry in caught.traceback].count("raising") == 1


def test_an_error_that_cannot_be_copied_comes_as_its_nearest_kin() -> None:
    class PickyError(errors.ExecutionError):
        def __init__(self, *, why: str) -> None:
            super().__init__(f"because of {why}")

    semaphore = Semaphore()
    semaphore.fail(1, PickyError(why="noise"))
    with pytest.raises(errors.ExecutionError, match="because of noise"):
        Point(semaphore, 1).wait()


def test_a_coroutine_that_an_error_came_through_goes_on() -> None:
    semaphore, errors_seen = Semaphore(), []

    async def handling() -> str:
        try:
            raise errors.ExecutionError("handled")
        except errors.ExecutionError as error:
            errors_seen.append(error)
            await asyncio.sleep(0)
        return "went on"

    async def main() -> str:
        task = asyncio.ensure_future(handling())
        await asyncio.sleep(0)
        semaphore.fail(1, errors_seen[0])
        return await task

    assert asyncio.run(main()) == "went on"


def test_an_error_does_not_keep_what_it_was_raised_beside() -> None:
    """Neither its frames nor, through them, the semaphore that holds its status."""
    semaphore = Semaphore()
    gone = weakref.ref(semaphore)

    def call(held: Semaphore) -> None:
        try:
            raise errors.ExecutionError("within the call")
        except errors.ExecutionError as error:
            held.fail(1, error)
            raise

    with pytest.raises(errors.ExecutionError):
        call(semaphore)
    del semaphore
    gc.collect()
    assert gone() is None


def test_an_error_does_not_keep_the_callers_of_where_it_was_raised() -> None:
    """A frame refers to its caller's, which keeps its variables when it ends."""
    semaphore = Semaphore()
    gone = weakref.ref(semaphore)

    def submit() -> None:
        raise errors.ExecutionError("within the call")

    def call(held: Semaphore) -> None:
        try:
            submit()
        except errors.ExecutionError as error:
            held.fail(1, error)
            raise

    with pytest.raises(errors.ExecutionError):
        call(semaphore)
    with pytest.raises(errors.ExecutionError) as caught:
        Point(semaphore, 1).wait()
    lines = [entry.name for entry in caught.traceback]
    del semaphore, caught
    gc.collect()
    assert gone() is None
    assert lines[-2:] == ["call", "submit"]


def test_exceptions_are_forgotten_with_their_points() -> None:
    gc.collect()
    before = native.transported_errors()
    semaphores = [Semaphore() for _ in range(50)]
    for semaphore in semaphores:
        semaphore.fail(1, errors.ExecutionError("x"))
    assert native.transported_errors() == before + 50
    del semaphores, semaphore
    gc.collect()
    assert native.transported_errors() == before


def test_wait_wakes_when_signalled() -> None:
    semaphore = Semaphore()
    start = time.monotonic()  # before the timer is started: this thread may have to wait for its turn
    threading.Timer(0.05, semaphore.signal, (1,)).start()
    Point(semaphore, 1).wait(10)
    assert 0.04 < time.monotonic() - start < 5


def test_wait_wakes_when_failed() -> None:
    semaphore = Semaphore()
    threading.Timer(0.02, semaphore.fail, (1, errors.ExecutionError("late"))).start()
    with pytest.raises(errors.ExecutionError, match="late"):
        Point(semaphore, 1).wait(10)


@pytest.mark.parametrize("timeout", [0, 0.001, 0.12])
def test_timeouts_name_what_was_expected_and_seen(timeout: float) -> None:
    semaphore = Semaphore("decoder")
    semaphore.signal(3)
    start = time.monotonic()
    with pytest.raises(errors.WaitTimeoutError, match=r"semaphore decoder: value 7 .*seen is 3"):
        Point(semaphore, 7).wait(timeout)
    assert timeout <= time.monotonic() - start < timeout + 2


def test_a_wait_without_timeout_answers_ctrl_c() -> None:
    # A shell starts background processes with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.1, _thread.interrupt_main).start()
        with pytest.raises(KeyboardInterrupt):
            Point(Semaphore(), 1).wait()
    finally:
        signal.signal(signal.SIGINT, before)


def test_waits_do_not_hold_the_interpreter() -> None:
    semaphore = Semaphore()
    waiters = [threading.Thread(target=Point(semaphore, 1).wait) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    semaphore.signal(1)
    for waiter in waiters:
        waiter.join(10)
        assert not waiter.is_alive()


@pytest.mark.parametrize("value", [-1, 2**64])
def test_values_out_of_range_are_refused(value: int) -> None:
    with pytest.raises(errors.DeviceError, match=str(value)):
        Semaphore().signal(value)
    with pytest.raises(errors.DeviceError, match=str(value)):
        Semaphore().fail(value, errors.ExecutionError("x"))
