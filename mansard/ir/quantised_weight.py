"""Weights stored as small integers with scales, and the one form in which a Graph computes with them.

A weight ``w`` (N, K) is ``codes`` (N, K) of 4- or 8-bit integers; groups of its K share scales::

    w[n, k] = (codes[n, k] - zeros[n, k / z]) * scales[n, k / g] * ... + offsets[n, k / m] * ...

Zeros, offsets and further scales are optional. A product with it is one contraction whose reduced dim is
split at the groups, so that every index is affine (here one scale for each 32 of K)::

    %y: 1x64xf32 = generic (d0:1, d1:64 | d2:4, d3:32) add
                     {f32(%x[d0, 32*d2 + d3]) * (f32(%codes[d1, 32*d2 + d3]) * f32(%scales[d1, d2]))}

Quantisation at compile time (`mansard.passes.products.weight_only`) and importers of quantised files emit
this form; schedules recognise it (`mansard.codegen.schedules.common.dequantised`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.ops import Generic
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Linear, Value

F32, I64 = DType.F32, DType.I64
CODES = frozenset({DType.I8, DType.U8, DType.I4, DType.U4})
"""Element types of codes."""
_Read = Callable[[Value, int], Scalar]
"""Makes the node that reads a value for the group of so many elements of K that holds k."""


@dataclass(frozen=True)
class GroupFactor:
    """One number for every ``size`` consecutive elements of K: ``value`` is (N, K / size), of any type."""

    value: Value
    size: int


@dataclass(frozen=True)
class QuantisedWeight:
    """A weight (N, K) as integers; the sizes of its groups divide K and each other."""

    codes: Value
    scales: tuple[GroupFactor, ...]
    """Their product is the scale."""
    zeros: GroupFactor | None = None
    """What the codes are reduced by before they are scaled."""
    offsets: tuple[GroupFactor, ...] = ()
    """Their product is added to the scaled codes."""

    @property
    def values(self) -> tuple[Value, ...]:
        """The codes, then the values of all factors."""
        return (self.codes, *(factor.value for factor in self._factors))

    @property
    def _factors(self) -> tuple[GroupFactor, ...]:
        return (*((self.zeros,) if self.zeros else ()), *self.scales, *self.offsets)

    def split(self) -> tuple[int, ...]:
        """K as nested loops at the borders of the groups, outermost first: 1024 with groups of 256 and 32
        is (4, 8, 32). Raises ValueError for sizes that do not divide each other."""
        depth = self.codes.type.shape[-1]
        assert isinstance(depth, int)
        sizes = sorted({factor.size for factor in self._factors} - {depth})
        loops: list[int] = []
        inner = 1
        for size in (*sizes, depth):
            if size % inner:
                raise ValueError(f"groups of {size} and {inner} do not nest")
            loops.append(size // inner)
            inner = size
        return tuple(reversed(loops))

    def _body(self, read: _Read) -> Scalar:
        """The weight's element as an f32 expression over reads of (value, size of group)."""
        element: Scalar = _f32(read(self.codes, 1))
        if self.zeros is not None:
            element = Apply("sub", (element, _f32(read(self.zeros.value, self.zeros.size))), F32)
        if self.scales:
            element = Apply("mul", (element, _product(self.scales, read)), F32)
        if self.offsets:
            element = Apply("add", (element, _product(self.offsets, read)), F32)
        return element


def _product(factors: Sequence[GroupFactor], read: _Read) -> Scalar:
    first, *rest = (_f32(read(factor.value, factor.size)) for factor in factors)
    for other in rest:
        first = Apply("mul", (first, other), F32)
    return first


def _f32(node: Scalar) -> Scalar:
    return node if node.dtype is F32 else Cast(node, F32)


class _Args:
    """Reads through index maps over the parallel dims and the loops of K, at ``place`` for a size of
    group."""

    def __init__(self, column: Linear, place: Callable[[int], Linear], taken: int) -> None:
        self.column, self.place, self.taken = column, place, taken
        self.values: list[Value] = []
        self.maps: list[IndexMap] = []

    def __call__(self, value: Value, size: int) -> Scalar:
        self.values.append(value)
        self.maps.append(IndexMap((self.column, self.place(size))))
        return Arg(self.taken + len(self.values) - 1, value.type.dtype)


