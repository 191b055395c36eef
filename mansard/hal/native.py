"""The native core, called through ctypes, so that no call holds the interpreter lock.

Loads the core with the signatures of `core_abi`, and turns its codes into exceptions and exceptions into its
statuses.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from mansard.errors import (
    CallCancelledError,
    DeadlineExceededError,
    DeviceError,
    DeviceLostError,
    DeviceUnavailableError,
    ExecutionError,
    InputError,
    MansardError,
    OutOfMemoryError,
    WaitTimeoutError,
)
from mansard.hal import core_abi
from mansard.hal.error_transport import TransportedError


def load_library() -> ctypes.CDLL:
    """The shared object of the core; a driver with C functions of its own declares them on it."""
    path = importlib.import_module("mansard._core").__file__
    assert path is not None, "an extension module has a file"
    return ctypes.CDLL(path)


def declare(library: ctypes.CDLL, signatures: core_abi.Signatures) -> ctypes.CDLL:
    """The library, with the types of some of its functions set."""
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


core = declare(load_library(), core_abi.SIGNATURES)
_module: Any = importlib.import_module("mansard._core")


class Owned(Protocol):
    """A reference to an object of the core, released with this object by C code, which nothing interrupts."""

    handle: int
    """Its address. Functions of the core take the object too."""


def _own_results(of: str, release: str) -> None:
    """Let a function of the core return `Owned`, or None: no signal handler comes before it has an owner."""
    address = ctypes.cast(getattr(core, release), ctypes.c_void_p).value
    getattr(core, of).errcheck = _module.owner(address)


_own_results("mn_status_create", "mn_status_release")
_own_results("mn_timeline_failure", "mn_status_release")
_own_results("mn_timeline_create", "mn_timeline_release")
_own_results("mn_cpu_list_create", "mn_cpu_list_release")


def check_owned(owned: Owned | None, code: int = core_abi.OUT_OF_MEMORY) -> Owned:
    """What the core made; raises an exception of ``code`` when that is nothing."""
    if owned is None:
        raise exception_of(code, last_message())
    return owned


submit_held: Callable[[int, int, int, dict[int, Any], dict[int, Any]], int] = _module.submit_held
"""``submit_held(queue, submissions, count, held, entries)``: `mn_queue_submit` of an array at an address.

If the queue takes them, the objects in ``entries``, by token, are in ``held`` until `drop_retired`. Returns
the code. A signal handler finds all of it done, or nothing."""

drop_retired: Callable[[int, dict[int, Any]], None] = _module.drop_retired
"""``drop_retired(queue, held)``: take out of ``held`` what a queue's completed submissions held."""

# ---- guarded calls -------------------------------------------------------------------------------

_Record = TypeVar("_Record")
_Result = TypeVar("_Result")


class Guarded(Protocol):
    """The type of `guarded`."""

    def __call__(
        self,
        settle: Callable[[_Record, BaseException], object],
        function: Callable[[_Record], _Result],
        record: _Record,
        /,
    ) -> _Result:
        """See `guarded`."""


_module.guard_prepare(queue.SimpleQueue, queue.Empty, MansardError)

guarded: Guarded = _module.guarded
"""``function(record)``; when it raises, ``settle(record, error)`` runs before the error goes on.

Also when a signal handler raises, anywhere in the function, and again wherever the function cleans up: the
hand-over is C, which nothing interrupts, and ``settle`` runs on the thread of `settle_guarded_by`, which runs
no signal handlers (on the calling thread where there is no such thread). The caller waits for up to 5 s.
A record that holds nothing says so by an attribute ``held``, False.

Raises MansardError when the interpreter is shutting down, where no other thread runs any more."""


if_free: Callable[[threading.Lock, Callable[[], object]], bool] = _module.if_free
"""Call a function with a lock held, which is released whatever ends it; False when somebody has the lock."""


