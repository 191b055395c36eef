"""The whole way of a model through the compiler, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import mansard
from mansard.artifact.plan import ExecutableRef, Plan, WeightSpec
from mansard.codegen.backend import Backend, KernelTarget
from mansard.codegen.schedules import Scheduled, schedule
from mansard.compiler.identity import dispatch_key
from mansard.compiler.targets import CompileTarget, resolve_targets
from mansard.errors import CompileError
from mansard.hal.executable import ExecutableSpec
from mansard.ir.graph import Graph
from mansard.ir.types import Value
from mansard.passes.dispatch import Dispatch, DispatchGraph
from mansard.passes.fuse import fuse
from mansard.passes.layout import lay_out_weights
from mansard.passes.packing import Panels, mark_packable
from mansard.passes.pipeline import CANONICAL, run_passes
from mansard.placement import Placement, place
from mansard.schedule.build import DeviceTarget, KernelRef, build_plan

Progress = Callable[[str, int, int], None]
"""Called with the step's name, the work done and the work in all."""
Dump = Callable[[str, str], None]
"""Called with a step's name and the IR after it, as text."""
_Load = Callable[[], npt.NDArray[np.generic]]


@dataclass(frozen=True)
class CompileOptions:
    """How to compile. ``targets`` are target texts (``cpu``, ``vulkan``, ``cpu:x86-64-v3``)."""

    targets: tuple[str, ...] = ("cpu",)
    placement: Placement = field(default_factory=Placement)
    progress: Progress | None = None
    dump: Dump | None = None


@dataclass(frozen=True)
class CompiledModel:
    """A compiled model in memory: ``executables`` maps artifact entries to their bytes, ``weights``
    pairs each WeightSpec with a callable that gives its array."""

    plan: Plan
    executables: Mapping[str, bytes]
    weights: tuple[tuple[WeightSpec, Callable[[], npt.NDArray[np.generic]]], ...]
    timings: Mapping[str, float]
    """Seconds of each compilation step."""


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
    with steps.step("import"):
        graph = import_model(model, example_inputs, **frontend)
    return _compile(graph, options, steps)


def compile_graph(graph: Graph, options: CompileOptions | None = None) -> CompiledModel:
    """Compile a Graph: canonicalise, fuse, place, generate kernels, schedule.

    Raises the errors under `mansard.errors.CompileError`.
    """
    options = options or CompileOptions()
    return _compile(graph, options, _Steps(options))


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
    targets = resolve_targets(options.targets, options.placement)
    with steps.step("simplify"):
        graph = run_passes(graph, (*CANONICAL, lay_out_weights), dump=options.dump)
    with steps.step("fuse"):
        dispatches = mark_packable(fuse(graph))
        steps.dump("fuse", lambda: print_dispatches(dispatches))
    with steps.step("place"):
        placed = place(dispatches, [t.slot for t in targets], options.placement)
        targets, device_of = _drop_unused(targets, placed.device)
    with steps.step("kernels"):
        kernels, refs, blobs, packed = _kernels(dispatches, device_of, targets, options)
    with steps.step("schedule"):
        weights = _weights(dispatches, packed)
        plan = build_plan(
            dispatches,
            device_of,
            kernels,
            [DeviceTarget(t.name, t.driver, t.kernel.name, refs[i]) for i, t in enumerate(targets)],
            {v: w for v, (w, _) in weights.items()},
            placed.decisions,
            {"compiler": f"mansard {mansard.__version__}", "objective": options.placement.objective},
        )
    return CompiledModel(plan, blobs, tuple(weights.values()), steps.timings)


def _drop_unused(
    targets: Sequence[CompileTarget], device: Mapping[Dispatch, int]
) -> tuple[list[CompileTarget], dict[Dispatch, int]]:
    """Leave out fallback devices nothing was placed on."""
    used = set(device.values())
    kept = [i for i, t in enumerate(targets) if i in used or not t.slot.fallback]
    renumber = {old: new for new, old in enumerate(kept)}
    return [targets[i] for i in kept], {d: renumber[i] for d, i in device.items()}


def _kernels(
    graph: DispatchGraph,
    device_of: Mapping[Dispatch, int],
    targets: Sequence[CompileTarget],
    options: CompileOptions,
) -> tuple[dict[Dispatch, KernelRef], list[tuple[ExecutableRef, ...]], dict[str, bytes], dict[Value, Panels]]:
    """Generate each distinct kernel once per device and compile it; with the constants they want packed."""
    packed: dict[Value, Panels] = {}
    refs: list[tuple[ExecutableRef, ...]] = []
    blobs: dict[str, bytes] = {}
    result: dict[Dispatch, KernelRef] = {}
    for number, target in enumerate(targets):
        mine = [d for d in graph.dispatches if device_of[d] == number]
        scheduled, name_of = _schedule_unique(mine, target.kernel)
        specs = _backend_compile(target.backend, list(scheduled.values()), target.kernel, options)
        places: dict[str, int] = {}
        device_refs = []
        for i, spec in enumerate(specs):
            entry = f"kernels/{number}-{target.driver}/{i}.bin"
            blobs[entry] = bytes(spec.code)
            rows = tuple((e.name, e.bindings, e.params, e.workgroup, e.offset) for e in spec.entries)
            device_refs.append(ExecutableRef(entry, spec.format, spec.target, spec.requires, rows))
            places.update({e.name: i for e in spec.entries})
        refs.append(tuple(device_refs))
        for dispatch in mine:
            kernel = scheduled[name_of[dispatch]]
            name = kernel.kernel.name
            result[dispatch] = KernelRef(places[name], name, kernel.params, kernel.grid)
            packed.update({dispatch.inputs[i]: panels for i, panels in kernel.packed.items()})
    return result, refs, blobs, packed


def _schedule_unique(
    dispatches: Sequence[Dispatch], target: KernelTarget
) -> tuple[dict[str, Scheduled], dict[Dispatch, str]]:
    by_key: dict[str, str] = {}
    scheduled: dict[str, Scheduled] = {}
    name_of: dict[Dispatch, str] = {}
    for dispatch in dispatches:
        key = dispatch_key(dispatch)
        if key not in by_key:
            by_key[key] = dispatch.name
            scheduled[dispatch.name] = schedule(dispatch, target, dispatch.name)
        name_of[dispatch] = by_key[key]
    return scheduled, name_of


def _backend_compile(
    backend: Backend, scheduled: Sequence[Scheduled], target: KernelTarget, options: CompileOptions
) -> list[ExecutableSpec]:
    if not scheduled:
        return []
    kernels = [s.kernel for s in scheduled]
    if options.dump:
        options.dump(f"kernels-{backend.name}", "\n\n".join(str(k) for k in kernels))
        options.dump(f"code-{backend.name}", backend.emit_text(kernels, target))
    return backend.compile(kernels, target)


def _weights(graph: DispatchGraph, packed: Mapping[Value, Panels]) -> dict[Value, tuple[WeightSpec, _Load]]:
    """Constants that dispatches read, each under a unique entry name and in the form they read."""
    used = dict.fromkeys(v for d in graph.dispatches for v in d.inputs if v in graph.graph.constants)
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
