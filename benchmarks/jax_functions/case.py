"""A function with its arguments, and how cases are collected."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = Any
FLOATS = ("float32", "bfloat16", "float16")
SHAPES: tuple[tuple[int, ...], ...] = ((3, 4), (), (2, 1, 5), (0, 3))


@dataclass(frozen=True)
class Case:
    """``function(*arguments)`` of one entry of the list."""

    entry: str
    function: Callable[..., Any]
    arguments: tuple[Array, ...]


Cases = dict[str, Case]


def array(
    shape: Sequence[int], dtype: str = "float32", low: float = -2, high: float = 2, seed: str = ""
) -> Array:
    """Numbers of an element type between two bounds, always the same ones."""
    rng = np.random.default_rng(zlib.crc32(f"{seed}{shape}{dtype}".encode()))
    if dtype == "bool":
        return rng.random(shape) > 0.5
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if kind.kind in "iu":
        return rng.integers(0 if kind.kind == "u" and low < 0 else int(low), int(high) + 1, shape).astype(
            kind
        )
    return np.asarray(rng.uniform(low, high, shape)).astype(kind)


class List:
    """Cases under construction."""

    def __init__(self, module: str) -> None:
        self.module, self.cases = module, Cases()

    def add(self, name: str, function: Callable[..., Any], *arguments: Array, variant: str = "") -> None:
        """One case; ``variant`` tells the cases of an entry apart."""
        entry = f"{self.module}.{name}"
        label = "-".join(part for part in (entry, variant, *map(described, arguments)) if part)
        number = sum(1 for other in self.cases if other.split("#")[0] == label)
        self.cases[f"{label}#{number}" if number else label] = Case(entry, function, arguments)

    def each(
        self,
        names: str,
        of: Any,
        arity: int = 1,
        dtypes: Sequence[str] = FLOATS,
        shapes: Sequence[tuple[int, ...]] = SHAPES,
        low: float = -2,
        high: float = 2,
        **options: Any,
    ) -> None:
        """Functions by name: every dtype with the first shape, the first dtype with every shape."""
        for name in names.split():
            target = of
            for part in name.split("."):
                target = getattr(target, part)
            grid = [(d, shapes[0]) for d in dtypes] + [(dtypes[0], s) for s in shapes[1:]]
            for dtype, shape in grid:
                values = [array(shape, dtype, low, high, f"{n}") for n in range(arity)]
                self.add(name, _with(target, options), *values)


def _with(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    return (lambda *args: function(*args, **options)) if options else function


def described(value: Any) -> str:
    """The type of an argument, for a case's name."""
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return type(value).__name__
