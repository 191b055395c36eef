"""Frontends by entry point (group ``mansard.frontends``), and the selection of the one for a model."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mansard.arguments import shown
from mansard.atomic_write import kind_of
from mansard.errors import ImportModelError
from mansard.frontends.frontend import Frontend

if TYPE_CHECKING:
    from mansard.ir.graph import Graph

GROUP = "mansard.frontends"


def import_model(
    model: Any,
    example_inputs: Any = None,
    *,
    frontend: str | None = None,
    cache: bool = False,
    **options: Any,
) -> Graph:
    """Import a model of any supported kind as a Graph.

    ``example_inputs`` (a tensor, a sequence or a mapping) are for frontends that trace; formats that state
    their shapes take None. ``frontend`` names the one to use if several accept the model. ``options`` are
    passed to the frontend, whose module documents them. ``cache`` permits caching the result on disk. Raises
    ImportModelError for a model that no frontend accepts, or that several do.
    """
    _check_file(model)
    chosen = chosen_frontend(model, frontend)
    unknown = [name for name in options if chosen.options is not None and name not in chosen.options]
    if unknown:
        known = ", ".join(chosen.options or ()) or "none"
        raise ImportModelError(f"frontend {chosen.name!r} takes no argument {unknown[0]!r}; it takes {known}")
    try:
        return chosen.import_model(model, example_inputs, cache=cache, **options)
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "mansard" or not chosen.requires:
            raise
        raise ImportModelError(
            f"frontend {chosen.name!r} needs a package that is not installed ({error.name or error}): "
            f"pip install '{chosen.requires}'"
        ) from error


def _check_file(model: Any) -> None:
    """Raise ImportModelError for a path that no file can have, and for a pipe or device, which would be
    waited for. What is not there is the frontend's to say."""
    if not isinstance(model, Path) and not (isinstance(model, str) and "\n" not in model):
        return
    try:
        mode = os.stat(model).st_mode  # noqa: PTH116  # a text may be too long for a Path
    except OSError:
        return
    except ValueError as error:
        raise ImportModelError(f"{shown(model)} is not the path of a model: {error}") from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ImportModelError(f"{model} cannot be read: it is {kind_of(mode)}, not a regular file")


def chosen_frontend(model: Any, name: str | None = None) -> Frontend:
    """The frontend called ``name``, or else the one that accepts the model; raises ImportModelError."""
    installed = frontends()
    if name is not None:
        if not isinstance(name, str) or name not in installed:
            raise ImportModelError(f"no frontend {shown(name)}; {_supported(installed)}")
        return installed[name]
    accepting = [frontend for frontend in installed.values() if frontend.accepts(model)]
    if len(accepting) > 1:
        names = " and ".join(frontend.name for frontend in accepting)
        raise ImportModelError(
            f"frontends {names} both read {_shown(model)}: choose one, as in frontend={accepting[0].name!r}"
        )
    if not accepting:
        raise ImportModelError(f"no frontend reads {_shown(model)}; {_supported(installed)}")
    return accepting[0]


@functools.cache
def frontends() -> Mapping[str, Frontend]:
    """Every frontend that can be loaded, by name, sorted."""
    loaded = {name: _load(entry) for name, entry in _entries().items()}
    return {name: frontend for name, frontend in loaded.items() if isinstance(frontend, Frontend)}


@functools.cache
def broken_frontends() -> Mapping[str, str]:
    """Entry points that fail to load, with the reason. They do not affect the others."""
    loaded = {name: _load(entry) for name, entry in _entries().items()}
    return {name: reason for name, reason in loaded.items() if isinstance(reason, str)}


def _entries() -> dict[str, importlib.metadata.EntryPoint]:
    entries = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    return dict(sorted(entries.items()))


@functools.cache
def _load(entry: importlib.metadata.EntryPoint) -> Frontend | str:
    """The object of an entry point, or the reason why it is not a frontend."""
    try:
        frontend = entry.load()
    except Exception as error:
        return f"failed to load: {error}"
    return frontend if isinstance(frontend, Frontend) else "is not a mansard.frontends.Frontend object"


def _supported(installed: Mapping[str, Frontend]) -> str:
    if not installed and not broken_frontends():
        return f"no entry points of group {GROUP} are installed: reinstall the package (make setup)"
    kinds = "; ".join(sorted(f"{frontend.reads} by {name}" for name, frontend in installed.items()))
    broken = "".join(f"; frontend {name!r} {reason}" for name, reason in broken_frontends().items())
    return f"supported: {kinds}{broken}"


def _shown(model: Any) -> str:
    return repr(str(model)[:80]) if isinstance(model, (str, Path)) else type(model).__name__
