"""Tries of models in child processes, within limits of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mansard.errors import WorkerCallError, WorkerLostError
from mansard.reducer.failure import Failure
from mansard.workers import Worker

_MODULE = "mansard.reducer.trial"


class BudgetSpentError(Exception):
    """The time for all tries is over."""


@dataclass
class Trials:
    """Runs tries; ``seconds`` limits each, ``budget`` all of them. ``tell`` gets a line now and then."""

    devices: Sequence[str]
    tolerance: float
    seconds: float
    budget: float
    tell: Callable[[str], None]
    count: int = 0
    _begin: float = field(default_factory=time.monotonic)
    _worker: Worker | None = None

    def imported(self, path: Path, graph: Path) -> Failure | None:
        """How the import of a model's file fails; else its Graph is written to ``graph``."""
        return self._try("import", "import_file", str(path), str(graph))

    def failure(self, graph: Path) -> Failure | None:
        """How a Graph's file fails to compile or to run."""
        return self._try("run", "run_graph", str(graph), list(self.devices), self.tolerance)

    def record(self, graph: Path, file: Path) -> bool:
        """Write what every op of a Graph gives; False where the interpreter cannot, or takes too long."""
        return self._try("run", "record_values", str(graph), str(file)) is None

    def _try(self, stage: str, function: str, *arguments: Any) -> Failure | None:
        if time.monotonic() - self._begin > self.budget and self.count:
            raise BudgetSpentError
        self.count += 1
        if self._worker is None:
            self._worker = Worker(_MODULE, name="the trial", seconds=self.seconds)
        try:
            return Failure.of(self._worker.call(function, *arguments) or {})
        except WorkerLostError as error:
            text = str(error)
            if "did not end within" in text:
                return Failure(stage, "hang", message=f"no answer within {self.seconds:g} s")
            how = text.partition("its process ")[2].partition(" (")[0]
            return Failure(stage, "crash", how)
        except WorkerCallError as error:
            return Failure(stage, "error", str(error).partition(":")[0], message=str(error))

    def close(self) -> None:
        """End the child process."""
        if self._worker is not None:
            self._worker.close()
