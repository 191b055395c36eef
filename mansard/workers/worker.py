"""A module's functions in a child process: calls with time limits, and a new process where one has died."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from mansard.errors import WorkerCallError, WorkerLostError, WorkerUnavailableError
from mansard.workers import messages
from mansard.workers.arena import Arena
from mansard.workers.child import BOOTSTRAP
from mansard.workers.environment import Environment
from mansard.workers.process import ChildProcess

_GRACE = 5
"""Seconds after its time limit in which the kernel ends a child whose parent does not."""


class Worker:
    """Calls functions of ``module`` in a child process, which starts with the first call.

    Arguments and results are numbers, texts, lists, tuples, dicts, bytes and NumPy arrays; the child sees
    arrays and bytes as views of shared memory, valid during the call, and the caller gets copies.
    Calls of several threads come one after another. A child that dies or exceeds its time is an error of its
    call, and the next call starts another.

    ``name`` stands for the worker in messages, such as that of the library; ``seconds`` limits a call,
    ``start_seconds`` the import of the module.
    """

    def __init__(
        self,
        module: str,
        environment: Environment | None = None,
        *,
        name: str = "",
        seconds: float = 600.0,
        start_seconds: float = 120.0,
    ) -> None:
        self.module, self.name = module, name or module
        self.environment = environment or Environment()
        self.seconds, self.start_seconds = seconds, start_seconds
        self._lock = threading.RLock()
        self._child: _Child | None = None
        _workers.add(self)

    def call(self, function: str, *arguments: Any, seconds: float | None = None) -> Any:
        """What a function of the module returns; ``seconds`` limits this call.

        Raises WorkerCallError for what the function raises, WorkerLostError when the child died, was ended by
        `cancel` or took too long, WorkerUnavailableError when it cannot be started or lacks a package.
        """
        with self._lock:
            child = self._ready()
            return self._ask(child, {"function": function}, arguments, seconds)

    def make(self, function: str, *arguments: Any) -> Remote:
        """An object that a function returns, kept in the child; a new child makes it anew."""
        return Remote(self, function, arguments)

    def start(self) -> None:
        """Start the child now, if there is none. Raises WorkerUnavailableError, WorkerLostError."""
        with self._lock:
            self._ready()

    def cancel(self) -> None:
        """End the child, from any thread: a call in progress raises WorkerLostError."""
        child = self._child
        if child is not None and child.process.owner == os.getpid():
            child.cancelled = True
            with contextlib.suppress(ProcessLookupError):
                child.process.process.kill()

    def close(self) -> None:
        """End the child, and with it a call in progress."""
        self.cancel()
        with self._lock:
            self._discard()

    def _ready(self) -> _Child:
        """The child, started if there is none, or none of this process's."""
        child = self._child
        if child is not None and child.usable:
            return child
        self._discard()
        self._child = child = _Child(self.environment, self.name)
        header = {"module": self.module, "requires": list(self.environment.requires)}
        reply = self._exchange(child, header, self.start_seconds)
        if problems := reply.get("missing"):
            self._discard()
            where = self.environment.python or "this Python environment"
            raise WorkerUnavailableError(f"{self.name}: {where} lacks {', '.join(problems)}")
        self._result(reply, "import")
        return child

    def _ask(
        self, child: _Child, header: dict[str, Any], arguments: Sequence[Any], seconds: float | None
    ) -> Any:
        child.arena.resume(0)
        header["arguments"] = child.arena.encode(list(arguments))
        header["dropped"], child.dropped = child.dropped, []
        reply = self._exchange(child, header, self.seconds if seconds is None else seconds)
        return child.arena.decode(self._result(reply, header["function"]), copy=True)

    def _exchange(self, child: _Child, header: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The reply to a request; whatever else happens, the child is ended."""
        header |= {"seconds": seconds + _GRACE, "end": child.arena.end}
        what = header.get("function") or f"the import of {self.module}"
        try:
            return child.process.request(header, b"", seconds)[0]
        except messages.ClosedError:
            how = child.process.wait()
            self._discard()
            if child.cancelled:
                raise WorkerLostError(f"{self.name}: {what} was cancelled") from None
            raise WorkerLostError(f"{self.name}: its process {how} (in {what})") from None
        except TimeoutError:
            printed = child.process.last_line()
            self._discard()
            last = f"; it last printed: {printed}" if printed else ""
            raise WorkerLostError(
                f"{self.name}: {what} did not end within {seconds:g} s, and its process was ended{last}"
            ) from None
        except BaseException:  # KeyboardInterrupt too: the child is in the middle of a request
            self._discard()
            raise

    def _result(self, reply: dict[str, Any], function: str) -> Any:
        if "error" in reply:
            raise WorkerCallError(self.name, function, reply["error"], reply["message"], reply["traceback"])
        return reply.get("result")

    def _discard(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._discard()

    def _forked(self) -> None:
        """In the child of a fork: a thread that is gone may hold the lock."""
        self._lock = threading.RLock()


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _after_fork() -> None:
    for worker in _workers:
        worker._forked()


os.register_at_fork(after_in_child=_after_fork)


class Remote:
    """An object in a worker's child. Where that had to be replaced, the object is made anew."""

    def __init__(self, worker: Worker, function: str, arguments: tuple[Any, ...]) -> None:
        self._worker, self._function, self._arguments = worker, function, arguments
        self._child: _Child | None = None
        self._number = 0

    def make(self) -> None:
        """Make the object now, where the child does not have it. Raises as `Worker.call`."""
        with self._worker._lock:
            self._made()

    def _made(self) -> _Child:
        """The child, which has the object."""
        worker = self._worker
        child = worker._ready()
        if self._child is not child:
            number = child.new_number()
            header = {"function": self._function, "keep": number}
            worker._ask(child, header, self._arguments, None)
            self._child, self._number = child, number
        return child

    def call(self, function: str, *arguments: Any, seconds: float | None = None) -> Any:
        """What a function of the worker's module returns for the object and the arguments: `Worker.call`."""
        worker = self._worker
        with worker._lock:
            child = self._made()
            return worker._ask(child, {"function": function, "object": self._number}, arguments, seconds)

    def close(self) -> None:
        """Let the child drop the object, with its next call."""
        child, self._child = self._child, None
        if child is not None:
            child.dropped = [*child.dropped, self._number]

    def __del__(self) -> None:
        self.close()


class _Child:
    """A child process with its arena, and the numbers of objects in it."""

    def __init__(self, environment: Environment, name: str) -> None:
        self.dropped: list[int] = []
        self.cancelled = False
        self._numbers = 0
        command, variables = environment.command()
        roots = json.dumps(environment.roots())
        self.arena = Arena(os.memfd_create("mansard-arena"))
        shared = self.arena.descriptor
        try:
            self.process = ChildProcess(
                [*command, "-c", BOOTSTRAP, roots, str(shared)], variables, (shared,), keep_output=True
            )
        except OSError as error:
            self.arena.close()
            executable = command[0]
            reason = error.strerror or error
            raise WorkerUnavailableError(f"{name}: {executable} cannot be run: {reason}") from error

    @property
    def usable(self) -> bool:
        """Whether it is this process's child, and has not ended."""
        process = self.process
        return not self.cancelled and process.owner == os.getpid() and process.process.poll() is None

    def new_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def close(self) -> None:
        self.process.close()
        self.arena.close()
