"""The whole way of a model through the compiler, step by step."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import mansard
from mansard.analysis.attention import AttentionForm
from mansard.cache import Counts, Folder
from mansard.codegen.schedules.choose import takes_attention
from mansard.compiler.dispatch_abi import with_dispatch_abi
from mansard.compiler.executables import KernelSettings, build_executables
from mansard.compiler.plan_builder import DeviceTarget, KernelRef, build_plan
from mansard.compiler.sources import sources_to_bytes
from mansard.compiler.targets import CompileTarget, resolve_targets
from mansard.compiler.variants import SharedFiles, target_sets
from mansard.errors import CompileError
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.ir.graph import Graph
from mansard.ir.panels import Panels
from mansard.ir.types import Value
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.canonical.fold_constants import fold_constants
from mansard.passes.fusion.fuse import fuse
from mansard.passes.fusion.horizontal_fusion import fuse_horizontally
from mansard.passes.fusion.in_place import mark_in_place
from mansard.passes.fusion.packable import mark_packable
from mansard.passes.layout.channels_last import channels_last
from mansard.passes.layout.padding import read_padding
from mansard.passes.layout.weights import lay_out_weights
from mansard.passes.parallel.large_constants import split_large_constants
from mansard.passes.parallel.split_attention import split_attention
from mansard.passes.parallel.split_reduction import split_reductions
from mansard.passes.pipeline import CANONICAL, Step, run_passes
from mansard.passes.products.demote import check_precision, demote_products
from mansard.passes.products.fold_scales import fold_scales
from mansard.passes.products.integer_products import demote_integers
from mansard.passes.products.quantised_products import quantised_products
from mansard.placement import DeviceSlot, PlacementOptions
from mansard.placement.memory import placed_within
from mansard.placement.order import place_ordered
from mansard.placement.partitioning import Placed, on_slots, place_split
from mansard.plan.plan import ExecutableRef, Plan, WeightSpec

Progress = Callable[[str, int, int], None]
"""Called with the step's name, the work done and the work in all."""
Dump = Callable[[str, str], None]
"""Called with a step's name and the IR after it, as text."""
_Load = Callable[[], npt.NDArray[np.generic]]


@dataclass(frozen=True)
class CompileOptions:
    """How to compile. ``targets`` are target texts (``cpu``, ``vulkan``, ``cpu:x86-64-v3``)."""

    targets: tuple[str, ...] = ("cpu",)
    placement: PlacementOptions = field(default_factory=PlacementOptions)
    progress: Progress | None = None
    dump: Dump | None = None
    precision: str = "f32"
    """How products with constant weights compute: as the model says, or bf16
    (`mansard.passes.products.demote`)."""
    vulkan_dispatch_abi: str = "bda"
    """How Vulkan kernels receive buffers: by address, as ``descriptors``, or ``all`` (`dispatch_abi`)."""
    cache: bool = True
    """Whether compiled kernels are kept on disk, and taken from there (`mansard.cache`)."""


@dataclass(frozen=True)
class CompiledModel:
    """A compiled model in memory: ``executables`` maps artifact entries to their bytes, ``weights``
    pairs each WeightSpec with a callable that gives its array."""

    plan: Plan
    executables: Mapping[str, bytes]
    weights: tuple[tuple[WeightSpec, Callable[[], npt.NDArray[np.generic]]], ...]
    timings: Mapping[str, float]
    """Seconds of each compilation step."""
    cache: Counts = field(default_factory=Counts)
    """Distinct kernels that were found in the cache (hits) and that were compiled (misses)."""
    sources: bytes | None = None
    """What the kernels were made from (`mansard.compiler.sources`)."""


def compile_model(
    model: Any,
    example_inputs: Any = None,
    *,
    options: CompileOptions | None = None,
    **frontend: Any,
) -> CompiledModel:
    """Import a model of any supported framework and compile it (see `compile_graph`).

    ``frontend`` goes to the frontend: ``dynamic_shapes``, ``example_kwargs`` and so on.
    """
    from mansard.frontends import import_model

    options = options or CompileOptions()
    steps = _Steps(options)
    with _no_collections():
        with steps.step("import"):
            graph = import_model(model, example_inputs, cache=options.cache, **frontend)
        return _compile(graph, options, steps)


def compile_graph(graph: Graph, options: CompileOptions | None = None) -> CompiledModel:
    """Compile a Graph: canonicalise, fuse, place, generate kernels, schedule.

    Raises the errors under `mansard.errors.CompileError`.
    """
    options = options or CompileOptions()
    with _no_collections():
        return _compile(graph, options, _Steps(options))


