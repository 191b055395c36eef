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
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    frames = [f for f in frames if not f[0].startswith("<")]  # generated code
    user_frames = [f for f in frames if not _in_torch(f[0])] or frames
    line = f"{Path(user_frames[-1][0]).name}:{user_frames[-1][1]}" if user_frames else ""
    if path and line:
        return f"{path} ({line})"
    return path or line
