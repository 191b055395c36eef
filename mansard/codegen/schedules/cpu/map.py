"""CPU schedule of elementwise dispatches: blocks of rows, vectors along the innermost loop."""

from __future__ import annotations

from mansard import dims
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest
from mansard.codegen.loop_partition import partition_loop
from mansard.codegen.schedules.common.base import Frame, Scheduled, choose_lanes, divides, estimate
from mansard.codegen.schedules.common.transposed_stores import transposed_result
from mansard.codegen.schedules.cpu import transpose
from mansard.codegen.schedules.cpu.transpose import MIN_SIDE, crossing, square
from mansard.dtypes import DType

BLOCK = 8192
"""Elements of one task: a few microseconds of work, which balances several cores."""


def schedule(nest: Nest, target: KernelTarget, name: str) -> Scheduled:
    """One task is up to `BLOCK` elements of a row, or several short rows."""
    frame = Frame(nest, target, name)
    b, ev = frame.b, frame.ev
    positions = [p for root in nest.roots for p in nest.positions(root)]
    groups = nest.collapsed(range(nest.domain), positions)

    def emit() -> None:
        for root in nest.roots:
            ev.store(root.op.output, nest.store_address(root), ev.root(root))

    if not groups:
        emit()
        return frame.finish((1, 1, 1))
    for group in groups[:-1]:
        turned = transposed_result(nest, group)
        if turned is not None and (side := square(nest, group, groups[-1], target)) >= MIN_SIDE:
            return transpose.schedule_result(frame, groups, group, turned, side)
    crossed = crossing(nest, groups)
    if crossed is not None and (side := square(nest, crossed[0], groups[-1], target)) >= MIN_SIDE:
        return transpose.schedule(frame, groups, *crossed, side)
    *outer, inner = groups
    extent = nest.total(inner)
    lanes = choose_lanes(extent, target.lanes(DType.F32))
    overlap = dims.bounds(extent)[0] >= lanes
    blocks = dims.ceildiv(extent, BLOCK)
    rows = nest.total([loop for group in outer for loop in group])
    rows_per_task = max(1, BLOCK // min(estimate(extent), BLOCK))
    lower = b.mul(b.workgroup_id(0), b.idx(BLOCK)) if blocks != 1 else b.idx(0)
    size = ev.dim(extent)
    upper = frame.minimum(b.add(lower, b.idx(BLOCK)), size) if blocks != 1 else size

    parts = (
        partition_loop(nest, inner[-1]) if blocks == 1 and isinstance(extent, int) and len(inner) == 1 else []
    )

    ev.starts_even = divides(extent, lanes) and not any(n % 2 for p in parts for n in (p.lower, p.upper))

    def row() -> None:
        if len(parts) < 2:
            frame.vector_loop(inner, lower, upper, lanes, divides(extent, lanes), overlap, emit)
        for part in parts if len(parts) > 1 else ():
            width = part.upper - part.lower
            map_lanes = choose_lanes(width, lanes)
            with ev.scope():
                ev.specialised, ev.piece = part.ops, (inner[-1], part.lower, part.upper)
                frame.vector_loop(
                    inner,
                    b.idx(part.lower),
                    b.idx(part.upper),
                    map_lanes,
                    width % map_lanes == 0,
                    width >= map_lanes,
                    emit,
                )
        ev.specialised, ev.piece = {}, None

    if not outer:
        row()
        return frame.finish((blocks, 1, 1))
    first = b.mul(b.workgroup_id(1), b.idx(rows_per_task))
    last = frame.minimum(b.add(first, b.idx(rows_per_task)), ev.dim(rows))
    with b.for_(first, last) as loop, ev.scope():
        frame.bind_flat(outer, loop.index)
        row()
    return frame.finish((blocks, dims.ceildiv(rows, rows_per_task), 1))
