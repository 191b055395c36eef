"""What a named value is while a program is written.

Integers are tensors of the program. Real numbers have no tensors of their own: they are integers times a
scale (`Scaled`), or functions of 8-bit integers (`Tabulated`), until they are quantised.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mansard.dtypes import DType
from mansard.regions.named import Encoding
from mansard.regions.tosa.program import Array


@dataclass(frozen=True)
class Integer:
    """A tensor of integers; ``offset`` is what those of an unsigned 8-bit value have less than it (128)."""

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    encoding: Encoding | None = None
    offset: int = 0

    @property
    def zero(self) -> int:
        """The zero point of the tensor's elements."""
        return (self.encoding.zero if self.encoding is not None else 0) - self.offset


@dataclass(frozen=True)
class Scaled:
    """Real numbers: the elements of an INT32 tensor times ``scales``, of which there is one, or one for each
    index of the last dim. No element is larger than ``largest``, and no number than ``bound``, without its
    sign.

    Sums of products of 16-bit elements are INT48, which RESCALE alone reads: their tensor may have ``shape``
    with dims of one element more.
    """

    tensor: str
    shape: tuple[int, ...]
    scales: Array
    largest: int
    bound: float
    dtype: str = "INT32"

    def times(self, factor: Array) -> Scaled:
        """The numbers times positive ones, for which nothing has to be computed."""
        factors = factor.astype(np.float64).reshape(-1)
        return replace(self, scales=self.scales * factors, bound=self.bound * float(factors.max()))


@dataclass(frozen=True)
class Tabulated:
    """Real numbers that depend on 8-bit integers element by element: ``numbers[i]`` for ``i - 128``."""

    source: Integer
    numbers: Array
    dtype: DType = DType.F32
    affine: bool = True
    """Whether they are the integers' own numbers, ``(i - zero) * scale``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.source.shape


@dataclass(frozen=True)
class Known:
    """A constant: its stored elements."""

    array: Array
    dtype: DType
    encoding: Encoding | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The constant's shape."""
        return tuple(self.array.shape)

    def real(self) -> Array:
        """The numbers it stands for, in f64."""
        if self.encoding is None:
            return self.array.astype(np.float64)
        scales = np.asarray(self.encoding.scales)
        if self.encoding.axis is not None:
            scales = scales.reshape([-1 if d == self.encoding.axis else 1 for d in range(self.array.ndim)])
        real: Array = (self.array.astype(np.float64) - self.encoding.zero) * scales
        return real


State = Integer | Scaled | Tabulated | Known
