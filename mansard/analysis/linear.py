"""Affine indices: their ranges, their division, and their form as scalar bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.scalar import Apply, Const, DimValue, Index, Scalar, rewrite
from mansard.ir.types import Linear

I64 = DType.I64
Range = tuple[int, int]
Ends = tuple[DimLike, DimLike]
"""The first and last value of a dim or an index."""


def span(linear: Linear, extents: Sequence[DimLike]) -> Ends | None:
    """The smallest and largest value of an affine index, or None when a coefficient's sign is unknown.

    Both ends are taken at iteration points, so they are only meaningful for a non-empty space.
    """
    return span_between(linear, {d: (0, dims.add(extents[d], -1)) for d, _ in linear.terms})


def span_between(linear: Linear, ends: Mapping[int, Ends]) -> Ends | None:
    """`span` for dims that run from and to given values."""
    low = high = linear.offset
    for d, c in linear.terms:
        first, last = (dims.mul(c, end) for end in ends[d])
        c_low, c_high = dims.bounds(c)
        if c_low < 0 < c_high:
            return None
        low = dims.add(low, first if c_low >= 0 else last)
        high = dims.add(high, last if c_low >= 0 else first)
    return low, high


def within(linear: Linear, extents: Sequence[DimLike], size: DimLike) -> bool:
    """Whether the index is surely in ``0 … size - 1`` at every iteration point."""
    ends = span(linear, extents)
    if ends is None:
        return False
    low, high = ends
    return dims.bounds(low)[0] >= 0 and dims.bounds(dims.add(size, -1, dims.mul(high, -1)))[0] >= 0


def divide(linear: Linear, divisor: DimLike, extents: Sequence[DimLike]) -> tuple[Linear, Linear] | None:
    """Quotient and remainder of an affine index, both affine, for a positive divisor; else None."""
    quotient: list[tuple[int, DimLike]] = []
    rest: list[tuple[int, DimLike]] = []
    for d, c in linear.terms:
        if dims.is_one(extents[d]):
            continue
        whole = dims.exact_div(c, divisor)
        if whole is None:
            rest.append((d, c))
        else:
            quotient.append((d, whole))
    offset = linear.offset
    whole_offset: DimLike | None
    if isinstance(offset, int) and isinstance(divisor, int):
        whole_offset, offset = divmod(offset, divisor)
    else:
        whole_offset = dims.exact_div(offset, divisor)
        offset = offset if whole_offset is None else 0
    remainder = Linear(tuple(rest), offset)
    if not within(remainder, extents, divisor):
        return None
    return Linear(tuple(quotient), whole_offset or 0), remainder


def delinearize(
    flat: Linear, extents: Sequence[DimLike], shape: Sequence[DimLike]
) -> tuple[Linear, ...] | None:
    """Affine indices into ``shape`` of a row-major position that is inside it, or None.

    ``4*d0 + d1`` with ``d1 < 4`` is ``(d0, d1)`` in a shape ``(…, 4)``.
    """
    results: list[Linear] = []
    real = [i for i, d in enumerate(shape) if not dims.is_one(d)]
    for i in reversed(range(len(shape))):
        if i not in real:
            results.append(Linear())
        elif i == real[0]:
            results.append(flat)
        else:
            split = divide(flat, shape[i], extents)
            if split is None:
                return None
            flat = split[0]
            results.append(split[1])
    return tuple(reversed(results))


def to_scalar(linear: Linear) -> Scalar:
    """An affine index as an i64 body: terms by dim, then the offset."""
    parts: list[Scalar] = []
    for d, c in linear.terms:
        index: Scalar = Index(d)
        parts.append(index if dims.is_one(c) else Apply("mul", (index, dim_scalar(c)), I64))
    if linear.offset != 0 or not parts:
        parts.append(dim_scalar(linear.offset))
    result = parts[0]
    for part in parts[1:]:
        result = Apply("add", (result, part), I64)
    return result


def over_loops(body: Scalar, loops: Sequence[Linear]) -> Scalar:
    """A body with each index replaced by one over other loops."""
    return rewrite(body, lambda node: to_scalar(loops[node.dim]) if isinstance(node, Index) else node)


def dim_scalar(value: DimLike) -> Scalar:
    """A dim expression as a Const or DimValue."""
    return Const(value, I64) if isinstance(value, int) else DimValue(value)


def clamp(index: Scalar, size: DimLike) -> Scalar:
    """An i64 node moved into ``0 … size - 1``."""
    last = dim_scalar(dims.add(size, -1))
    return Apply("max", (Apply("min", (index, last), I64), dim_scalar(0)), I64)


def type_range(dtype: DType) -> Range:
    """The values an integer or bool type holds."""
    if dtype is DType.BOOL:
        return 0, 1
    low = -(2 ** (dtype.bits - 1)) if dtype.is_signed else 0
    return low, low + 2**dtype.bits - 1
