"""Telling StableHLO from other MLIR without a parser."""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from typing import Any

_DIALECTS = re.compile(rb"StableHLO_v\d|\b(?:stablehlo|chlo)[.<]\w")
BYTECODE = b"ML\xefR"
"""How MLIR's bytecode begins."""


def is_stablehlo(model: Any) -> bool:
    """Whether a text, some bytes or a file has ops of StableHLO."""
    if isinstance(model, (bytes, bytearray)):
        return _mentions(bytes(model))
    if isinstance(model, str) and "\n" in model:
        return _mentions(model.encode(errors="replace"))
    try:
        with Path(model).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return _mentions(mapped)
    except (OSError, ValueError, TypeError):  # not there, empty, or no path
        return False


def _mentions(source: Any) -> bool:
    if source[:4] == BYTECODE:
        return bool(source.find(b"stablehlo") >= 0 or source[:64].find(b"StableHLO_v") >= 0)
    return _DIALECTS.search(source) is not None
