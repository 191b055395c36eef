"""One worker process, as its parent sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mansard.errors import ImportModelError
from mansard.frontends.mlir_worker import messages
from mansard.frontends.mlir_worker.passes import Diagnostic, PipelineError

_MODULE = "mansard.frontends.mlir_worker.worker"
_GRACE = 30
"""Seconds beyond the wall time limit after which the parent ends a worker itself (one that was stopped)."""


@dataclass(frozen=True)
class Limits:
    """What one request may take: seconds of CPU time and of wall time, bytes of memory."""

    cpu_seconds: float
    wall_seconds: float
    memory_bytes: int


class WorkerDiedError(Exception):
    """The worker ended before it replied. The text says how: ``was killed by SIGFPE``."""


class WorkerIdleError(Exception):
    """The worker had ended by itself before the request; another one can take it."""


class Worker:
    """A child process that lowers modules, one at a time. Not for concurrent use."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._printed = os.fdopen(os.memfd_create("mansard-worker"), "rb")  # what the child writes to stderr
        self._socket, inherited = socket.socketpair()
        try:
            with inherited:
                self._process = _start(inherited.fileno(), self._printed.fileno())
        except BaseException:
            self._socket.close()
            self._printed.close()
            raise

    def lower(self, module: bytes, pipelines: Sequence[str], limits: Limits) -> bytes:
        """The module's bytecode after the pipelines.

        Raises PipelineError for what MLIR reports, WorkerDiedError if the worker ended instead of replying,
        WorkerIdleError if it had ended before. After any other exception the worker must be closed.
        """
        header = {
            "pipelines": list(pipelines),
            "cpu_seconds": limits.cpu_seconds,
            "wall_seconds": limits.wall_seconds,
            "memory_bytes": limits.memory_bytes,
        }
        try:
            messages.send(self._socket, header, module)
            self._socket.settimeout(limits.wall_seconds + _GRACE)
            reply, lowered = messages.receive(self._socket)
        except messages.ClosedError:
            raise self._ended(limits) from None
        except TimeoutError:
            raise WorkerDiedError(f"did not answer within {limits.wall_seconds:g} s") from None
        if "failure" in reply:
            raise WorkerDiedError(f"failed: {reply['failure']}")
        if "diagnostics" in reply:
            raise PipelineError([Diagnostic(**d) for d in reply["diagnostics"]], reply["parsed"])
        return lowered

    def _ended(self, limits: Limits) -> Exception:
        code = self._process.wait()
        if code == 0:
            return WorkerIdleError()
        if code > 0:
            return WorkerDiedError(f"ended with exit code {code}: {self._last_line()}")
        name = _signal_name(-code)
        limited = f"its memory was limited to {limits.memory_bytes >> 20} MiB"
        reasons = {
            "SIGPROF": f"took more than {limits.cpu_seconds:g} s of CPU time",
            "SIGALRM": f"took more than {limits.wall_seconds:g} s",
            "SIGKILL": "was killed by SIGKILL, as happens when memory runs out",
            "SIGABRT": f"was killed by SIGABRT ({self._last_line() or 'a failed check'}; {limited})",
            "SIGSEGV": f"was killed by SIGSEGV ({limited})",  # MLIR does not check what it allocates
        }
        return WorkerDiedError(reasons.get(name, f"was killed by {name}"))

    def _last_line(self) -> str:
        lines = os.pread(self._printed.fileno(), 1 << 20, 0).decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else ""

    def close(self) -> None:
        """End the process. In a fork of its parent, only this process's end of the connection is closed."""
        self._socket.close()
        self._printed.close()
        if self.owner == os.getpid():
            self._process.kill()
            self._process.wait()
        else:
            self._process.returncode = 0  # another process's child: not to be waited for


def _start(descriptor: int, printed: int) -> subprocess.Popen[bytes]:
    """The child, with this interpreter's import path, in its own process group (Ctrl-C is the parent's)."""
    if not sys.executable or getattr(sys, "frozen", False):
        raise ImportModelError(f"no Python executable to lower the model with; {IN_PROCESS_HINT}")
    paths = [str(Path.cwd()) if p == "" else p for p in sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE, str(descriptor), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=printed,
            pass_fds=(descriptor,),
            process_group=0,
            env=environment,
        )
    except OSError as error:
        raise ImportModelError(
            f"cannot start a process to lower the model in: {error}; {IN_PROCESS_HINT}"
        ) from error


IN_PROCESS_HINT = "MANSARD_LOWERING=in-process lowers models in the calling process"


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
