"""Rounds in child processes until the time is up; distinct failures, each with a reproducer."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.pool import Worker
from support.fuzzing.properties import FRAMEWORK, OF_FRAMEWORKS, PROPERTIES
from support.fuzzing.worker import SWEEP

MEMORY = 8 << 30
ROUND_SECONDS = 600.0
"""A round that takes longer has stalled: most take seconds, one that shrinks a failure a minute or two."""


@dataclass
class Campaign:
    """What to run: ``places`` are the devices that a round runs on, such as ``cpu`` or ``cpu+vulkan``."""

    seed: int
    places: Sequence[str]
    folder: Path
    properties: Sequence[str] = (SWEEP, *PROPERTIES)
    failures: dict[str, str] = field(default_factory=dict)
    cases: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, seconds: float, workers: int = 1) -> int:
        """Go on for so long; at least every property once on every device. Returns the number of failures."""
        tasks, end = self._tasks(), time.monotonic() + seconds
        threads = [threading.Thread(target=self._serve, args=(tasks, end)) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(self.failures)

    def _tasks(self) -> Iterator[tuple[int, str]]:
        """Rounds, numbered by the pass over all properties that they belong to."""
        for number in itertools.count():
            for name, place in itertools.product(self.properties, self.places):
                # The sweep covers all that it can in two passes; programs have nothing to split.
                if (name == SWEEP and number > 1) or (
                    name in OF_FRAMEWORKS and (place == FRAMEWORK or "+" in place)
                ):
                    continue
                if name == SWEEP and "+" in place:
                    continue
                yield number, f"{name} {self.seed + number} {place}"

    def _serve(self, tasks: Iterator[tuple[int, str]], end: float) -> None:
        worker = Worker("support.fuzzing.worker", ROUND_SECONDS, MEMORY)
        try:
            while True:
                with self._lock:
                    number, task = next(tasks)
                if number and time.monotonic() > end:
                    return
                answer = worker.ask(task)
                with self._lock:
                    self._report(task, answer)
        finally:
            worker.stop()

    def _report(self, task: str, answer: dict[str, Any]) -> None:
        name, number, place = task.split()
        self.cases[f"{name} {place}"] += answer.get("cases", 0)
        self.refusals.update(answer.get("refusals", ()))
        failures = answer.get("failures", [])
        if answer["outcome"] in ("killed", "stalled"):
            text = f"# {answer['outcome']}: {answer['detail']}\n# python tools/fuzz.py --task '{task}'\n"
            failures = [
                {
                    "signature": f"{name}: {place}: {answer['outcome']}",
                    "detail": answer["detail"],
                    "source": text,
                }
            ]
        for failure in failures:
            self._keep(name, int(number), failure)

    def _keep(self, name: str, number: int, failure: dict[str, str]) -> None:
        signature = failure["signature"]
        if signature in self.failures:
            self.repeated[signature] += 1
            return
        stem = re.sub(r"[^a-z0-9]+", "-", signature.lower())[:80].strip("-")
        path = self.folder / f"{stem}-{number}.py"
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_text(failure["source"], encoding="utf-8")
        self.failures[signature] = str(path)
        print(f"FAILED {signature}\n{failure['detail'][:1500]}\n  kept as {path}\n", flush=True)

    def summary(self) -> str:
        """Counts of cases, what devices refused, and distinct failures."""
        lines = [f"{count:7} cases  {what}" for what, count in sorted(self.cases.items())]
        lines += [f"{count:7} refused  {text[:150]}" for text, count in self.refusals.most_common(20)]
        lines += [f"FAILED {s} (and {self.repeated[s]} times more): {p}" for s, p in self.failures.items()]
        return "\n".join([*lines, f"{len(self.failures)} distinct failures, seed {self.seed}"])
