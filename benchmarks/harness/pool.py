"""Child processes with limits of time and memory, started again when they die."""

from __future__ import annotations

import json
import queue
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

START_SECONDS = 300.0
_POLL_SECONDS = 0.1
_PAGE = 4096


class Worker:
    """A child that answers one task at a time."""

    def __init__(self, module: str, seconds: float, memory: int) -> None:
        self.module, self.seconds, self.memory = module, seconds, memory
        self.process: subprocess.Popen[str] | None = None
        self.errors: IO[str] | None = None

    def ask(self, line: str) -> dict[str, Any]:
        """The child's answer, or ``{"outcome": "killed" | "stalled", "detail": why}``."""
        try:
            process = self.process or self._start()
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = self._read(process, self.seconds)
        except (TimeoutError, EOFError, BrokenPipeError, MemoryError) as error:
            outcome = "stalled" if isinstance(error, TimeoutError) else "killed"
            detail = str(error) or self._last_words()
            self.stop()
            return {"outcome": outcome, "detail": detail}
        return dict(json.loads(answer))

    def _start(self) -> subprocess.Popen[str]:
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self._read(self.process, START_SECONDS)
        return self.process

    def _read(self, process: subprocess.Popen[str], seconds: float) -> str:
        assert process.stdout is not None
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not selector.select(_POLL_SECONDS):
                if time.monotonic() > end:
                    raise TimeoutError(f"no answer in {seconds:g} s")
                if (held := resident(process.pid)) > self.memory:
                    raise MemoryError(f"{held >> 20} MB resident, at most {self.memory >> 20}")
        line = process.stdout.readline()
        if not line:
            raise EOFError
        return line

    def _last_words(self) -> str:
        code = self.process.wait() if self.process else 0
        assert self.errors is not None
        self.errors.seek(0)
        lines = self.errors.read().splitlines()
        return f"exit code {code}" + (f"; {lines[-1][:200]}" if lines else "")

    def stop(self) -> None:
        """End the child, whatever it does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def resident(pid: int) -> int:
    """Bytes of memory a process holds; 0 for one that has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def run(
    module: str,
    tasks: Sequence[str],
    *,
    workers: int,
    seconds: float,
    memory: int,
    report: Callable[[str, dict[str, Any]], None],
) -> None:
    """Give every task to a child of ``python -m module``; ``report`` gets each answer as it comes."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    lock = threading.Lock()

    def serve() -> None:
        worker = Worker(module, seconds, memory)
        try:
            while True:
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    return
                answer = worker.ask(task)
                with lock:
                    report(task, answer)
        finally:
            worker.stop()

    threads = [threading.Thread(target=serve) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
