"""One worker process, as its parent sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.errors import ImportModelError, WorkerUnavailableError
from mansard.frontends.mlir_worker.passes import Diagnostic, PipelineError
from mansard.workers import messages
from mansard.workers.environment import Environment
from mansard.workers.process import ChildProcess

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
        self._child = _start()
        self._process = self._child.process

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
            reply, lowered = self._child.request(header, module, limits.wall_seconds + _GRACE)
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
        end = self._child.wait()
        if end.code == 0:
            return WorkerIdleError()
        if end.code > 0:
            return WorkerDiedError(f"ended with exit code {end.code}: {end.last_line}")
        limited = f"its memory was limited to {limits.memory_bytes >> 20} MiB"
        reasons = {
            "SIGPROF": f"took more than {limits.cpu_seconds:g} s of CPU time",
            "SIGALRM": f"took more than {limits.wall_seconds:g} s",
            "SIGKILL": "was killed by SIGKILL, as happens when memory runs out",
            "SIGABRT": f"was killed by SIGABRT ({end.last_line or 'a failed check'}; {limited})",
            "SIGSEGV": f"was killed by SIGSEGV ({limited})",  # MLIR does not check what it allocates
        }
        return WorkerDiedError(reasons.get(end.signal, f"was killed by {end.signal}"))

    def close(self) -> None:
        """End the process. In a fork of its parent, only this process's end of the connection is closed."""
        self._child.close()


def _start() -> ChildProcess:
    """The child, with this interpreter's import path."""
    try:
        command, variables = Environment().command()
        return ChildProcess([*command, "-m", _MODULE], variables)
    except WorkerUnavailableError:
        raise ImportModelError(f"no Python executable to lower the model with; {IN_PROCESS_HINT}") from None
    except OSError as error:
        raise ImportModelError(
            f"cannot start a process to lower the model in: {error}; {IN_PROCESS_HINT}"
        ) from error


IN_PROCESS_HINT = "MANSARD_LOWERING=in-process lowers models in the calling process"