def _strides(loops: Sequence[int]) -> list[int]:
    out, step = [], 1
    for extent in reversed(loops):
        out.append(step)
        step *= extent
    return list(reversed(out))


class _Gathers:
    """Reads at computed indices: those of a row, and that of a group of it at ``place`` for a size."""

    def __init__(self, row: Sequence[Scalar], place: Callable[[int], Scalar], taken: int) -> None:
        self.row, self.place, self.taken = row, place, taken
        self.values: list[Value] = []

    def __call__(self, value: Value, size: int) -> Scalar:
        self.values.append(value)
        k = Const(0, I64) if dims.is_one(value.type.shape[-1]) else self.place(size)
        return Gather(self.taken + len(self.values) - 1, (*self.row, k), value.type.dtype)


def product(
    weight: QuantisedWeight,
    x: Sequence[tuple[Value, IndexMap, int]],
    factor: Scalar,
    extents: Sequence[DimLike],
    column: Linear,
    out: Value,
) -> Generic:
    """``sum over k of factor * w[column, k]`` into ``out`` (f32), of the parallel ``extents``.

    ``factor`` is an f32 expression over the operands ``x``: values with their index maps over the parallel
    dims and one more, which counts elements of K, or groups of that many. ``column`` gives N over the
    parallel dims.
    """
    loops, rank = weight.split(), len(extents)
    parallel = [Linear.dim(d) for d in range(rank)]
    strides = _strides(loops)

    def place(size: int) -> Linear:
        return Linear(tuple((rank + i, stride // size) for i, stride in enumerate(strides) if stride >= size))

    read = _Args(column, place, len(x))
    body = Apply("mul", (factor, weight._body(read)), F32)
    values = (*(value for value, _, _ in x), *read.values)
    maps = (*(index_map.compose([*parallel, place(size)]) for _, index_map, size in x), *read.maps)
    return Generic(values, (out,), (*extents, *loops), maps, body, "add")


def chosen_product(
    weight: QuantisedWeight,
    x: Sequence[tuple[Value, IndexMap]],
    factor: Scalar,
    extents: Sequence[DimLike],
    reduced: Sequence[DimLike],
    row: Sequence[Scalar],
    out: Value,
) -> Generic:
    """``sum over reduced loops and k of factor * w[*row, k]`` into ``out`` (f32), of the parallel
    ``extents``, for a weight that is a stack of matrices.

    ``factor`` is an f32 expression over the operands ``x``: values with their index maps over the parallel
    dims, the ``reduced`` ones and K. ``row`` are indices (i64) of a matrix and of a row, over all but K.
    """
    loops, rank = weight.split(), len(extents) + len(reduced)
    strides = _strides(loops)

    def element(size: int) -> Scalar:
        terms: list[Scalar] = []
        for i, stride in enumerate(strides):
            if stride >= size:
                steps = Const(stride // size, I64)
                terms.append(
                    Apply("mul", (Index(rank + i), steps), I64) if stride > size else Index(rank + i)
                )
        return functools.reduce(lambda a, b: Apply("add", (a, b), I64), terms)

    read = _Gathers(row, element, len(x))
    body = Apply("mul", (factor, weight._body(read)), F32)
    k = Linear(tuple((rank + i, stride) for i, stride in enumerate(strides)))
    inner = [*(Linear.dim(d) for d in range(rank)), k]
    maps = (*(index_map.compose(inner) for _, index_map in x), *(None for _ in read.values))
    values = (*(value for value, _ in x), *read.values)
    return Generic(values, (out,), (*extents, *reduced, *loops), maps, body, "add")


def element(
    weight: QuantisedWeight, row: Sequence[Scalar], k: Scalar, taken: int
) -> tuple[tuple[Value, ...], Scalar]:
    """``w[*row, k]`` in f32 at computed indices (i64), for a Generic that has ``taken`` operands: the
    operands to append, and the expression. The weight may be a stack of matrices, as are its values then."""

    def place(size: int) -> Scalar:
        return k if size == 1 else Apply("floordiv", (k, Const(size, I64)), I64)

    read = _Gathers(row, place, taken)
    body = weight._body(read)
    return tuple(read.values), body
