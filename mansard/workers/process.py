"""One child process with a connection to it, as its parent sees it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.workers import messages

_LINE_CHARACTERS = 200


@dataclass(frozen=True)
class Exit:
    """How a child ended: its exit code, and the last line that it printed."""

    code: int
    last_line: str

    @property
    def signal(self) -> str:
        """The name of the signal that ended it; empty when it ended by itself."""
        if self.code >= 0:
            return ""
        with contextlib.suppress(ValueError):
            return signal.Signals(-self.code).name
        return f"signal {-self.code}"

    def __str__(self) -> str:
        hint = ", as happens when memory runs out" if self.signal == "SIGKILL" else ""
        how = f"was killed by {self.signal}{hint}" if self.signal else f"ended with exit code {self.code}"
        return f"{how}: {self.last_line}" if self.last_line else how


class ChildProcess:
    """A process that serves requests on a connection to this one, one at a time. Not for concurrent use.

    It is in a process group of its own: Ctrl-C is the parent's.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Sequence[int] = (),
        *,
        keep_output: bool = False,
    ) -> None:
        """Start ``command``, with the number of the connection's descriptor and this process's id appended.

        What the child writes to standard error, and with ``keep_output`` to standard output, is kept for
        messages. Raises OSError.
        """
        self.owner = os.getpid()
        self._printed = os.fdopen(os.memfd_create("mansard-worker"), "rb")
        self.connection, inherited = socket.socketpair()
        printed = self._printed.fileno()
        fcntl.fcntl(printed, fcntl.F_SETFL, os.O_APPEND)  # so that the child may cut it short
        try:
            with inherited:
                self.process = subprocess.Popen(
                    [*command, str(inherited.fileno()), str(self.owner)],
                    stdin=subprocess.DEVNULL,
                    stdout=printed if keep_output else subprocess.DEVNULL,
                    stderr=printed,
                    pass_fds=(inherited.fileno(), *descriptors),
                    process_group=0,
                    env=environment,
                )
        except BaseException:
            self.connection.close()
            self._printed.close()
            raise

    def request(
        self, header: Mapping[str, Any], payload: bytes, seconds: float
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request and wait for the reply. Raises `messages.ClosedError` when the child has ended,
        TimeoutError; after an exception the child must be closed."""
        messages.send(self.connection, header, payload)
        self.connection.settimeout(seconds)
        return messages.receive(self.connection)

    def wait(self) -> Exit:
        """How it ended, once it has closed its connection."""
        code = self.process.wait()
        return Exit(code, self.last_line())

    def last_line(self) -> str:
        """The last line that it printed."""
        lines = os.pread(self._printed.fileno(), 1 << 20, 0).decode(errors="replace").strip().splitlines()
        return lines[-1][:_LINE_CHARACTERS] if lines else ""

    def close(self) -> None:
        """End the process. In a fork of its parent, only this process's end of the connection is closed."""
        self.connection.close()
        self._printed.close()
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()
        else:
            self.process.returncode = 0  # another process's child: not to be waited for
