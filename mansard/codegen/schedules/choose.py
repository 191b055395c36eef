"""Selection of the schedule for a dispatch and a target, and its tunable parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mansard.analysis.attention import AttentionForm
from mansard.analysis.element_types import element_types, only_reads_packed
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest
from mansard.codegen.nvptx.target import FEATURE as PTX_FEATURE
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules import scan_sort_scatter
from mansard.codegen.schedules.common import transposed_stores
from mansard.codegen.schedules.common.attention_nest import attention_form
from mansard.codegen.schedules.common.base import Scheduled
from mansard.codegen.schedules.common.chosen_matrices import with_chosen_matrices
from mansard.codegen.schedules.common.tunable import NestSchedule, Tunable
from mansard.codegen.schedules.cpu import attention as cpu_attention
from mansard.codegen.schedules.cpu import choose as cpu
from mansard.codegen.schedules.gpu import choose as gpu
from mansard.codegen.schedules.gpu import side_by_side
from mansard.codegen.schedules.gpu.attention import attention as gpu_attention
from mansard.codegen.schedules.gpu.gemm import joined
from mansard.codegen.schedules.gpu.gemv import fused, gemv
from mansard.codegen.schedules.gpu.gemv.parts import Parts, parts_of
from mansard.codegen.schedules.gpu.gemv.streamed import streamed
from mansard.ir.dispatch import Dispatch


def schedule(
    dispatch: Dispatch, target: KernelTarget, name: str, parameters: Parameters | None = None
) -> Scheduled:
    """The kernel of a dispatch for a target, under the given entry-point name.

    ``parameters`` is one of `candidates`; None selects the first, the default.
    """
    if dispatch.parts:
        return side_by_side.schedule(dispatch, target, name)
    if not dispatch.is_nest:
        return scan_sort_scatter.schedule(dispatch, target, name)
    attention = attention_form(dispatch)
    if attention is not None:
        if target.is_gpu:
            return gpu_attention.schedule(dispatch, attention, target, name, parameters)
        return cpu_attention.schedule(dispatch, attention, target, name)
    parts = parts_of(dispatch)
    if parts is not None:
        if fused.applies(parts, target):
            return _with_stream(fused.schedule(parts, target, name), parts, target)
        return joined.schedule(parts, target, name)
    nest = _nest(dispatch, target)
    chosen = choose(nest, target)
    tunable = _tunable(chosen, target)
    if tunable is None:
        return chosen(nest, target, name)
    scheduled = tunable.schedule(nest, target, name, parameters)
    if chosen is gemv.schedule:
        return _with_stream(scheduled, Parts(nest, None, None), target)
    return scheduled


def _nest(dispatch: Dispatch, target: KernelTarget) -> Nest:
    """The loops of a dispatch. Kernels of GPUs know gathers of matrices themselves."""
    nest = Nest(dispatch)
    return nest if target.is_gpu else with_chosen_matrices(nest)


def _with_stream(scheduled: Scheduled, parts: Parts, target: KernelTarget) -> Scheduled:
    """A product with the kernel that reads its weights as a stream, where the target and the product have
    one."""
    if PTX_FEATURE not in target.features or scheduled.params:
        return scheduled
    stream = streamed(parts, target, scheduled.kernel.name)
    return replace(scheduled, kernel=replace(scheduled.kernel, streamed=stream))


def refuses(dispatch: Dispatch, target: KernelTarget) -> str | None:
    """Why there is no schedule for a dispatch on a target; None where there is one."""
    packed = sorted(d.value for d in element_types(dispatch) if d.bits < 8)
    if packed and not only_reads_packed(dispatch):
        return f"no kernels that compute with or store packed element type {', '.join(packed)}"
    if dispatch.parts and not side_by_side.applies(dispatch, target):
        return "no kernel for dispatches side by side"
    form = attention_form(dispatch)
    fused_products = form is None and parts_of(dispatch) is not None
    if fused_products and not takes_products(dispatch, target):
        return "no kernel for products fused with each other or with a norm"
    if target.is_gpu:
        return None
    if form is not None and not takes_attention(form, target):
        return "no CPU kernel for a part of the keys of an attention"
    return None


def candidates(dispatch: Dispatch, target: KernelTarget) -> Sequence[Parameters]:
    """The parameters that `schedule` accepts for a dispatch, all with the same results; the default first.

    A single empty Parameters if there is nothing to tune. Promising candidates come first, for a search that
    runs out of time.
    """
    if not dispatch.is_nest:
        return (Parameters(),)
    attention = attention_form(dispatch)
    if attention is not None:
        return gpu_attention.candidates(dispatch, attention, target) if target.is_gpu else (Parameters(),)
    if parts_of(dispatch) is not None:
        return (Parameters(),)
    nest = _nest(dispatch, target)
    tunable = _tunable(choose(nest, target), target)
    return tunable.candidates(nest, target) if tunable else (Parameters(),)


def takes_attention(form: AttentionForm, target: KernelTarget) -> bool:
    """Whether a target has a schedule that fuses this attention into one kernel."""
    return gpu_attention.applies(form, target) if target.is_gpu else form.partial is None


def takes_products(dispatch: Dispatch, target: KernelTarget) -> bool:
    """Whether a target has a kernel for several products of the same rows, or one with what computes its
    rows."""
    parts = parts_of(dispatch)
    if parts is None or not target.is_gpu:
        return False
    return fused.applies(parts, target) or joined.applies(parts, target)


def stores_transposed(dispatch: Dispatch, target: KernelTarget) -> bool:
    """Whether a target stores results in the order of a transpose faster than it transposes them later."""
    return target.is_gpu or transposed_stores.gains(dispatch)


def takes_parts(dispatch: Dispatch, target: KernelTarget) -> bool:
    """Whether a target has a kernel for the parts of a dispatch side by side."""
    return side_by_side.applies(dispatch, target)


def rows_read_again(dispatch: Dispatch, target: KernelTarget) -> int:
    """Bytes that the kernel of such a dispatch reads again in every workgroup, to compute the rows."""
    parts = parts_of(dispatch)
    assert parts is not None
    return fused.read_again(parts, target)


def choose(nest: Nest, target: KernelTarget) -> NestSchedule:
    """The schedule for a loop nest, from the target's family."""
    return gpu.choose(nest, target) if target.is_gpu else cpu.choose(nest, target)


def _tunable(chosen: NestSchedule, target: KernelTarget) -> Tunable | None:
    return (gpu.TUNABLE if target.is_gpu else cpu.TUNABLE).get(chosen)
