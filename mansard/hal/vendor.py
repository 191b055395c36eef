"""A device whose dispatches are calls of a vendor's library: a base class for plug-ins.

Such a library has a runtime of its own, which runs calls when it likes, several at a time, and tells their
end by a callback; or its calls block. Either may fail to come back. A driver implements `VendorDevice.load`
and one of `VendorDevice.start` (callbacks) and `ThreadedDevice.run` (blocking calls, on the device's own
thread). The rest is here: commands of a submission one after another, submissions as many at a time as the
library takes, and a limit of time, beyond which a call counts as hung and the device as lost.
"""

from __future__ import annotations

import abc
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from mansard.errors import DeviceLostError, ExecutionError, MansardError
from mansard.hal.commands import BarrierCommand, Command, DispatchCommand
from mansard.hal.device import DeviceInfo, ProfileRow, QueueKind, Submission
from mansard.hal.queue import Queue, ReadyEntry
from mansard.hal.swapping import SwappedExecutable, loaded_for
from mansard.hal.threaded import Bytes, ThreadedCommandBuffer, ThreadedDevice

DEFAULT_LIMIT = 60.0
"""Seconds a call of the vendor's library may take."""
_POLL_S = 0.02
"""How often calls that have begun are looked at: for their limit, and for failures without a callback."""
_IDLE_S = 60.0

Done = Callable[[MansardError | None], None]
Check = Callable[[], MansardError | None]


class VendorDevice(ThreadedDevice, abc.ABC):
    """Runs up to ``depth`` submissions at a time; see the module.

    ``limit`` bounds the seconds of one call. Beyond it the device is lost: the call's submission, and all
    that wait, fail with DeviceLostError. The memory that the call may still write to stays allocated until
    it returns, also that of other devices (`when_idle`).
    """

    def __init__(
        self,
        info: DeviceInfo,
        *,
        formats: tuple[str, ...],
        memory: int = 1 << 40,
        depth: int = 1,
        limit: float = DEFAULT_LIMIT,
    ) -> None:
        self.limit = limit
        self._room = threading.Semaphore(depth)
        self._runs: dict[_Run, float] = {}
        self._active, self._closing = threading.Event(), threading.Event()
        self._is_lost = False
        self._abandoned: set[_Run] = set()
        """Of a lost device, the runs whose calls have not come back."""
        self._releases: list[Callable[[], None]] = []
        self._continuing: threading.Thread | None = None
        self._continuations: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        super().__init__(info, formats=formats, memory=memory, swaps_programs=True)
        self._watcher = threading.Thread(target=self._watch, name=f"mansard-{info.id}-watch", daemon=True)
        self._watcher.start()

    def start(self, command: DispatchCommand, memories: Sequence[Bytes], done: Done) -> Check | None:
        """Begin a dispatch. ``memories`` are the bytes of its bindings; ``done`` is called once, from any
        thread, with its failure or None. An exception raised here fails the submission, too.

        What is returned is asked now and then, until ``done`` is called, for a failure that the vendor's
        library tells to those who ask alone. By default `run` is called, and has ended when this returns.
        """
        self.run(command, memories)
        done(None)
        return None

    def run(self, command: DispatchCommand, memories: Sequence[Bytes]) -> None:
        """Run a dispatch, for a library whose calls block; any exception fails the submission."""
        raise NotImplementedError(f"{type(self).__name__} implements neither start nor run")

    @property
    def lost(self) -> bool:
        """Whether a call did not come back in time."""
        return self._is_lost

    def close(self) -> None:
        """Fail what waits, wait for calls that run as long as they may, end the threads."""
        self.close_queues()
        self._closing.set()
        self._active.set()
        self._watcher.join()
        self._continuations.put(None)
        for thread in self._threads:
            # A thread in a call that hangs cannot be ended; it lets go of what it holds when that returns.
            thread.join(timeout=0 if self._is_lost else None)

    # The threads ------------------------------------------------------------------------------
    def serve_queue(self, kind: QueueKind) -> None:
        """Begin ready submissions, as many at a time as the device takes, until the queue is closed and
        empty."""
        queue, computes = self._queues[kind], kind is QueueKind.COMPUTE
        try:
            while True:
                # A submission is taken when there is room for it, so that the most urgent one is taken then.
                if computes:
                    self._room.acquire()
                entry = None
                while entry is None:
                    entry = queue.pop(timeout=_IDLE_S)
                _Run(self, queue, entry).begin()
        except EOFError:  # the queue is closed and empty
            return

    def strike(self) -> MansardError | None:
        """The failure injected into the present submission, or None; an injected hang blocks here."""
        return self._faults.strike()

    def memories(self, command: DispatchCommand, submission: Submission) -> list[Bytes]:
        """The bytes of a dispatch's bindings. What the library keeps of them keeps the memory allocated."""
        return self._views(command, submission.bindings)

    def copy_or_fill(self, command: Command, submission: Submission) -> None:
        """Run a command that is no dispatch."""
        self._execute(command, submission.bindings)

    def begun(self, run: _Run) -> None:
        """A call of the vendor's library begins."""
        self._runs[run] = time.monotonic()
        self._active.set()

    def ended(self, run: _Run) -> None:
        """It has come back."""
        self._runs.pop(run, None)
        if not self._is_lost:
            return
        with self._lock:
            self._abandoned.discard(run)
            releases = [] if self._abandoned else self._releases
            self._releases = [] if releases else self._releases
        for release in releases:
            release()

    def when_idle(self, release: Callable[[], None]) -> None:
        """See `Device.when_idle`: on a lost device when all calls have come back."""
        with self._lock:
            waits = bool(self._abandoned)
            if waits:
                self._releases.append(release)
        if not waits:
            release()

    def go_on(self, advance: Callable[[], None]) -> None:
        """Continue a submission behind a callback on a thread of the device's own, where it may wait for
        memory of programs that run: the library may need its thread for their end."""
        with self._lock:
            if self._continuing is None:
                name = f"mansard-{self.info.id}-continue"
                self._continuing = threading.Thread(target=self._continue, name=name, daemon=True)
                self._continuing.start()
                self._threads.append(self._continuing)
        self._continuations.put(advance)

    def _continue(self) -> None:
        while (advance := self._continuations.get()) is not None:
            advance()

    def finished(self, queue: Queue) -> None:
        """A submission of a queue has ended: there is room for another one."""
        if queue is self._queues[QueueKind.COMPUTE]:
            self._room.release()

    def _watch(self) -> None:
        while not self._closing.is_set():
            self._active.wait()
            self._closing.wait(_POLL_S)
            runs = dict(self._runs)
            if not runs:
                self._active.clear()
                if self._runs or self._closing.is_set():
                    self._active.set()
                continue
            for run, start in runs.items():
                if time.monotonic() - start > self.limit:
                    self._lose(run, [other for other in runs if other is not run])
                    break
                run.look()

    def _lose(self, hung: _Run, others: Sequence[_Run]) -> None:
        error = DeviceLostError(
            f"{self.info.id}: {hung.label} has not come back from the vendor's library within "
            f"{self.limit:g} s"
        )
        self._is_lost = True
        for queue in self._queues.values():
            queue.poison(error)
        for area in list(self._areas):
            area.fail(error)
        for run in (hung, *others):
            with self._lock:
                self._abandoned.add(run)
                if self._runs.pop(run, None) is None:  # it has come back in the meantime
                    self._abandoned.discard(run)
        for run in (hung, *others):
            run.finish(error)


