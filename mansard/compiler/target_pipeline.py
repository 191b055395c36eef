"""The pipeline for a set of targets: what of the targets the passes depend on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from mansard.analysis.attention import AttentionForm
from mansard.codegen.nvptx.target import FEATURE as PTX_FEATURE
from mansard.compiler.dumps import Dumps
from mansard.compiler.identity import dispatch_key
from mansard.compiler.options import CompileOptions
from mansard.compiler.regions import partition_graph
from mansard.compiler.targets import CompileTarget
from mansard.errors import CompileError
from mansard.ir.dispatch import Dispatch
from mansard.passes.pass_manager import Step, select
from mansard.passes.pipeline import PipelineSettings, fusion_steps, pipeline
from mansard.passes.products.demote import check_precision

_WORKGROUPS_PER_UNIT = 4
"""Workgroups for each compute unit that an attention should have, to hide memory latency."""


def target_pipeline(
    targets: Sequence[CompileTarget], options: CompileOptions, shared: frozenset[str] = frozenset()
) -> tuple[Step, ...]:
    """The passes of a compilation for ``targets``, of a graph that shares the constants with keys in
    ``shared`` with other methods. Raises CompileError for an unknown precision."""
    requested = [t for t in targets if not t.slot.fallback]
    gpus = [t for t in requested if t.kernel.is_gpu]
    only_gpus = bool(gpus) and len(gpus) == len(requested)
    limits = [(t.largest_buffer, t.name) for t in targets if t.largest_buffer is not None]
    return pipeline(
        PipelineSettings(
            precision=check_precision(options.precision),
            quantisation=options.quantisation,
            round_few_rows=only_gpus,
            check_indices=options.check_indices,
            gpu=bool(gpus),
            regions=any(t.backend.region_format for t in targets),
            attention_workgroups=_attention_workgroups(gpus) if only_gpus else None,
            one_launch=only_gpus and all(PTX_FEATURE in t.kernel.features for t in gpus),
            buffer_limit=min(limits, default=None),
            fuse_attention=lambda form: _takes_attention(form, targets),
            fuse_products=_once(functools.partial(_gains, targets=requested)) if only_gpus else None,
            fuse_transposes=_once(functools.partial(_stores_transposed, targets=targets)),
            # Several devices may want to share what one would do side by side.
            side_by_side=_once(functools.partial(_takes_parts, targets=gpus))
            if only_gpus and len(gpus) == 1
            else None,
            partition=functools.partial(partition_graph, targets=targets),
            max_bindings=min(t.kernel.max_bindings for t in targets),
            operand_alignment=max(t.kernel.operand_alignment for t in targets),
            shared=shared,
        )
    )


def _once(answer: Callable[[Dispatch], bool]) -> Callable[[Dispatch], bool]:
    """The same answers, each found once for equal dispatches: layers are."""
    known: dict[str, bool] = {}

    def remembered(dispatch: Dispatch) -> bool:
        key = dispatch_key(dispatch)
        if key not in known:
            known[key] = answer(dispatch)
        return known[key]

    return remembered


def _gains(dispatch: Dispatch, targets: Sequence[CompileTarget]) -> bool:
    """Whether every target has a kernel for products with each other or with a norm, and reads what that
    reads again faster than it starts another dispatch."""
    for t in targets:
        extra = t.backend.fused_products(dispatch, t.kernel)
        if extra is None or extra > t.slot.profile.launch * t.slot.profile.cache_bandwidth:
            return False
    return True


def _stores_transposed(dispatch: Dispatch, targets: Sequence[CompileTarget]) -> bool:
    """Whether every target has a kernel that stores a dispatch's result in the order of a transpose."""
    return all(t.backend.stores_transposed(dispatch, t.kernel) for t in targets)


def _takes_parts(dispatch: Dispatch, targets: Sequence[CompileTarget]) -> bool:
    """Whether every target has a kernel for dispatches side by side."""
    return all(t.backend.takes_parts(dispatch, t.kernel) for t in targets)


def select_steps(steps: Sequence[Step], options: CompileOptions) -> tuple[Step, ...]:
    """The part of the pipeline that ``options`` ask for; it takes a Graph.

    Raises CompileError for passes that the pipeline does not have, and for a start behind fusion.
    """
    dispatch_passes = [step.name for step in fusion_steps(steps)[1:]]
    if options.start in dispatch_passes:
        raise CompileError(f"pass {options.start!r} takes dispatches: to start with a graph, start at 'fuse'")
    return select(steps, start=options.start, stop_after=options.stop_after, skip=options.skip)


def check_pass_names(options: CompileOptions) -> None:
    """Raise the errors of names that `select_steps` and `Dumps` raise, before a model is imported."""
    steps = pipeline()
    Dumps(options.dump, steps)
    select_steps(steps, options)


def _attention_workgroups(gpus: Sequence[CompileTarget]) -> int:
    return _WORKGROUPS_PER_UNIT * max(t.kernel.compute_units for t in gpus)


def _takes_attention(form: AttentionForm, targets: Sequence[CompileTarget]) -> bool:
    """Whether an attention becomes one dispatch: every target has a kernel for it, or every requested one
    where it is a part of a split attention, which CPUs have no kernel for."""
    needed = [t for t in targets if form.partial is None or not t.slot.fallback]
    return all(t.backend.takes_attention(form, t.kernel) for t in needed)
