"""Which schedule a dispatch gets on a target, and what can be tuned about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.backend import KernelTarget
from mansard.codegen.nest import Nest
from mansard.codegen.schedules import (
    contraction,
    cpu_attention,
    cpu_contraction,
    cpu_map,
    cpu_rows,
    cpu_window,
    gpu,
    special,
)
from mansard.codegen.schedules.attention_nest import attention_form
from mansard.codegen.schedules.base import Scheduled, estimate
from mansard.codegen.schedules.parameters import Parameters
from mansard.codegen.schedules.reduce import ARG
from mansard.ir.ops import Generic, Reshape
from mansard.passes.dispatch import Dispatch, is_contraction

NestSchedule = Callable[[Nest, KernelTarget, str], Scheduled]


@dataclass(frozen=True)
class Tunable:
    """A schedule with parameters: which there are to try for a nest (the default first), and the kernel
    for some (None: for the default)."""

    candidates: Callable[[Nest, KernelTarget], Sequence[Parameters]]
    schedule: Callable[[Nest, KernelTarget, str, Parameters | None], Scheduled]


TUNABLE: dict[NestSchedule, Tunable] = {
    cpu_contraction.schedule: Tunable(cpu_contraction.candidates, cpu_contraction.schedule),
    cpu_window.schedule: Tunable(cpu_window.candidates, cpu_window.schedule),
}
"""What a schedule that has parameters offers, by the schedule `choose` gives."""


def schedule(
    dispatch: Dispatch, target: KernelTarget, name: str, parameters: Parameters | None = None
) -> Scheduled:
    """The kernel of a dispatch for a target, under the given entry-point name.

    ``parameters`` are one of `candidates`; None stands for the first, the default.
    """
    if not all(isinstance(op, (Generic, Reshape)) for op in dispatch.ops):
        return special.schedule(dispatch, target, name)
    attention = attention_form(dispatch)
    if attention is not None:
        return cpu_attention.schedule(dispatch, attention, target, name)
    nest = Nest(dispatch)
    chosen = choose(nest, target)
    tunable = TUNABLE.get(chosen)
    return tunable.schedule(nest, target, name, parameters) if tunable else chosen(nest, target, name)


def candidates(dispatch: Dispatch, target: KernelTarget) -> Sequence[Parameters]:
    """Parameters `schedule` takes for a dispatch, all giving the same results; the default first.

    One empty Parameters where there is nothing to choose. Order matters to a search that runs out of
    time: what is likely to be good comes early.
    """
    if not all(isinstance(op, (Generic, Reshape)) for op in dispatch.ops):
        return (Parameters(),)
    if attention_form(dispatch) is not None:
        return (Parameters(),)
    nest = Nest(dispatch)
    tunable = TUNABLE.get(choose(nest, target))
    return tunable.candidates(nest, target) if tunable else (Parameters(),)


def choose(nest: Nest, target: KernelTarget) -> NestSchedule:
    """The schedule for a loop nest: by its reductions, and by how reads lie in memory."""
    reductions = [r for r in nest.roots if r.reduces]
    if not reductions:
        return gpu.schedule_map if target.is_gpu else cpu_map.schedule
    if cpu_window.analyse(nest, target) is not None:
        return cpu_window.schedule
    tiled = contraction.applies(nest) and (is_contraction(reductions[0].op) or not _rows_contiguous(nest))
    if not target.is_gpu:
        return cpu_contraction.schedule if tiled else cpu_rows.schedule
    if tiled and not _dot_like(nest):
        return gpu.schedule_contraction
    longest = max(estimate(nest.total(r.inner)) for r in nest.roots)
    if any(r.op.combiner in ARG for r in reductions) or longest <= gpu.SERIAL_INNER:
        return gpu.schedule_serial_rows
    return gpu.schedule_rows


def _rows_contiguous(nest: Nest) -> bool:
    """Whether the reduction's innermost loop walks its operands contiguously."""
    (root,) = (r for r in nest.roots if r.reduces)
    groups = nest.collapsed(root.inner, nest.positions(root))
    if not groups:
        return True
    loop = groups[-1][-1]
    strides = [dict(r.address.terms).get(loop, 0) for r in nest.reads(root) if r.address is not None]
    return all(s in (0, 1) for s in strides) and 1 in strides


def _dot_like(nest: Nest) -> bool:
    """Few outputs over long contiguous dot products (a matrix-vector product)."""
    (root,) = (r for r in nest.roots if r.reduces)
    shape = contraction.analyse(nest, root)
    rows = estimate(nest.total(shape.row)) if shape.row else 1
    return shape.form == "dot" and rows <= 4 and not dims.is_one(nest.total(root.inner))
