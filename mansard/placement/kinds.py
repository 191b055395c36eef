"""Kinds of work other than matrix products, by the structure of a dispatch's ops.

Devices reach a different fraction of their peak rate in each, so calibration measures each
(`DeviceProfile.kinds`).
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.dims import DimLike
from mansard.ir.dispatch import is_contraction
from mansard.ir.ops import Generic, Op

SHALLOW = 16
"""Products per window position below which devices do not run it like a matrix product: vectors and matrix
tiles need that many adjacent ones to be full."""


def kind_of(ops: Sequence[Op]) -> str:
    """The kind of a dispatch with these ops, one of `mansard.targets.profile.KINDS` or empty.

    ``attention`` is a product of another product's result; ``depthwise`` and ``shallow`` are convolutions
    with one product per window position and with fewer than `SHALLOW`; ``rows`` has reductions and no
    product.
    """
    generics = [op for op in ops if isinstance(op, Generic)]
    products = [op for op in generics if is_contraction(op)]
    if len(products) > 1:
        return "attention" if _chained(ops, products) else ""
    if products:
        return _convolution_kind(products[0])
    return "rows" if any(op.combiner is not None for op in generics) else ""


def _chained(ops: Sequence[Op], products: Sequence[Op]) -> bool:
    """Whether a product is of another one's result."""
    behind: set[object] = set()
    for op in ops:
        reads = behind.intersection(op.inputs)
        if reads and op in products:
            return True
        if reads or op in products:
            behind.update(op.outputs)
    return False


def _convolution_kind(op: Generic) -> str:
    """The kind of a contraction as a convolution, by its products per window position."""
    taps = _taps(op)
    if not taps:
        return ""
    channels: DimLike = dims.product(op.extents[dim] for dim in op.reduced if dim not in taps)
    products = dims.representative(channels)
    return "depthwise" if products == 1 else "shallow" if products < SHALLOW else ""


def _taps(op: Generic) -> set[int]:
    """Reduced dims that walk a window: added to a parallel dim in an operand's index."""
    reduced = set(op.reduced)
    taps: set[int] = set()
    for index_map in op.maps:
        for result in index_map.results if index_map is not None else ():
            walked = {dim for dim, _ in result.terms if not dims.is_one(op.extents[dim])}
            if walked - reduced:
                taps |= walked & reduced
    return taps
