"""Submission queues on the native core: what every driver's ``submit`` is made of."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from mansard.errors import MansardError
from mansard.hal import core_abi, native
from mansard.hal.buffer import Buffer
from mansard.hal.semaphore import Point

_SLICE_NS = 50_000_000


@dataclass(frozen=True)
class QueueStats:
    """What a queue has done so far. Counts are submissions; ``busy_ns`` is the time at least one ran."""

    submitted: int
    completed: int
    failed: int
    waiting: int
    running: int
    busy_ns: int


@dataclass(frozen=True)
class QueueRecord:
    """Times of one finished submission on ``time.monotonic_ns``'s clock; start = end = 0: it never ran."""

    token: int
    submit_ns: int
    ready_ns: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class QueueEntry:
    """A submission as the core takes it.

    ``work`` is the pointer the executor receives (0 in pull mode), ``keep`` is kept alive until the
    submission is done, ``slots`` are the addresses of the binding slots by index (0: not bound).
    """

    work: int
    keep: object
    wait: Sequence[Point] = ()
    signal: Sequence[Point] = ()
    slots: Sequence[int] = ()


@dataclass(frozen=True)
class ReadyEntry:
    """A submission taken from a queue in pull mode; to be finished exactly once (`Queue.finish`)."""

    handle: int
    keep: object


class Queue:
    """An event-driven queue of the native core; every method may be called from any thread.

    A submission becomes ready when its waits are complete and never holds back another. Of those that are
    ready, the one with the highest priority (`Semaphore.priority`) is next, of equals the first submitted.
    When a wait failed the submission does not run, and its signals fail with the same error. ``Queue`` keeps
    what a submission uses alive until the submission is done.
    """

    def __init__(self, handle: int) -> None:
        """Take over one reference to an ``mn_queue``."""
        self.handle = handle
        self._held: dict[int, object] = {}
        self._tokens = itertools.count(1)

    @classmethod
    def pulled(cls, label: str) -> Queue:
        """A queue whose ready submissions a thread of the driver takes with `pop`."""
        options = core_abi.QueueOptionsStruct(label=native.encode(label), mode=core_abi.QUEUE_PULL)
        return cls(native.check_handle(native.core.mn_queue_create(ctypes.byref(options))))

    def submit(self, entries: Sequence[QueueEntry]) -> None:
        """Hand over submissions in one call, all or none; raises DeviceError when the queue is closed."""
        native.drop_retired(self.handle, self._held)
        tokens = [next(self._tokens) for _ in entries]
        submissions = (core_abi.SubmissionDescStruct * len(entries))(
            *(_submission(entry, token) for entry, token in zip(entries, tokens, strict=True))
        )
        keep = dict(zip(tokens, (entry.keep for entry in entries), strict=True))
        address = ctypes.addressof(submissions)
        native.check(native.submit_held(self.handle, address, len(entries), self._held, keep))

    def pop(self, timeout: float) -> ReadyEntry | None:
        """Pull mode: the next ready submission, None after ``timeout`` seconds.

        Raises EOFError once the queue is closed and empty."""
        submission = ctypes.c_void_p()
        code = native.core.mn_queue_pop(self.handle, int(timeout * 1e9), ctypes.byref(submission))
        if code == core_abi.CLOSED:
            raise EOFError("the queue is closed")
        if submission.value is None:
            return None
        return ReadyEntry(submission.value, self._held[native.core.mn_submission_token(submission)])

    def finish(self, entry: ReadyEntry, error: MansardError | None = None) -> None:
        """Complete a popped submission: signal its points, or fail them with ``error``."""
        status = native.Status.of(error) if error is not None else None
        native.core.mn_submission_finish(entry.handle, status.handle if status else None)

    def poison(self, error: MansardError) -> None:
        """The device is lost: fail what waits and what will be submitted."""
        status = native.Status.of(error)
        native.core.mn_queue_poison(self.handle, status.handle)

    def close(self, timeout: float | None = None) -> bool:
        """Fail what still waits, and wait for what runs; False when it still runs after ``timeout``.

        May be called again. Not to be called by the thread that executes the queue's work.
        """
        deadline = None if timeout is None else time.monotonic_ns() + int(timeout * 1e9)
        while True:
            left = _SLICE_NS if deadline is None else max(0, deadline - time.monotonic_ns())
            code = native.core.mn_queue_close(self.handle, min(left, _SLICE_NS))
            if code == core_abi.OK:
                native.drop_retired(self.handle, self._held)
                return True
            if code != core_abi.TIMEOUT:
                native.check(code)
            if left == 0:
                return False

    def stats(self) -> QueueStats:
        """Counters and busy time up to now."""
        stats = core_abi.StatsStruct()
        native.core.mn_queue_get_stats(self.handle, ctypes.byref(stats))
        return QueueStats(**{f.name: getattr(stats, f.name) for f in fields(QueueStats)})

    def records(self, limit: int = core_abi.QUEUE_RECORDS) -> list[QueueRecord]:
        """The most recent finished submissions, oldest first; the core keeps `core_abi.QUEUE_RECORDS`."""
        return read_records(self.handle, limit)

    # At interpreter exit this module may be gone before its last object: the default keeps the function.
    def __del__(self, release: Callable[[int], None] = native.core.mn_queue_release) -> None:
        if handle := self.__dict__.get("handle"):
            release(handle)


def read_records(handle: int, limit: int = core_abi.QUEUE_RECORDS) -> list[QueueRecord]:
    """The most recent finished submissions of an ``mn_queue``, oldest first."""
    records = (core_abi.RecordStruct * limit)()
    count = native.core.mn_queue_records(handle, records, limit)
    names = [f.name for f in fields(QueueRecord)]
    return [QueueRecord(**{name: getattr(r, name) for name in names}) for r in records[:count]]


def slot_addresses(bindings: Mapping[int, Buffer]) -> list[int]:
    """The addresses of `Submission.bindings` by slot index; 0 where a slot is not bound."""
    if not bindings:
        return []
    slots = [0] * (max(bindings) + 1)
    for index, buffer in bindings.items():
        slots[index] = buffer.address
    return slots


def _points(points: Sequence[Point]) -> ctypes.Array[core_abi.PointStruct] | None:
    if not points:
        return None
    return (core_abi.PointStruct * len(points))(
        *(core_abi.PointStruct(p.semaphore.handle, p.value) for p in points)
    )


def _submission(entry: QueueEntry, token: int) -> core_abi.SubmissionDescStruct:
    # ctypes keeps the arrays alive through the struct's fields.
    return core_abi.SubmissionDescStruct(
        waits=_points(entry.wait),
        signals=_points(entry.signal),
        slots=(ctypes.c_uint64 * len(entry.slots))(*entry.slots) if entry.slots else None,
        work=entry.work or None,
        token=token,
        wait_count=len(entry.wait),
        signal_count=len(entry.signal),
        slot_count=len(entry.slots),
    )
