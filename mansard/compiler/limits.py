"""Limits of devices that a dispatch may run into, found before a kernel is generated."""

from __future__ import annotations

from mansard import dims
from mansard.codegen.backend import KernelTarget
from mansard.codegen.schedules.common.base import MAX_GRID
from mansard.codegen.schedules.gpu.lines import scan, scatter, sort
from mansard.dims import DimLike
from mansard.ir.dispatch import Dispatch, is_contraction
from mansard.ir.ops import Generic, Reshape, Scan, Scatter, Sort

_LANES = 64
"""Invocations that at least share the inner loops of a row, or the points of a domain."""
_WORKGROUP = 32
"""Invocations of the smallest workgroup that shares a line."""
_SERIAL_ROW, _ROW_SHARED = 4096, 16
"""Rows are never reduced by a single invocation beyond this length; as many share the row, or more."""


def gpu_loop_iterations(dispatch: Dispatch, target: KernelTarget) -> int:
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
            total += _lines(op, target)
        elif isinstance(op, Scatter):
            total += _scatter(op)
    return total


def _lines(op: Scan | Sort, target: KernelTarget) -> int:
    """Sorting networks, blocks of a running sum, or one invocation to a line (an element, when sorting)."""
    length = _most(op.inputs[0].type.shape[op.axis])
    lines = _most(op.inputs[0].type.elements) // max(1, length)
    if isinstance(op, Sort) and sort.applies(op, target):
        size = sort.network_size(op)
        stages = size.bit_length() - 1
        comparing = stages * (stages + 1) // 2 * (size // _LANES + 1)
        return (lines // MAX_GRID + 1) * (comparing + 2 * (size // _WORKGROUP + 1))
    if isinstance(op, Scan) and scan.applies(op):
        # Blocks, and in each the subgroups before one's own.
        blocks = length // (scan.ELEMENTS_PER_LANE * _WORKGROUP) + 1
        return (lines // MAX_GRID + 1) * (
            blocks + length // (scan.ELEMENTS_PER_LANE * target.subgroup[0]) + target.subgroup[1]
        )
    return (lines * length // (MAX_GRID * _LANES) + 1) * length


def _scatter(op: Scatter) -> int:
    keys = op.inputs[1].type.shape[1]
    assert isinstance(keys, int)
    rows, inner = _most(dims.product(op.inputs[0].type.shape[:keys])), op.inputs[0].type.shape[keys:]
    updates = _most(op.inputs[1].type.shape[0])
    if not scatter.applies(op):
        return updates + rows
    columns = _most(dims.product(inner)) // _WORKGROUP + 1
    row = columns * updates if op.combiner else scatter.BLOCK * columns + updates // _WORKGROUP + 2
    return (max(rows, updates) // MAX_GRID + 1) * (row + updates // _WORKGROUP + 1)


def _inner(op: Generic) -> int:
    inner = _most(dims.product(op.extents[op.rank :]))
    if is_contraction(op) or inner <= _SERIAL_ROW:
        return inner
    return max(_SERIAL_ROW, inner // _ROW_SHARED + 1)


def _most(value: DimLike) -> int:
    return dims.bounds(value)[1]
