"""GPU schedule of small dispatches side by side in one kernel: each has workgroups of its own.

What a step of decoding does between two products takes less time than a launch: norms and rotations of
queries and keys, rows of a cache. Their code is written one after the other, each under a condition on the
workgroup::

    if workgroup < 4: the rows of the first
    if 4 <= workgroup < 6: those of the second
"""

from __future__ import annotations

from mansard import dims
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common.base import Frame, Scheduled, estimate, power_of_two_below
from mansard.codegen.schedules.gpu import choose
from mansard.codegen.schedules.gpu.elementwise import map as maps
from mansard.codegen.schedules.gpu.reduction import rows
from mansard.codegen.schedules.gpu.reduction.cooperative_group import subgroup_size
from mansard.dims import DimLike
from mansard.ir.dispatch import Dispatch

WIDTH = 128
"""Invocations of a workgroup."""


def applies(dispatch: Dispatch, target: KernelTarget) -> bool:
    """Whether every part of a dispatch has a schedule that can stand beside others."""
    return target.is_gpu and all(_applies(Nest(part), target) for part in dispatch.parts)


def _applies(nest: Nest, target: KernelTarget) -> bool:
    if any(v.type.dtype.bits < 8 for v in nest.inputs):
        return False
    return choose.choose(nest, target) in (maps.schedule, rows.schedule)


def schedule(dispatch: Dispatch, target: KernelTarget, name: str) -> Scheduled:
    """The kernel of a dispatch for which `applies` is True."""
    buffers = (*dispatch.inputs, *dispatch.outputs)
    nests = [Nest(part, buffers) for part in dispatch.parts]
    width = power_of_two_below(min(WIDTH, target.workgroup_invocations))
    frame = Frame(nests[0], target, name, width, kernel=dispatch)
    b = frame.b
    first: DimLike = 0
    workgroup = b.workgroup_id(0)
    for nest in nests:
        part = _part(nest, target, frame, width)
        start, end = frame.ev.dim(first), dims.add(first, part.blocks)
        inside = b.compare("lt", workgroup, frame.ev.dim(end))
        if first != 0:
            inside = b.binary("and", inside, b.compare("ge", workgroup, start))
        with b.if_(inside):
            part.block(b.sub(workgroup, start))
        first = end
    return frame.finish((first, 1, 1))


def _part(nest: Nest, target: KernelTarget, frame: Frame, width: int) -> maps.Map | rows.Rows:
    if not any(root.reduces for root in nest.roots):
        parameters = Parameters.of(lanes=maps.whole_lanes(nest), vectors=1, width=width)
        return maps.Map(nest, target, "", parameters, frame)
    size = subgroup_size(target)
    longest = max(estimate(nest.total(root.inner)) for root in nest.roots)
    # A subgroup for each row, where rows are short.
    packed = width // size if size is not None and size <= width and longest <= 4 * rows.HELD * size else 1
    return rows.Rows(nest, target, "", frame, width // packed, packed)
