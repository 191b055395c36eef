"""Lowering in worker processes, or in this one if the user says so.

One idle worker is kept per process, since starting one takes some 0.4 s; threads that lower at the same time
get one each. A worker that died, or whose request was interrupted, is not used again.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Sequence

from mansard.errors import ImportModelError
from mansard.frontends.mlir_worker import passes
from mansard.frontends.mlir_worker.process import Limits, Worker, WorkerDiedError, WorkerIdleError

MODE_VARIABLE = "MANSARD_LOWERING"
TIMEOUT_VARIABLE = "MANSARD_LOWERING_TIMEOUT"
_MODES = ("worker", "in-process")
_BASE_SECONDS = 20.0
_BYTES_PER_SECOND = 5_000
"""Bytecode lowered per second of the time limit; real models are some twenty times as fast."""
_WALL_FACTOR = 10
_MEMORY = 8 << 30


class Workers:
    """The idle worker of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Worker] = []

    def warm(self) -> None:
        """Start a worker if none is idle, so that the next request need not wait for one."""
        with self._lock:
            if not self._idle:
                self._idle.append(Worker())

    def lower(self, module: bytes, pipelines: Sequence[str], limits: Limits) -> bytes:
        """As `Worker.lower`, by the idle worker or a new one."""
        try:
            return self._lower_with(self._take(), module, pipelines, limits)
        except WorkerIdleError:
            try:
                return self._lower_with(Worker(), module, pipelines, limits)
            except WorkerIdleError:
                raise WorkerDiedError("ended without a reply") from None

    def _take(self) -> Worker:
        with self._lock:
            return self._idle.pop() if self._idle else Worker()

    def _lower_with(self, worker: Worker, module: bytes, pipelines: Sequence[str], limits: Limits) -> bytes:
        try:
            lowered = worker.lower(module, pipelines, limits)
        except passes.PipelineError:
            self._keep(worker)
            raise
        except BaseException:  # KeyboardInterrupt too: the worker is in the middle of a request
            worker.close()
            raise
        self._keep(worker)
        return lowered

    def _keep(self, worker: Worker) -> None:
        with self._lock:
            if not self._idle:
                self._idle.append(worker)
                return
        worker.close()

    def close(self) -> None:
        """End the idle worker."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()

    def forget(self) -> None:
        """In the child of a fork: workers are the parent's, and a thread that is gone may hold the lock."""
        idle = self._idle
        self.__init__()  # type: ignore[misc]
        for worker in idle:
            worker.close()


_workers = Workers()
atexit.register(_workers.close)
os.register_at_fork(after_in_child=_workers.forget)


def lower(module: bytes, pipelines: Sequence[str], cpu_seconds: float | None = None) -> bytes:
    """The bytecode of a module (text or bytecode) after pass pipelines.

    ``cpu_seconds`` limits the time; None for the default, which grows with the module. Raises PipelineError
    for what MLIR reports, and WorkerDiedError when it crashes or exceeds a limit.
    """
    if in_process():
        return passes.lower(module, pipelines)
    return _workers.lower(module, pipelines, limits(len(module), cpu_seconds))


def warm() -> None:
    """Start a worker for a request that will come, unless models are lowered in this process."""
    if not in_process():
        _workers.warm()


def in_process() -> bool:
    """Whether the user chose to lower models in the calling process. Raises ImportModelError."""
    mode = os.environ.get(MODE_VARIABLE, "") or _MODES[0]
    if mode not in _MODES:
        raise ImportModelError(f"{MODE_VARIABLE}={mode!r}: it must be {' or '.join(_MODES)}")
    return mode == "in-process"


def limits(module_bytes: int, cpu_seconds: float | None = None) -> Limits:
    """The limits for a module of so many bytes. Raises ImportModelError for a bad time limit of the user."""
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    if text and cpu_seconds is None:
        with contextlib.suppress(ValueError):
            cpu_seconds = float(text)
        if cpu_seconds is None or not 0 < cpu_seconds < 1e8:
            raise ImportModelError(f"{TIMEOUT_VARIABLE}={text!r}: it must be a number of seconds above 0")
    seconds = cpu_seconds or _BASE_SECONDS + module_bytes / _BYTES_PER_SECOND
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Limits(seconds, seconds * _WALL_FACTOR, min(_MEMORY, physical // 2))
