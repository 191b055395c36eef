"""Kinds of work: what dispatches do besides products of matrices, by the structure of their ops.

Devices reach another part of their rate in each, so calibration measures each (`DeviceProfile.kinds`).
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.dims import DimLike
from mansard.ir.dispatch import is_contraction
from mansard.ir.ops import Generic, Op

SHALLOW = 16
"""Products per place of a window below which it is no product of matrices to a device: that many lie side by
side in memory, and a vector or a tile of a matrix takes as many."""


def kind_of(ops: Sequence[Op]) -> str:
    """The kind of a dispatch with these ops, one of `mansard.targets.profile.KINDS` or empty.

    ``attention`` has a product of what another gave; ``depthwise`` and ``shallow`` are windows with one
    product per place and with fewer than `SHALLOW`; ``rows`` has reductions and no product.
    """
    generics = [op for op in ops if isinstance(op, Generic)]
    products = [op for op in generics if is_contraction(op)]
    if len(products) > 1:
        return "attention"
    if products:
        return _window(products[0])
    return "rows" if any(op.combiner is not None for op in generics) else ""


def _window(op: Generic) -> str:
    """The kind of a product as a window: the sum of each place is over the loops that do not slide."""
    taps = _taps(op)
    if not taps:
        return ""
    each: DimLike = dims.product(op.extents[dim] for dim in op.reduced if dim not in taps)
    products = dims.representative(each)
    return "depthwise" if products == 1 else "shallow" if products < SHALLOW else ""


def _taps(op: Generic) -> set[int]:
    """Reduced dims that slide over an operand: added to a parallel dim in its index."""
    reduced = set(op.reduced)
    found: set[int] = set()
    for index_map in op.maps:
        for result in index_map.results if index_map is not None else ():
            walked = {dim for dim, _ in result.terms if not dims.is_one(op.extents[dim])}
            if walked - reduced:
                found |= walked & reduced
    return found