class _Run:
    """A submission that has begun: its commands one after another, some of which end in a callback."""

    def __init__(self, device: VendorDevice, queue: Queue, entry: ReadyEntry) -> None:
        assert isinstance(entry.keep, Submission)
        assert isinstance(entry.keep.commands, ThreadedCommandBuffer)
        self.submission, self.recording = entry.keep, entry.keep.commands
        self.label = "a submission"
        self._device, self._queue, self._entry = device, queue, entry
        self._commands = iter(self.recording.commands)
        self._rows: list[ProfileRow] = []
        self._check: Check | None = None
        self._swaps = any(
            isinstance(command, DispatchCommand) and isinstance(command.executable, SwappedExecutable)
            for command in self.recording.commands
        )
        self._held = contextlib.ExitStack()
        """The program that the present call uses stays loaded."""
        self._lock, self._is_finished = threading.Lock(), False

    def begin(self) -> None:
        """Run the first commands, up to one that ends later."""
        self._device.begun(self)
        failure = self._device.strike()
        self._device.ended(self)
        if failure is not None:
            self.finish(failure)
        else:
            self._advance()

    def look(self) -> None:
        """Ask for a failure of the call that runs, where the vendor's library has to be asked."""
        check = self._check
        if check is not None and (failure := check()) is not None and check is self._check:
            self._device.ended(self)
            self._held.close()
            self.finish(failure)

    def finish(self, error: MansardError | None = None) -> None:
        """End the submission, once: calls that come back late find it ended."""
        with self._lock:
            if self._is_finished:
                return
            self._is_finished = True
        if error is None:
            self.recording.rows = tuple(self._rows)
        self._queue.finish(self._entry, error)
        self._device.finished(self._queue)

    def _advance(self) -> None:
        """Run commands until one has begun that ends later, or none is left."""
        try:
            for command in self._commands:
                if isinstance(command, BarrierCommand):
                    continue
                if not self._has_ended(command):
                    return
        except MansardError as error:
            self._device.ended(self)
            self.finish(error)
        # Whatever else is raised fails the submission, not the thread.
        except Exception as error:
            self._device.ended(self)
            self.finish(ExecutionError(f"{self._device.info.id}: {type(error).__name__}: {error}"))
        else:
            self.finish()

    def _has_ended(self, command: Command) -> bool:
        """Run a command, or begin it; False when a callback will go on from here."""
        begin, label = time.monotonic_ns(), command.label or getattr(command, "entry", "")
        if not isinstance(command, DispatchCommand):
            self.label = label
            # Loading a program is a call of the vendor's library, too.
            self._device.begun(self)
            self._device.copy_or_fill(command, self.submission)
            self._device.ended(self)
            self._rows.append(ProfileRow(label, begin, time.monotonic_ns()))
            return True
        self.label = label
        # The callback and the return of `start` come in either order: the second of them goes on.
        first = threading.Lock()
        self._held = held = contextlib.ExitStack()

        def done(error: MansardError | None) -> None:
            self._device.ended(self)
            held.close()
            self._check = None
            self._rows.append(ProfileRow(label, begin, time.monotonic_ns()))
            if error is not None:
                self.finish(error)
            elif not first.acquire(blocking=False) and not self._is_finished:
                if self._swaps:
                    self._device.go_on(self._advance)
                else:
                    self._advance()

        self._device.begun(self)
        try:
            resolved = held.enter_context(loaded_for(command))
            self._check = self._device.start(resolved, self._device.memories(command, self.submission), done)
        except BaseException:
            held.close()
            raise
        if first.acquire(blocking=False):
            return False
        self._check = None
        return not self._is_finished
