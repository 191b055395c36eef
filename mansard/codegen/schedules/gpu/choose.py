"""Selection of the GPU schedule for a loop nest."""

from __future__ import annotations

from collections.abc import Mapping

from mansard import dims
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.common import contraction
from mansard.codegen.schedules.common.base import estimate
from mansard.codegen.schedules.common.tunable import NestSchedule, Tunable
from mansard.codegen.schedules.gpu.convolution import depthwise
from mansard.codegen.schedules.gpu.elementwise import map as maps
from mansard.codegen.schedules.gpu.elementwise import transpose
from mansard.codegen.schedules.gpu.gemm import general, matrix, tiled
from mansard.codegen.schedules.gpu.gemv import gemv
from mansard.codegen.schedules.gpu.reduction import rows, strided
from mansard.ir.dispatch import is_contraction

TUNABLE: Mapping[NestSchedule, Tunable] = {
    gemv.schedule: Tunable(gemv.candidates, gemv.schedule),
    matrix.schedule: Tunable(matrix.candidates, matrix.schedule),
    maps.schedule: Tunable(maps.candidates, maps.schedule),
    tiled.schedule: Tunable(tiled.candidates, tiled.schedule),
    depthwise.schedule: Tunable(depthwise.candidates, depthwise.schedule),
}
"""The tunable interface of each schedule with parameters, by the schedule that `choose` returns."""


def choose(nest: Nest, target: KernelTarget) -> NestSchedule:
    """The specialised schedules first, each with its condition; then the generic ones."""
    reductions = [r for r in nest.roots if r.reduces]
    packed = any(v.type.dtype.bits < 8 for v in nest.inputs)
    if not reductions:
        transposes = not packed and transpose.applies(nest, target)
        return transpose.schedule if transposes else maps.schedule
    if not packed and depthwise.applies(nest, target):
        return depthwise.schedule
    if gemv.applies(nest):
        return matrix.schedule if matrix.streams(nest, target) else gemv.schedule
    if matrix.applies(nest, target):
        return matrix.schedule
    if tiled.applies(nest, target):
        return tiled.schedule
    contracts = contraction.applies(nest) and is_contraction(reductions[0].op)
    if contracts and not _dot_like(nest):
        return general.schedule_contraction
    longest = max(reductions, key=lambda r: estimate(nest.total(r.inner)))
    if strided.is_strided(nest, longest):
        return strided.schedule
    return rows.schedule if rows.is_shared(nest, target) else strided.schedule


def _dot_like(nest: Nest) -> bool:
    """Whether a nest has few outputs over long contiguous dot products (a matrix-vector product)."""
    (root,) = (r for r in nest.roots if r.reduces)
    shape = contraction.analyse(nest, root)
    height = estimate(nest.total(shape.row)) if shape.row else 1
    return shape.form == "dot" and height <= 4 and not dims.is_one(nest.total(root.inner))
