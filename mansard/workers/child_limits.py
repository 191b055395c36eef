"""In a child process: limits that the kernel keeps, whoever holds the interpreter lock; the parent's end."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any


def give_way(file_bytes: int | None = None) -> None:
    """The process for the kernel to end first when memory runs out; without a core dump, and with files of
    no more than ``file_bytes``, its output among them."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    with contextlib.suppress(OSError):  # a restricted /proc: the order is the kernel's
        Path("/proc/self/oom_score_adj").write_text("1000")


def parent_ended(parent: int) -> int | None:
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


def wait(connection: socket.socket, parent: int | None, seconds: float | None = None) -> bool:
    """Wait for a request, so long at most; False when there is none, or the parent has ended."""
    watched: list[Any] = [connection] if parent is None else [connection, parent]
    ready, _, _ = select.select(watched, [], [], seconds)
    return connection in ready and parent not in ready


def limit_time(cpu_seconds: float, wall_seconds: float) -> None:
    """Timers of one request; zeros stop them. The kernel ends the process with SIGPROF or SIGALRM."""
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, wall_seconds)


def limit_memory(more_bytes: int, limits: tuple[int, int]) -> None:
    """Let the process map so much more private memory, within its own limits."""
    wanted = _data_bytes() + more_bytes
    soft = wanted if limits[0] == resource.RLIM_INFINITY else min(wanted, limits[0])
    resource.setrlimit(resource.RLIMIT_DATA, (soft, limits[1]))


def _data_bytes() -> int:
    """Private writable memory that the process has mapped, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = [line.split()[1] for line in lines if line.startswith("VmData:")]
    return int(sizes[0]) * 1024 if sizes else 0
