"""The grid: one model of one operator for each case."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.tflite_ops.writer import Writer, single

Array = np.ndarray[Any, Any]
Spec = tuple[Any, ...]
"""Shape, element type and, of a quantised tensor, scale and zero point."""


@dataclass(frozen=True)
class Case:
    """An operator, its model and its inputs."""

    op: str
    build: Callable[[np.random.Generator], tuple[bytes, list[Array]]]
    steps: int = 1
    """The largest difference of stored numbers."""
    rtol: float = 1e-4
    atol: float = 1e-5
    reference: bool = True
    """Whether reference kernels are asked; a few differ from LiteRT's other kernels and from TensorFlow."""


class Grid:
    """Cases under construction, by name."""

    def __init__(self) -> None:
        self.cases: dict[str, Case] = {}

    def enter(self, op: str, what: str, build: Any, **limits: Any) -> None:
        """Add a case."""
        name = f"{op.lower()}-{what}".replace(" ", "")
        assert name not in self.cases, name
        self.cases[name] = Case(op, build, **limits)

    def op(
        self,
        op: str,
        what: str,
        inputs: Sequence[Spec | Array],
        outputs: Sequence[Spec],
        *,
        values: Callable[[np.random.Generator, Spec], Array] | None = None,
        limits: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Add a case of one operator; inputs that are arrays are constants."""

        def build(rng: np.random.Generator) -> tuple[bytes, list[Array]]:
            model = single(op, inputs, outputs, **options)
            draw = values or drawn
            return model, [draw(rng, spec) for spec in inputs if not isinstance(spec, np.ndarray)]

        self.enter(op, what, build, **(limits or {}))


def drawn(rng: np.random.Generator, spec: Spec) -> Array:
    """Numbers of a tensor: all of a stored type, some around 0 of another."""
    shape, dtype = spec[0], spec[1]
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.startswith("float"):
        return (rng.standard_normal(shape) * 2).astype(dtype)
    if len(spec) > 2 and spec[2] is not None:
        info = np.iinfo(dtype)
        low = -32767 if dtype == "int16" else info.min
        return rng.integers(low, info.max + 1, shape).astype(dtype)
    return rng.integers(0 if dtype.startswith("u") else -9, 10, shape).astype(dtype)


def between(low: float, high: float) -> Callable[[np.random.Generator, Spec], Array]:
    """Draws between two numbers."""

    def draw(rng: np.random.Generator, spec: Spec) -> Array:
        x = rng.uniform(low, high, spec[0])
        return (x if spec[1].startswith("float") else np.floor(x)).astype(spec[1])

    return draw


def generator(name: str) -> np.random.Generator:
    """The numbers of a case: the same in every run."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def built(name: str) -> tuple[Case, bytes, list[Array]]:
    """A case, its model and its inputs."""
    case = cases()[name]
    return case, *case.build(generator(name))


@functools.cache
def cases() -> dict[str, Case]:
    """All cases by name."""
    from benchmarks.tflite_ops import elementwise, indexing, networks, shapes, windows

    grid = Grid()
    for family in (elementwise, windows, shapes, indexing, networks):
        family.enter(grid)
    return grid.cases


def writer() -> Writer:
    """A model under construction."""
    return Writer()


def names(every: int = 1) -> Iterator[str]:
    """Names of every so many cases."""
    yield from list(cases())[::every]