def settle_guarded_by(accept: Callable[[tuple[Any, ...]], object] | None, thread: int) -> None:
    """Let a thread, by its `threading.get_ident`, settle guarded calls.

    It gets (settle, record, error, acknowledge) by ``accept``, one call into C, and puts None into the last
    when it has. Without ``accept`` nobody does.
    """
    _module.guard_settle_by(accept, thread)


# ---- codes and exceptions ------------------------------------------------------------------------

# Most special first: an exception gets the code of the first class it is an instance of.
_CLASSES: tuple[tuple[int, type[MansardError]], ...] = (
    (core_abi.UNAVAILABLE, DeviceUnavailableError),
    (core_abi.OUT_OF_MEMORY, OutOfMemoryError),
    (core_abi.DEVICE_LOST, DeviceLostError),
    (core_abi.EXECUTION, ExecutionError),
    (core_abi.DEVICE, DeviceError),
    (core_abi.INPUT, InputError),
    (core_abi.WAIT_TIMEOUT, WaitTimeoutError),
    (core_abi.DEADLINE, DeadlineExceededError),
    (core_abi.CANCELLED, CallCancelledError),
    (core_abi.FAILED, MansardError),
)
_CLASS_OF_CODE: dict[int, type[MansardError]] = {
    **dict(_CLASSES),
    core_abi.CLOSED: DeviceError,
    core_abi.INVALID: DeviceError,
}


losses = 0
"""How often somebody was told that a device is lost."""


def code_of(error: MansardError) -> int:
    """The core's code for an exception; a class the core does not know counts as its nearest base."""
    return next(code for code, cls in _CLASSES if isinstance(error, cls))


def exception_of(code: int, message: str) -> MansardError:
    """The exception for a code of the core."""
    if code == core_abi.DEVICE_LOST:
        global losses  # noqa: PLW0603  # of the process, as the devices are
        losses += 1
    return _CLASS_OF_CODE.get(code, MansardError)(message)


def last_message() -> str:
    """Why the last call of this thread failed."""
    return _decode(core.mn_last_message())


def check(code: int) -> None:
    """Raise what a failed call reports; call it right after the call, on the same thread."""
    if code != core_abi.OK:
        raise exception_of(code, last_message())


def check_handle(handle: int | None, code: int = core_abi.DEVICE) -> int:
    """A handle the core made; raises an exception of ``code`` when it is null."""
    if not handle:
        raise exception_of(code, last_message())
    return handle


def encode(text: str) -> bytes:
    """Text for the core; what UTF-8 cannot express is replaced."""
    return text.encode(errors="replace")


def _decode(text: bytes | None) -> str:
    return (text or b"").decode(errors="replace")


# ---- statuses ------------------------------------------------------------------------------------

# Exceptions that travel through the core, by token. The core names the tokens whose statuses are gone.
_transported: dict[int, TransportedError] = {}
_tokens = itertools.count(1)


class Status:
    """A reference to a failure of the core, made from an exception or received from a call."""

    def __init__(self, owned: Owned) -> None:
        self.handle = owned

    @classmethod
    def of(cls, error: MansardError) -> Status:
        """A status that carries the exception to whoever waits for the point (see `TransportedError`)."""
        _module.forget_released(_transported)
        token = next(_tokens)
        status = cls(core.mn_status_create(code_of(error), encode(str(error)), token))
        # Last: once the status is gone, which an interrupt may bring about, its token is forgotten.
        _transported[token] = TransportedError(error)
        return status

    def exception(self) -> MansardError:
        """The exception this status was made from, else one that fits its code."""
        transported = _transported.get(core.mn_status_token(self.handle))
        error = transported.exception() if transported else None
        if error is not None:
            return error
        return exception_of(core.mn_status_code(self.handle), _decode(core.mn_status_message(self.handle)))


def transported_errors() -> int:
    """How many exceptions points of the core still refer to; for tests of leaks."""
    _module.forget_released(_transported)
    return len(_transported)
