"""Backends that generate code: a schedule makes each dispatch a kernel, an emitter turns it into code."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

from mansard import dims
from mansard.analysis.attention import AttentionForm
from mansard.codegen import schedules
from mansard.codegen.backend import Backend, CompiledDispatch
from mansard.codegen.kernel import Kernel
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.parameters import Parameters
from mansard.errors import CodegenError
from mansard.hal.executable import ExecutableSpec
from mansard.ir.dispatch import Dispatch
from mansard.ir.ops import Generic

_FEW_INVOCATIONS = 64
"""Schedules use no fewer invocations of a workgroup, where there are as many."""
_SLACK = 8


class GeneratedBackend(Backend):
    """Compiles the kernel IR that schedules make. A subclass says how a kernel becomes code."""

    @abc.abstractmethod
    def compile_kernel(self, kernel: Kernel, target: KernelTarget) -> ExecutableSpec:
        """One kernel, alone in its executable."""

    @abc.abstractmethod
    def emit_text(self, kernels: Sequence[Kernel], target: KernelTarget) -> str:
        """The kernels in readable low-level form (LLVM IR, SPIR-V assembly), for dumps."""

    def missing_feature(self, dispatch: Dispatch, target: KernelTarget) -> str | None:
        """Which feature a kernel of the dispatch would need and the target lacks, in a sentence; else
        None."""
        return None

    def takes_attention(self, form: AttentionForm, target: KernelTarget) -> bool:
        """Where there is a schedule for it."""
        return schedules.takes_attention(form, target)

    def fused_products(self, dispatch: Dispatch, target: KernelTarget) -> int | None:
        """Where there is a schedule for it."""
        if not schedules.takes_products(dispatch, target):
            return None
        return schedules.rows_read_again(dispatch, target)

    def stores_transposed(self, dispatch: Dispatch, target: KernelTarget) -> bool:
        """Where strided stores cost less than a second pass over the result."""
        return schedules.stores_transposed(dispatch, target)

    def takes_parts(self, dispatch: Dispatch, target: KernelTarget) -> bool:
        """Where there is a schedule for it."""
        return schedules.takes_parts(dispatch, target)

    def refuses(self, dispatch: Dispatch, target: KernelTarget) -> str | None:
        """What no schedule covers, no instruction of the target can do, or its driver does not run to the
        end."""
        reason = schedules.refuses(dispatch, target) or self.missing_feature(dispatch, target)
        limit = target.loop_iterations
        if reason is not None or limit is None or _is_short(dispatch, target, limit):
            return reason
        iterations = schedules.schedule(dispatch, target, dispatch.name).loop_iterations()
        if iterations <= limit:
            return None
        return f"up to {iterations} loop iterations in an invocation; the driver stops after {limit}"

    def compile_dispatch(
        self, dispatch: Dispatch, target: KernelTarget, name: str, parameters: Parameters | None = None
    ) -> CompiledDispatch:
        """Schedule the dispatch, and compile the kernel."""
        scheduled = schedules.schedule(dispatch, target, name, parameters)
        spec = self.compile_kernel(scheduled.kernel, target)
        return CompiledDispatch(spec, scheduled.params, scheduled.grid, scheduled.packed, parameters)

    def candidates(self, dispatch: Dispatch, target: KernelTarget) -> Sequence[Parameters]:
        """Those of the schedule."""
        return schedules.candidates(dispatch, target)

    def listings(
        self, compiled: Sequence[tuple[Dispatch, CompiledDispatch]], target: KernelTarget
    ) -> Mapping[str, str]:
        """``kernels``: kernel IR; ``code``: what the emitter makes of it. Made again: the cache keeps
        code."""
        kernels = [schedules.schedule(d, target, c.name, c.parameters).kernel for d, c in compiled]
        return {"kernels": "\n\n".join(map(str, kernels)), "code": self.emit_text(kernels, target)}

    def compile(self, kernels: Sequence[Kernel], target: KernelTarget) -> list[ExecutableSpec]:
        """Executables that together hold every kernel, by name, each once."""
        names = [k.name for k in kernels]
        if repeated := sorted({n for n in names if names.count(n) > 1}):
            raise CodegenError(f"kernel names are not unique: {', '.join(repeated)}")
        return self.join([self.compile_kernel(kernel, target) for kernel in kernels])


def _is_short(dispatch: Dispatch, target: KernelTarget, limit: int) -> bool:
    """Whether a loop nest is so small that no schedule comes near a limit: saves scheduling most dispatches.

    For each point of the domain that an invocation takes, it runs over the inner dims at most once per op;
    loops over blocks and staging come on top.
    """
    if not dispatch.is_nest:
        return False
    inner = [dims.product(op.extents[op.rank :]) for op in dispatch.ops if isinstance(op, Generic)]
    invocations = target.max_workgroups * min(_FEW_INVOCATIONS, target.workgroup_invocations)
    points = dims.bounds(dims.product(dispatch.domain))[1] // invocations + 1
    return _SLACK * points * sum(dims.bounds(extent)[1] for extent in inner) <= limit
