"""One entry point by name, without ``importlib.metadata``.

That module brings in the e-mail, socket and configuration parsers: more time and memory than the rest
of loading a model. Installed packages are folders ``*.dist-info`` on ``sys.path``, and entry points are
lines of a text file in them, which is quick to read; what is installed in other ways (in a ZIP file,
through an import hook) `importlib.metadata` still finds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

_FOLDERS = (".dist-info", ".egg-info")


def find(group: str, name: str) -> str | None:
    """The object reference (``package.module:attribute``) of an entry point; None when there is none.

    The first folder on ``sys.path`` that has it wins, as it would with `importlib.metadata`.
    """
    for text in _tables():
        value = _parse(text, group).get(name)
        if value is not None:
            return value
    import importlib.metadata  # only for what is not a plain folder, or not there at all

    return next((e.value for e in importlib.metadata.entry_points(group=group, name=name)), None)


def _tables() -> Iterator[str]:
    """The text of every ``entry_points.txt`` in the order of ``sys.path``."""
    for folder in dict.fromkeys(sys.path):
        try:
            places = sorted(p for p in Path(folder).iterdir() if p.name.endswith(_FOLDERS))
        except OSError:
            continue  # a ZIP file, or not there
        for place in places:
            try:
                yield (place / "entry_points.txt").read_text(encoding="utf-8")
            except OSError:
                continue


def _parse(text: str, group: str) -> dict[str, str]:
    """The entries of one section of an INI file: ``name = module:attribute [extras]``."""
    entries: dict[str, str] = {}
    inside = False
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("["):
            inside = line == f"[{group}]"
        elif inside and "=" in line and not line.startswith(("#", ";")):
            key, _, value = line.partition("=")
            entries[key.strip()] = value.partition("[")[0].strip()
    return entries
