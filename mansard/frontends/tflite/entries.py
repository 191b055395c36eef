"""What the tensors of a ``.tflite`` graph stand for during an import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from mansard.frontends.emission.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Complex:
    """Complex numbers as their parts."""

    real: Tensor
    imaginary: Tensor


@dataclass(frozen=True, eq=False)
class Variable:
    """A handle of a variable, which persists across calls."""

    name: str


@dataclass(frozen=True, eq=False)
class Unsupported:
    """The result of an operator that could not be imported: what reads it is not looked at."""


Entry: TypeAlias = Tensor | Complex | Variable | Unsupported
