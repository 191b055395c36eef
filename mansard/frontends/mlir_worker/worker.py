"""The worker process: lowers one module per request until its parent closes the connection or ends.

Run as ``python -m mansard.frontends.mlir_worker.worker DESCRIPTOR PARENT``. What native code does wrong here
ends this process and no other: its CPU time and wall time are limited by timers of the kernel, which act
whoever holds the interpreter lock, its memory by a resource limit.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mansard.frontends.mlir_worker import messages, passes

_PRINTED_BYTES = 1 << 20
IDLE_SECONDS = 300
"""A worker that has not been asked for anything for so long ends; the next request starts another."""


def main() -> None:
    """Serve requests on the inherited socket ``DESCRIPTOR`` while process ``PARENT`` lives."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    _give_way()
    data_limit = resource.getrlimit(resource.RLIMIT_DATA)
    parent = _parent_ended(int(sys.argv[2]))
    passes.new_context()  # loads the bindings now
    while _wait(connection, parent):
        try:
            header, module = messages.receive(connection)
        except messages.ClosedError:
            break
        _limit_time(header["cpu_seconds"], header["wall_seconds"])
        _limit_memory(header["memory_bytes"], data_limit)
        reply, lowered = _answer(header, module)
        _limit_time(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, data_limit)
        messages.send(connection, reply, lowered)


def _give_way() -> None:
    """The process for the kernel to end first when memory runs out; without a core dump or a long output."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_PRINTED_BYTES, _PRINTED_BYTES))
    with contextlib.suppress(OSError):  # a restricted /proc: the order is the kernel's
        Path("/proc/self/oom_score_adj").write_text("1000")


def _parent_ended(parent: int) -> int | None:
    """A descriptor that becomes readable when the parent ends: its forks may keep the connection open.

    Exits at once if the parent has ended already. None where the kernel has no such descriptors.
    """
    try:
        descriptor = os.pidfd_open(parent)
    except OSError:
        descriptor = None
    if os.getppid() != parent:
        sys.exit(0)
    return descriptor


def _wait(connection: socket.socket, parent: int | None) -> bool:
    """Wait for a request; False when there will be none."""
    watched: list[Any] = [connection] if parent is None else [connection, parent]
    ready, _, _ = select.select(watched, [], [], IDLE_SECONDS)
    return connection in ready and parent not in ready


def _limit_time(cpu_seconds: float, wall_seconds: float) -> None:
    """Timers of one request; zeros stop them. The kernel ends the process with SIGPROF or SIGALRM."""
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, wall_seconds)


def _limit_memory(more_bytes: int, limits: tuple[int, int]) -> None:
    """Let the process map so much more private memory, within its own limits."""
    wanted = _data_bytes() + more_bytes
    soft = wanted if limits[0] == resource.RLIM_INFINITY else min(wanted, limits[0])
    resource.setrlimit(resource.RLIMIT_DATA, (soft, limits[1]))


def _data_bytes() -> int:
    """Private writable memory that the process has mapped, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = [line.split()[1] for line in lines if line.startswith("VmData:")]
    return int(sizes[0]) * 1024 if sizes else 0


def _answer(header: dict[str, Any], module: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        return {}, passes.lower(module, header["pipelines"])
    except passes.PipelineError as error:
        return {"diagnostics": [asdict(d) for d in error.diagnostics], "parsed": error.parsed}, b""
    except Exception as error:
        return {"failure": f"{type(error).__name__}: {error}"}, b""


if __name__ == "__main__":
    main()
