"""Locations in the user's model, for debug locations and errors."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import torch

_TORCH = Path(torch.__file__).parent


@functools.cache
def _in_torch(file: str) -> bool:
    return Path(file).is_relative_to(_TORCH)


def location_of(node: Any) -> str:
    """The location of a node in the model: module path, file and line, as far as known."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(modules[-1][0]) if modules else ""
    path = re.sub(r"^L\['self'\]\.?|^L__self___?", "", path)
    frames = _frames(node)
    line = f"{Path(frames[-1][0]).name}:{frames[-1][1]}" if frames else ""
    if path and line:
        return f"{path} ({line})"
    return path or line


def current_location() -> str:
    """The location of the node that is being decomposed."""

    class Current:
        meta = torch.fx.traceback.get_current_meta()

    return location_of(Current)


def source_line(node: Any) -> str:
    """The line of the model's source that a node comes from, empty where it is unknown."""
    frames = _frames(node)
    return frames[-1][2] if frames else ""


def _frames(node: Any) -> list[tuple[str, str, str]]:
    """File, line and source of the frames of a node, those of the user's code if there are any."""
    trace = node.meta.get("stack_trace") or ""
    frames = re.findall(r'File "([^"]+)", line (\d+)[^\n]*(?:\n +(?!File ")([^\n]*))?', trace)
    frames = [f for f in frames if not f[0].startswith("<")]  # generated code
    return [f for f in frames if not _in_torch(f[0])] or frames
