"""Whether an environment has what it must have, without importing it: for lists of devices."""

from __future__ import annotations

import functools
from pathlib import Path

from mansard.errors import WorkerError
from mansard.workers.environment import Environment
from mansard.workers.worker import Worker


def problem(environment: Environment, name: str) -> str | None:
    """Why an environment cannot be used, by its interpreter and the versions of its distributions; None where
    it can. ``name`` stands for it in the text. Asked once, and again when the interpreter changes."""
    python = Path(environment.python) if environment.python else None
    changed = python.stat().st_mtime if python is not None and python.exists() else 0.0
    return _problem(environment.python, environment.requires, name, changed)


@functools.cache
def _problem(python: str, requires: tuple[str, ...], name: str, changed: float) -> str | None:
    worker = Worker("mansard.workers.requirements", Environment(python, (), requires), name=name, seconds=60)
    try:
        worker.start()
    except WorkerError as error:
        return str(error)
    finally:
        worker.close()
    return None
