"""The process in which accepted plans run, as the campaign sees it: plans in, answers out."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.paths import TESTS

RUN_SECONDS = 60
"""What a run may take, the start of its process included."""
PENDING = 6
"""Plans that wait in the pipe."""
SMALL = 8 << 10
"""The pipe takes `PENDING` texts as long as this."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A plan of a seed to be run, from a file of its own if ``signed``; ``tag`` is the campaign's."""

    seed: int
    plan: str
    signed: bool
    tag: object


class RunnerProcess:
    """Runs plans one after another. Of a plan that ends the process, or that takes too long, the answer is
    ``CRASH`` or ``HANG`` and what the process has written."""

    def __init__(self, seeds: Sequence[Path], *, guarded: bool) -> None:
        mode = "guarded" if guarded else "plain"
        self._command = [sys.executable, "-m", "support.plan_fuzz.runner", mode, *map(str, seeds)]
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: deque[Run] = deque()
        self._since = 0.0
        """When the first of the pending plans began to run, at the earliest."""
        self._read = b""
        self._log = seeds[0].parent / f"runner-{mode}.log"

    def submit(self, run: Run) -> Iterator[tuple[Run, str]]:
        """Add a plan; the plans that have been answered meanwhile."""
        while self._pending and (len(self._pending) >= PENDING or len(run.plan) > SMALL):
            yield from self._answers(wait=True)
        if not self._pending:
            self._since = time.monotonic()
        self._pending.append(run)
        self._send(run)
        yield from self._answers(wait=False)

    def finish(self) -> Iterator[tuple[Run, str]]:
        """The answers of all plans that are pending; ends the process."""
        while self._pending:
            yield from self._answers(wait=True)
        self._stop()

    def _answers(self, *, wait: bool) -> Iterator[tuple[Run, str]]:
        while self._pending:
            process = self._process
            assert process is not None
            assert process.stdout is not None
            left = RUN_SECONDS - (time.monotonic() - self._since)
            ready = select.select([process.stdout], [], [], max(0.0, left) if wait else 0)[0]
            if not ready:
                if left > 0:
                    return
                process.kill()
                yield self._failed(f"HANG: no answer after {RUN_SECONDS} s")
                return
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                yield self._failed(f"CRASH: exit status {process.wait()}")
                return
            *lines, self._read = (self._read + data).split(b"\n")
            for line in lines:
                self._since = time.monotonic()
                yield self._pending.popleft(), str(json.loads(line))
            wait = False

    def _failed(self, what: str) -> tuple[Run, str]:
        """The answer for the plan that has ended the process; those after it are sent to a new one."""
        self._stop()
        log = self._log.read_text(errors="replace")
        failed = self._pending.popleft()
        self._since = time.monotonic()
        for run in self._pending:
            self._send(run)
        return failed, f"{what}\n{log[:3000]}"

    def _send(self, run: Run) -> None:
        process = self._process or self._start()
        assert process.stdin is not None
        request = {"seed": run.seed, "plan": run.plan, "signed": run.signed}
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # a plan before this one has ended the process, as its answer will tell

    def _start(self) -> subprocess.Popen[bytes]:
        path = f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
            )
        return self._process

    def _stop(self) -> None:
        process, self._process, self._read = self._process, None, b""
        if process is not None:
            process.kill()
            process.communicate()