@contextmanager
def _no_collections() -> Iterator[None]:
    """Stops the search for unreachable cycles, which walks a framework's and the model's objects over and
    over while a compilation makes many objects that all stay; it took an eighth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _passes(precision: str) -> tuple[Step, ...]:
    """The passes of every compilation; CPUs and GPUs both want images channels-last."""
    images: tuple[Step, ...] = (read_padding, demote_integers, fold_constants, eliminate_dead, channels_last)
    rounding: tuple[Step, ...] = (demote_products, eliminate_dead) if precision == "bf16" else ()
    return (
        quantised_products,
        *CANONICAL,
        fold_scales,
        *images,
        fuse_horizontally,
        *rounding,
        lay_out_weights,
    )


def _cutting(targets: Sequence[CompileTarget]) -> tuple[Step, ...]:
    """The passes that give the workgroups of a GPU pieces of long lines, and of attentions of few rows where
    no CPU shall run them."""
    wished = [t for t in targets if not t.slot.fallback]
    if not any(t.kernel.is_gpu for t in wished):
        return ()
    if not all(t.kernel.is_gpu for t in wished):
        return (split_reductions,)
    workgroups = 4 * max(t.kernel.compute_units for t in wished)

    def split_keys(graph: Graph) -> Graph:
        return split_attention(graph, workgroups)

    return (split_keys, eliminate_dead, split_reductions)


def _fused(graph: Graph, targets: Sequence[CompileTarget]) -> DispatchGraph:
    """The dispatches of a graph, with what kernels may do to their operands."""
    dispatches = fuse(graph, attention=lambda form: _stays_whole(form, targets))
    return mark_in_place(mark_packable(dispatches))


def _stays_whole(form: AttentionForm, targets: Sequence[CompileTarget]) -> bool:
    """Whether an attention becomes one dispatch: every target takes it, or every one wished for if it is a
    part that CPUs have no kernel for."""
    asked = [t for t in targets if form.partial is None or not t.slot.fallback]
    return all(takes_attention(form, t.kernel) for t in asked)


def _fitting(targets: Sequence[CompileTarget]) -> tuple[Step, ...]:
    """The pass that cuts weights which no buffer of some target can hold."""
    limits = [(t.largest_buffer, t.name) for t in targets if t.largest_buffer is not None]
    if not limits:
        return ()
    limit, device = min(limits)

    def fit_buffers(graph: Graph) -> Graph:
        return split_large_constants(graph, limit, device)

    return (fit_buffers,)


class _Steps:
    """Times the steps and reports progress."""

    names = ("import", "simplify", "fuse", "place", "kernels", "schedule")

    def __init__(self, options: CompileOptions) -> None:
        self.options = options
        self.timings: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        if self.options.progress:
            self.options.progress(name, self.names.index(name), len(self.names))
        started = time.perf_counter()
        yield
        self.timings[name] = time.perf_counter() - started
        if self.options.progress and name == self.names[-1]:
            self.options.progress("done", len(self.names), len(self.names))

    def dump(self, name: str, text: Callable[[], str]) -> None:
        if self.options.dump:
            self.options.dump(name, text())


def _compile(graph: Graph, options: CompileOptions, steps: _Steps) -> CompiledModel:
    precision = check_precision(options.precision)
    targets = resolve_targets(options.targets, options.placement)
    targets = with_dispatch_abi(targets, options.vulkan_dispatch_abi)
    with steps.step("simplify"):
        passes = (*_passes(precision), *_cutting(targets), *_fitting(targets))
        graph = run_passes(graph, passes, dump=options.dump)
    with steps.step("fuse"):
        dispatches = _fused(graph, targets)
        steps.dump("fuse", lambda: print_dispatches(dispatches))
    with steps.step("place"):
        slots = [t.slot for t in targets]

        def fuse_again(whole: Graph) -> DispatchGraph:
            return _fused(whole, targets)

        def place(slots: Sequence[DeviceSlot], options: PlacementOptions) -> Placed:
            return place_ordered(
                dispatches,
                options,
                lambda graph, options: place_split(graph, slots, options, fuse_again),
            )

        split = placed_within(place, lambda placed: _sketch(placed, targets), slots, options.placement)
        dispatches, placed = split.graph, split.result
        targets, device_of, renumber = _drop_unused(targets, placed.device)
        splits = on_slots(split.splits, renumber)
        if splits:
            steps.dump("split", lambda: print_dispatches(dispatches))
    sets = target_sets(targets)
    with steps.step("kernels"):
        settings = _kernel_settings(options)
        made = [build_executables(dispatches, device_of, chosen, settings) for chosen in sets]
    with steps.step("schedule"):
        files, plans = SharedFiles(), []
        for number, (chosen, part) in enumerate(zip(sets, made, strict=True)):
            refs = files.add_code(number, part)
            specs = files.add_weights(_weights(dispatches, part.packed), part.packed)
            plans.append(
                build_plan(
                    dispatches,
                    device_of,
                    part.kernels,
                    [_device_target(target, refs[i]) for i, target in enumerate(chosen)],
                    specs,
                    placed.decisions if number == 0 else (),
                    _info(options, targets) if number == 0 else {},
                )
            )
    plans = [dataclasses.replace(plan, splits=splits) for plan in plans]
    plan = dataclasses.replace(plans[0], variants=tuple(plans[1:]), prediction=placed.prediction)
    # A search replaces the kernels of one plan; those of a model with variants stay as they are.
    sources = None if plan.variants else sources_to_bytes(made[0].sources)
    weights = tuple(files.weights.values())
    return CompiledModel(plan, files.blobs, weights, steps.timings, made[0].cache, sources)


def _sketch(placed: Placed, targets: Sequence[CompileTarget]) -> Plan:
    """The plan of a placement without code, with all targets."""
    kernels = dict.fromkeys(placed.graph.dispatches, KernelRef(0, "", (), (1, 1, 1)))
    specs = {value: spec for value, (spec, _) in _weights(placed.graph, {}).items()}
    devices = [_device_target(target, ()) for target in targets]
    return build_plan(placed.graph, placed.result.device, kernels, devices, specs, (), {})


def _device_target(target: CompileTarget, refs: tuple[ExecutableRef, ...]) -> DeviceTarget:
    name = target.kernel.name
    backend = target.backend
    return DeviceTarget(target.name, target.driver, name, refs, backend.made_for(name), backend.late_binding)


def _info(options: CompileOptions, targets: Sequence[CompileTarget]) -> dict[str, str]:
    """What the plan says about its compilation."""
    measured = [f"{t.name} {t.slot.profile.measured}" for t in targets if t.slot.profile.measured]
    return {
        **({"calibrated": ", ".join(measured)} if measured else {}),
        "compiler": f"mansard {mansard.__version__}",
        "objective": options.placement.objective,
        "precision": options.precision,
    }


def _kernel_settings(options: CompileOptions) -> KernelSettings:
    report = options.progress
    return KernelSettings(
        folder=Folder("kernels") if options.cache else None,
        progress=(lambda done, total: report("kernels", done, total)) if report else None,
        dump=options.dump,
    )


def _drop_unused(
    targets: Sequence[CompileTarget], device: Mapping[Dispatch, int]
) -> tuple[list[CompileTarget], dict[Dispatch, int], dict[int, int]]:
    """Leave out fallback devices nothing was placed on; also the new numbers of those left."""
    used = set(device.values())
    kept = [i for i, t in enumerate(targets) if i in used or not t.slot.fallback]
    renumber = {old: new for new, old in enumerate(kept)}
    return [targets[i] for i in kept], {d: renumber[i] for d, i in device.items()}, renumber


def _weights(graph: DispatchGraph, packed: Mapping[Value, Panels]) -> dict[Value, tuple[WeightSpec, _Load]]:
    """Constants that dispatches read, each under a unique entry name and in the form they read."""
    read = dict.fromkeys(graph.whole(v) for d in graph.dispatches for v in d.inputs)
    used = [value for value in read if value in graph.graph.constants]
    out: dict[Value, tuple[WeightSpec, _Load]] = {}
    for value in used:
        shape = []
        for extent in value.type.shape:
            if not isinstance(extent, int):
                raise CompileError(f"constant {value.name!r} has a symbolic dim {extent}")
            shape.append(extent)
        constant = graph.graph.constants[value]
        load = constant.load
        if value in packed:
            shape, load = list(packed[value].shape), _packing(packed[value], load)
        out[value] = (WeightSpec(value.name, value.type.dtype, tuple(shape), constant.key), load)
    return out


def _packing(panels: Panels, load: _Load) -> _Load:
    return lambda: panels.pack(load())


def print_dispatches(graph: DispatchGraph) -> str:
    """Dispatches with their ops, for dumps."""
    from mansard.ir.printer import print_op

    lines = []
    for dispatch in graph.dispatches:
        inputs = ", ".join(f"{v}: {v.type}" for v in dispatch.inputs)
        outputs = ", ".join(f"{v}: {v.type}" for v in dispatch.outputs)
        lines.append(
            f"dispatch {dispatch.name}[{', '.join(map(str, dispatch.domain))}] ({inputs}) -> ({outputs})"
        )
        lines.extend(f"  {print_op(op)}" for op in dispatch.ops)
    return "\n".join(lines)
