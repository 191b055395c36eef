"""Python environments in which functions run: this one, or one of another interpreter."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mansard.errors import WorkerUnavailableError


@dataclass(frozen=True)
class Environment:
    """Where a worker's functions run.

    Another interpreter imports what its own environment has. Of this one it sees the packages in which the
    functions are: `mansard` and ``packages``, each without its ``__init__`` being run there.
    """

    python: str = ""
    """The interpreter's path; empty: this one."""
    packages: tuple[str, ...] = ()
    """The package of the functions' module, and each package above that (``mine``, ``mine.toolchain``)."""
    requires: tuple[str, ...] = ()
    """Distributions that the environment must have: ``name``, ``name==1.2`` or ``name>=1.2``."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the child."""

    def command(self) -> tuple[list[str], dict[str, str]]:
        """The interpreter with its options, and the environment variables, of a child process.

        Raises WorkerUnavailableError.
        """
        if self.python:
            inherited = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME"}}
            return [self.python, "-I"], {**inherited, **self.variables}
        if not sys.executable or getattr(sys, "frozen", False):
            raise WorkerUnavailableError("there is no Python executable to start a process with")
        paths = [str(Path.cwd()) if path == "" else path for path in sys.path]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **self.variables}
        return [sys.executable, "-P"], variables

    def roots(self) -> dict[str, list[str]]:
        """The folders of the packages that another interpreter reads from this one's import path."""
        if not self.python:
            return {}
        return {name: _folders(name) for name in ("mansard", *self.packages)}


def interpreter(variable: str, module: str) -> str | None:
    """The interpreter that has a module: the one that an environment variable names, else this one (empty).

    None where the variable is not set and this interpreter has no such module.
    """
    python = os.environ.get(variable, "")
    if python:
        return python
    return "" if importlib.util.find_spec(module) is not None else None


def _folders(package: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise WorkerUnavailableError(f"there is no package {package!r} on this process's import path")
    return list(spec.submodule_search_locations)
