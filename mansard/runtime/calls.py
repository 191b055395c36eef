"""The life of a call: a permit, a context, submission, completion, result; blocking or awaited."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mansard.errors import InputError, MansardError, OutOfMemoryError
from mansard.hal import ProfileRow
from mansard.runtime.completion import completions
from mansard.runtime.context import Context, Machine
from mansard.runtime.pool import Gate, IdleContexts, Key
from mansard.runtime.profile import Copies
from mansard.runtime.rehearsal import Rehearsal, Timed
from mansard.runtime.tensors import Array, Prepared

if TYPE_CHECKING:
    import asyncio


@dataclass
class Stats:
    """Counts since the session was made."""

    calls: int = 0
    """Calls that gave a result."""
    contexts: int = 0
    """Contexts recorded: one per set of shapes, and per call in flight at the same time."""
    device_copies: int = 0
    device_bytes: int = 0
    """Copies made by device queues during calls."""
    host_copies: int = 0
    host_bytes: int = 0
    """Copies made by the host during calls: inputs and outputs that a device cannot use in place."""
    uploaded_bytes: int = 0
    """Weights copied to device memory when the session was made."""


@dataclass
class _Call:
    """A call that holds a permit."""

    prepared: Prepared
    idle: IdleContexts
    profile: bool = False
    context: Context = field(init=False)
    submitted: float = 0.0
    """When it was handed to the devices (`time.perf_counter`)."""
    copies: Copies = field(default_factory=Copies)
    """What it copied; known when it has ended."""

    @property
    def key(self) -> Key:
        """What contexts of equal shapes have in common."""
        dims = self.prepared.dims
        return tuple(sorted(dims.items())) if dims else ()


class Calls:
    """Runs calls on a machine, at most ``max_in_flight`` at a time."""

    def __init__(self, machine: Machine, max_in_flight: int, max_idle: int) -> None:
        self.stats = Stats()
        self._machine = machine
        self._gate = Gate(max_in_flight)
        self._idle, self._profiled = IdleContexts(max_idle), IdleContexts(1)
        self._lock = threading.Lock()
        self._closed = False

    @property
    def permits(self) -> int:
        """How many calls may run at a time."""
        return self._gate.permits

    def run(self, prepared: Prepared, timeout: float | None) -> list[Array]:
        """See `Session.run`."""
        return self._run(_Call(prepared, self._idle), timeout)

    def profile(self, prepared: Prepared) -> tuple[list[list[ProfileRow]], float, Copies]:
        """Device times by slot, the seconds from submission to completion, and the copies made."""
        call = _Call(prepared, self._profiled, profile=True)
        self._begin_blocking(call)
        self._await(call, None)
        wall = time.perf_counter() - call.submitted
        rows = call.context.profile()
        self._finish(call)
        return rows, wall, call.copies

    def rehearse(
        self, prepared: Prepared, requests: int, in_flight: int, *, lockstep: bool
    ) -> tuple[list[Timed], Copies]:
        """See `Rehearsal`; the requests by number, and the copies of all of them."""
        self._check_open()
        if not 1 <= in_flight <= self._gate.permits:
            raise InputError(
                f"{in_flight} requests in flight: the model takes 1 to {self._gate.permits} at a time "
                "(max_in_flight, and 1 for a model with states)"
            )
        rehearsal = Rehearsal(self._machine, self._gate, prepared, lockstep=lockstep)
        timed = rehearsal.run(requests, in_flight)
        (count, size), (prepared_count, prepared_size) = rehearsal.copies, prepared.copied
        copies = Copies(
            count * requests,
            size * requests,
            sum(one.host_copies for one in timed) + prepared_count,
            sum(one.host_bytes for one in timed) + prepared_size,
        )
        with self._lock:
            self.stats.calls += requests
            self._add(copies)
        return timed, copies

    async def run_async(self, prepared: Prepared) -> list[Array]:
        """See `Session.run_async`."""
        import asyncio  # loaded already: a loop runs

        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Array]] = loop.create_future()
        call = _Call(prepared, self._idle)

        def deliver(result: list[Array], error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(_resolve, future, result, error)
            except RuntimeError:
                return  # the loop was closed: nobody waits any more

        def begin() -> None:
            if future.cancelled():
                self._gate.leave()
                return
            try:
                self._start(call)
            except Exception as error:
                deliver([], error)
            else:
                completions().when(call.context.finals(), end)

        def end() -> None:
            try:
                deliver(self._finish(call), None)
            except Exception as error:
                deliver([], error)

        self._check_open()
        self._gate.enter(begin)
        return await future

    def exclusive(self) -> Exclusive:
        """A context manager within which no call runs."""
        return Exclusive(self._gate)

    def contexts(self) -> list[Context]:
        """Idle contexts, for reports."""
        return [*self._idle.contexts(), *self._profiled.contexts()]

    def close(self) -> None:
        """Wait for running calls and free every context; later calls raise MansardError."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with self.exclusive():
            self._idle.clear()
            self._profiled.clear()
            self._machine.workspaces.close()

    # Steps of a call -------------------------------------------------------------------------------

    def _run(self, call: _Call, timeout: float | None) -> list[Array]:
        self._begin_blocking(call)
        self._await(call, timeout)
        return self._finish(call)

    def _begin_blocking(self, call: _Call) -> None:
        self._check_open()
        self._gate.wait()
        self._start(call)

    def _start(self, call: _Call) -> None:
        """Find a context and submit. On failure the permit is given back."""
        try:
            self._check_open()
            call.context = self._ready(call)
        except BaseException:
            self._gate.leave()
            raise
        try:
            call.submitted = time.perf_counter()
            call.context.start(call.prepared.arrays)
        except BaseException:
            self._abandon(call)
            raise

    def _ready(self, call: _Call) -> Context:
        """A context with all the memory it needs; idle contexts make room when memory is short."""
        try:
            return self._reserved(call)
        except OutOfMemoryError:
            if self._idle.clear() + self._profiled.clear() == 0:
                raise
        # Outside the handler: the error's traceback would hold on to what was allocated.
        return self._reserved(call)

    def _reserved(self, call: _Call) -> Context:
        context = call.idle.take(call.key)
        if context is None:
            context = Context(self._machine, call.prepared.dims, profile=call.profile)
            with self._lock:
                self.stats.contexts += 1
        try:
            context.reserve()
        except BaseException:
            context.close()
            raise
        return context

    def _await(self, call: _Call, timeout: float | None) -> None:
        """Wait until every device is done with the call, also when one of them failed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            for point in call.context.finals():
                try:
                    point.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
                except MansardError:
                    if not point.done():
                        raise  # not in time; errors of the point itself are raised by finish()
        except BaseException:
            self._abandon(call)
            raise

    def _finish(self, call: _Call) -> list[Array]:
        """The outputs of a call that every device is done with; frees its context and permit."""
        context = call.context
        try:
            results = context.finish()
            call.idle.give(call.key, context)
        except BaseException:
            context.close()
            raise
        else:
            self._count(call)
            return results
        finally:
            self._gate.leave()

    def _abandon(self, call: _Call) -> None:
        """Let a call that nobody waits for end in the background; its context is not used again."""

        def end() -> None:
            try:
                call.context.close()
            finally:
                self._gate.leave()

        completions().when(call.context.finals(), end)

    def _count(self, call: _Call) -> None:
        context, (count, size) = call.context, call.prepared.copied
        call.copies = copies = Copies(
            context.copies, context.copied_bytes, context.host_copies + count, context.host_bytes + size
        )
        with self._lock:
            self.stats.calls += 1
            self._add(copies)

    def _add(self, copies: Copies) -> None:
        stats = self.stats
        stats.device_copies += copies.device
        stats.device_bytes += copies.device_bytes
        stats.host_copies += copies.host
        stats.host_bytes += copies.host_bytes

    def _check_open(self) -> None:
        if self._closed:
            raise MansardError("the model is closed")


class Exclusive:
    """Holds every permit of a gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._held = 0

    def __enter__(self) -> None:
        for _ in range(self._gate.permits):
            self._gate.wait()
            self._held += 1

    def __exit__(self, *error: object) -> None:
        for _ in range(self._held):
            self._gate.leave()
        self._held = 0


def _resolve(future: asyncio.Future[list[Array]], result: list[Array], error: BaseException | None) -> None:
    if future.done():  # cancelled meanwhile
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
