"""Limits of devices that a dispatch may run into, found before a kernel is generated."""

from __future__ import annotations

from mansard import dims
from mansard.codegen.schedules.base import MAX_GRID
from mansard.dims import DimLike
from mansard.ir.ops import Generic, Reshape, Scan, Scatter, Sort
from mansard.passes.dispatch import Dispatch, is_contraction

_LANES = 64
"""Invocations that at least share the inner loops of a row, or the points of a domain."""
_SERIAL_ROW, _ROW_SHARED = 4096, 16
"""Rows are never reduced by a single invocation beyond this length; as many share the row, or more."""


def gpu_loop_iterations(dispatch: Dispatch) -> int:
    """An upper bound on the loop iterations of one invocation, all loops together, for the largest dims."""
    total = 0
    points = _most(dims.product(dispatch.domain))
    for op in dispatch.ops:
        if isinstance(op, Reshape):
            continue
        if isinstance(op, Generic):
            strides = points // (MAX_GRID * _LANES) + 1
            total += strides * _inner(op)
        elif isinstance(op, (Scan, Sort)):
            length = op.inputs[0].type.shape[op.axis]
            lines = _most(op.inputs[0].type.elements) // (MAX_GRID * _LANES) + 1
            total += lines * _most(length)
        elif isinstance(op, Scatter):
            keys = op.inputs[1].type.shape[1]
            assert isinstance(keys, int)
            copied = dims.product(op.inputs[0].type.shape[:keys])
            total += _most(op.inputs[1].type.shape[0]) + _most(copied)
    return total


def _inner(op: Generic) -> int:
    inner = _most(dims.product(op.extents[op.rank :]))
    if is_contraction(op) or inner <= _SERIAL_ROW:
        return inner
    return max(_SERIAL_ROW, inner // _ROW_SHARED + 1)


def _most(value: DimLike) -> int:
    return dims.bounds(value)[1]
