"""Tensors of a model that is being imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.types import Constant, Value

Content: TypeAlias = npt.NDArray[Any]
"""Elements known during the import. Integers that depend on symbolic dims are dims in an array of objects."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor: a value of the Graph, or data known during the import, which becomes one where it is read.

    ``content`` is there for tensors that stand for shapes, axes and other small numbers; ``constant`` for
    weights, which stay where they are until something asks for their elements; ``splat`` for a tensor whose
    elements are all that number.
    """

    shape: tuple[DimLike, ...]
    dtype: DType
    value: Value | None = None
    content: Content | None = None
    constant: Constant | None = None
    name: str = ""
    splat: float | int | bool | None = None

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def symbolic(self) -> bool:
        """Whether the content has symbolic dims."""
        return self.content is not None and self.content.dtype == np.object_
