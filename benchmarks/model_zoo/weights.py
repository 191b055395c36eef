"""Random weights by name: the same numbers in every framework and process."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def weight(name: str, shape: Sequence[int], kind: str) -> Array:
    """A weight in f32: a ``matrix``, whose dims but the first are summed, keeps the scale of its factor; a
    ``scale`` is about 1, a ``damping`` below it, as trained scales behind sums are; a ``shift`` is about 0, a
    ``variance`` positive, a ``table`` normal.
    """
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if kind == "matrix":
        summed = int(np.prod(shape[1:]))
        return (rng.standard_normal(shape) / np.sqrt(summed)).astype(np.float32)
    if kind == "damping":
        return rng.uniform(0.5, 0.9, shape).astype(np.float32)
    if kind in ("scale", "variance"):
        return rng.uniform(0.7, 1.3, shape).astype(np.float32)
    return (rng.standard_normal(shape) * (0.1 if kind == "shift" else 1.0)).astype(np.float32)
