"""Selection of the CPU schedule for a loop nest."""

from __future__ import annotations

from collections.abc import Mapping

from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.common.contraction import is_tiled
from mansard.codegen.schedules.common.tunable import NestSchedule, Tunable
from mansard.codegen.schedules.cpu import contraction, rows, window, window_depthwise, window_dot
from mansard.codegen.schedules.cpu import map as maps

TUNABLE: Mapping[NestSchedule, Tunable] = {
    contraction.schedule: Tunable(contraction.candidates, contraction.schedule),
    window.schedule: Tunable(window.candidates, window.schedule),
    window_dot.schedule: Tunable(window_dot.candidates, window_dot.schedule),
    window_depthwise.schedule: Tunable(window_depthwise.candidates, window_depthwise.schedule),
}
"""The tunable interface of each schedule with parameters, by the schedule that `choose` returns."""


def choose(nest: Nest, target: KernelTarget) -> NestSchedule:
    """Select by the nest's reductions and the memory layout of their operands."""
    if not any(r.reduces for r in nest.roots):
        return maps.schedule
    if nest.matrices:
        return contraction.schedule
    if window_dot.analyse(nest, target) is not None:
        return window_dot.schedule
    if window_depthwise.analyse(nest, target) is not None:
        return window_depthwise.schedule
    if window.analyse(nest, target) is not None and not contraction.is_dot_gemm(nest):
        return window.schedule
    return contraction.schedule if is_tiled(nest) else rows.schedule
