"""Entries of the importer's environment, to which MLIR values are mapped during an import.

An entry is one of

* an `mansard.ir.types.Value`: a tensor of the Graph;
* a `Splat`, `Empty` or `Elements`: a tensor that is not materialised yet;
* a `Scalar`: a number known on the host (a dim, a literal) or read from a rank-0 tensor (`Load`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.scalar import Arg, Scalar
from mansard.ir.types import Value


@dataclass(frozen=True)
class Load(Arg):
    """A scalar read from a rank-0 tensor: a leaf of scalar trees during import only."""

    value: Value

    @staticmethod
    def of(value: Value) -> Load:
        """The element of a rank-0 tensor."""
        return Load(-1, value.type.dtype, value)


@dataclass(frozen=True)
class Out(Arg):
    """The accumulator of result ``index`` in the body of a reduction; a leaf during import only."""


@dataclass(frozen=True)
class Splat:
    """A tensor whose elements are all ``scalar``."""

    scalar: Scalar
    shape: tuple[DimLike, ...]
    dtype: DType


@dataclass(frozen=True)
class Empty:
    """A tensor without content (``tensor.empty``): only its shape may be used."""

    shape: tuple[DimLike, ...]
    dtype: DType


@dataclass(frozen=True)
class Elements:
    """A small tensor given element by element, in row-major order."""

    scalars: tuple[Scalar, ...]
    shape: tuple[DimLike, ...]
    dtype: DType


TensorEntry: TypeAlias = Value | Splat | Empty | Elements
Entry: TypeAlias = TensorEntry | Scalar


def shape_of(entry: TensorEntry) -> tuple[DimLike, ...]:
    """The shape of a tensor entry."""
    return entry.type.shape if isinstance(entry, Value) else entry.shape


def dtype_of(entry: TensorEntry) -> DType:
    """The element type of a tensor entry."""
    return entry.type.dtype if isinstance(entry, Value) else entry.dtype
