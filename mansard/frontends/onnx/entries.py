"""What the names of an ONNX graph stand for during an import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from mansard.dtypes import DType
from mansard.frontends.emission.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Sequence:
    """A sequence of known length."""

    items: tuple[Entry, ...]
    dtype: DType | None = None


@dataclass(frozen=True, eq=False)
class Absent:
    """An optional without content."""


@dataclass(frozen=True, eq=False)
class Unsupported:
    """The result of a node that could not be imported: what reads it is not looked at."""


Entry: TypeAlias = Tensor | Sequence | Absent | Unsupported
