"""Equality of symbolic dims and shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mansard import dims
from mansard.dims import Dim, DimLike


def same_dim(a: DimLike, b: DimLike) -> bool:
    """Whether two dims are equal for every value of their symbols.

    Equal canonical forms are equal. Others (``2*floordiv(s, 2)`` and ``s`` with even ``s``) are
    compared at sample points of the symbols' contracts, so a difference is sure and an equality is
    as good as the samples.
    """
    if a is b or a == b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return False
    symbols = sorted(dims.to_expr(a).symbols() | dims.to_expr(b).symbols(), key=lambda s: s.name)
    return all(dims.evaluate(a, p) == dims.evaluate(b, p) for p in _samples(symbols))


def same_shape(a: Sequence[DimLike], b: Sequence[DimLike]) -> bool:
    """`same_dim` for every dim of two shapes."""
    return len(a) == len(b) and all(map(same_dim, a, b))


def _samples(symbols: Sequence[Dim]) -> Iterable[dict[str, int]]:
    for step in range(6):
        point = {}
        for number, s in enumerate(symbols):
            low = -(-s.min // s.multiple) * s.multiple
            # Steps differ by symbol, so that swapped symbols are told apart.
            value = low + step * (2 * number + 1) * s.multiple
            point[s.name] = value if value <= s.max else low
        yield point
