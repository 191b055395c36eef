"""Types and values of the Graph IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType


@dataclass(frozen=True)
class TensorType:
    """A dense row-major tensor: shape (ints or dim expressions) and element type."""

    shape: tuple[DimLike, ...]
    dtype: DType

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def elements(self) -> DimLike:
        """Number of elements."""
        return dims.product(self.shape)

    @property
    def bytes(self) -> DimLike:
        """Storage size in bytes (packed for sub-byte types)."""
        if self.dtype.bits >= 8:
            return dims.mul(self.elements, self.dtype.itemsize)
        return dims.ceildiv(dims.mul(self.elements, self.dtype.bits), 8)

    def concrete(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """The shape under given symbol values."""
        return tuple(dims.evaluate(d, values) for d in self.shape)

    def __str__(self) -> str:
        return "x".join([*(str(d) if isinstance(d, int) else f"[{d}]" for d in self.shape), self.dtype.value])


@dataclass(frozen=True)
class Location:
    """Where an op comes from in the user's model, such as ``model/layers.0/attn.py:17``."""

    text: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class Value:
    """An SSA value; identity is the object. ``name`` is for readers, and unique in a verified graph."""

    name: str
    type: TensorType

    def __str__(self) -> str:
        return f"%{self.name}"

    __repr__ = __str__


@dataclass(frozen=True, eq=False)
class Constant:
    """Data of a constant value, loaded on demand.

    ``load`` returns the array (shape and dtype of the value), mapped from a file where possible;
    ``key`` identifies the content's origin (parameter name or a content hash) for reports.
    """

    key: str
    load: Callable[[], npt.NDArray[np.generic]]
    parts: tuple[tuple[str, TensorType], ...] = ()
    """Of a constant that is others one after another: their keys and types."""

    def holds(self, keys: AbstractSet[str]) -> bool:
        """Whether it, or a part of it, has one of the keys."""
        return self.key in keys or any(key in keys for key, _ in self.parts)

    @staticmethod
    def of(array: npt.NDArray[np.generic], key: str = "") -> Constant:
        """A constant over an array held in memory."""
        kept = np.ascontiguousarray(array).reshape(np.shape(array))
        return Constant(key, lambda: kept)


@dataclass(frozen=True)
class Linear:
    """An affine index: ``sum(coefficients[i] * d_i) + offset`` over iteration dims ``d_i``.

    ``terms`` holds (dim, coefficient) pairs, sorted by dim, coefficients non-zero.
    """

    terms: tuple[tuple[int, DimLike], ...] = ()
    offset: DimLike = 0

    @staticmethod
    def dim(index: int, coefficient: DimLike = 1, offset: DimLike = 0) -> Linear:
        """``coefficient * d_index + offset``."""
        if isinstance(coefficient, int) and coefficient == 0:
            return Linear((), offset)
        return Linear(((index, coefficient),), offset)

    @property
    def single(self) -> int | None:
        """The dim when the index is exactly one dim (coefficient 1, offset 0), else None."""
        if len(self.terms) == 1 and dims.is_one(self.terms[0][1]) and self.offset == 0:
            return self.terms[0][0]
        return None

    def plus(self, other: Linear) -> Linear:
        """The sum of two indices."""
        if not other.terms and other.offset == 0:
            return self
        if not self.terms and self.offset == 0:
            return other
        merged: dict[int, DimLike] = dict(self.terms)
        for d, c in other.terms:
            merged[d] = dims.add(merged.get(d, 0), c)
        kept = tuple(sorted((d, c) for d, c in merged.items() if c != 0))
        return Linear(kept, dims.add(self.offset, other.offset))

    def scaled(self, factor: DimLike) -> Linear:
        """The index times a factor."""
        if factor == 0:
            return Linear()
        if factor == 1:
            return self
        return Linear(tuple((d, dims.mul(c, factor)) for d, c in self.terms), dims.mul(self.offset, factor))

    def compose(self, inner: Sequence[Linear]) -> Linear:
        """The index with each dim ``d_i`` replaced by ``inner[i]``."""
        result = Linear((), self.offset)
        for d, c in self.terms:
            result = result.plus(inner[d].scaled(c))
        return result

    def __str__(self) -> str:
        parts = [f"d{d}" if dims.is_one(c) else f"({c})*d{d}" for d, c in self.terms]
        if self.offset != 0 or not parts:
            parts.append(str(self.offset) if isinstance(self.offset, int) else f"({self.offset})")
        return " + ".join(parts)


@dataclass(frozen=True)
class IndexMap:
    """How an operand is read: one `Linear` per operand dim, over the op's iteration dims.

    With ``fill``, an index may lie outside the operand and reads that value there (a padded window).
    """

    results: tuple[Linear, ...] = field(default=())
    fill: float | int | bool | None = None

    @staticmethod
    def identity(rank: int) -> IndexMap:
        """``(d0, d1, …)``."""
        return IndexMap(tuple(Linear.dim(i) for i in range(rank)))

    @staticmethod
    def of_dims(indices: Sequence[int | None]) -> IndexMap:
        """A map of plain dims; None reads index 0 (a broadcast dim of extent 1)."""
        return IndexMap(tuple(Linear() if i is None else Linear.dim(i) for i in indices))

    def compose(self, inner: Sequence[Linear]) -> IndexMap:
        """The map with each iteration dim replaced."""
        return IndexMap(tuple(r.compose(inner) for r in self.results), self.fill)

    @property
    def plain_dims(self) -> tuple[int | None, ...] | None:
        """The dim of each result when every result is a plain dim or the constant 0, else None."""
        out: list[int | None] = []
        for r in self.results:
            if r.single is not None:
                out.append(r.single)
            elif not r.terms and r.offset == 0:
                out.append(None)
            else:
                return None
        return tuple(out)

    def __str__(self) -> str:
        fill = "" if self.fill is None else f" else {self.fill}"
        return "(" + ", ".join(str(r) for r in self.results) + ")" + fill
