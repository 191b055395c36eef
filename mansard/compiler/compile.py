"""The compiler's driver: a model in, a plan with its executables and weights out.

Import, the passes (`mansard.passes.pipeline`), placement, kernels, and the plan of each variant.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from mansard.cache import Folder
from mansard.compiler.compiled_model import CompiledModel
from mansard.compiler.dumps import Dumps
from mansard.compiler.executables import KernelSettings, build_executables
from mansard.compiler.options import CompileOptions
from mansard.compiler.place import PlacedGraph, place_graph, place_graphs
from mansard.compiler.plans import CompiledGraph, build_model
from mansard.compiler.stages import StageTimer
from mansard.compiler.target_pipeline import check_pass_names, select_steps, target_pipeline
from mansard.compiler.targets import CompileTarget, resolve_targets
from mansard.compiler.variants import target_sets
from mansard.errors import CompileError
from mansard.ir.dispatch import DispatchGraph
from mansard.ir.graph import Graph
from mansard.passes.layout.shared_weights import share_joined, shared_weights
from mansard.passes.pass_manager import IR, run_fusion, run_passes
from mansard.passes.pipeline import fusion_steps, graph_steps, sharing_steps
from mansard.placement.methods import MethodUse


def compile_model(
    model: Any,
    example_inputs: Any = None,
    *,
    options: CompileOptions | None = None,
    **frontend: Any,
) -> CompiledModel:
    """Import a model of any supported framework and compile it (see `compile_graph`).

    ``frontend`` goes to the frontend: ``dynamic_shapes``, ``kwargs`` and so on.
    """
    options = options or CompileOptions()
    timer = StageTimer(options.progress)
    with _no_collections():
        return _compile(_import(model, example_inputs, options, timer, frontend), options, timer)


def compile_graph(graph: Graph, options: CompileOptions | None = None) -> CompiledModel:
    """Compile a Graph: run the passes, place, generate kernels, build the plan.

    Raises the errors under `mansard.errors.CompileError`.
    """
    options = options or CompileOptions()
    with _no_collections():
        return _compile(graph, options, StageTimer(options.progress))


def compile_methods(
    graphs: Mapping[str, Graph],
    options: CompileOptions | None = None,
    uses: Mapping[str, MethodUse] | None = None,
) -> CompiledModel:
    """Compile several Graphs into one model: the first is what a call of the model runs, the others are its
    methods by name (`mansard.plan.plan.Plan.methods`).

    States of equal name are one state. Constants of equal key are one: methods read them in the same form
    (`mansard.passes.layout.shared_weights`). Where there are several devices, methods are placed together
    (`mansard.placement.methods`), as their ``uses`` say.
    """
    options = options or CompileOptions()
    timer = StageTimer(options.progress)
    with _no_collections():
        begun = {name: _begin(graph, options, timer) for name, graph in graphs.items()}
        shared = shared_weights(list(begun.values()))
        lowerings = _sharing({name: _lower(graph, options, timer, shared) for name, graph in begun.items()})
        with timer.stage("place"):
            first = next(iter(lowerings.values()))
            placed = place_graphs(
                {name: lowering.dispatches for name, lowering in lowerings.items()},
                uses or {},
                first.targets,
                options.placement,
                first.fuse,
            )
        compiled = {
            name: _compile_placed(placed[name], lowering, options, timer)
            for name, lowering in lowerings.items()
        }
        with timer.stage("schedule"):
            (_, model), *methods = compiled.items()
            return build_model(model, options, timer.timings, dict(methods))


def lower_model(
    model: Any,
    example_inputs: Any = None,
    *,
    options: CompileOptions | None = None,
    **frontend: Any,
) -> IR:
    """Import a model and run the passes on it (see `lower_graph`)."""
    options = options or CompileOptions()
    with _no_collections():
        graph = _import(model, example_inputs, options, StageTimer(options.progress), frontend)
        return lower_graph(graph, options)


def lower_graph(graph: Graph, options: CompileOptions | None = None) -> IR:
    """The IR after the pass ``options.stop_after``, or after all: a Graph, or a DispatchGraph from fusion on.

    Raises CompileError for passes that the pipeline does not have.
    """
    options = options or CompileOptions()
    steps = target_pipeline(resolve_targets(options.targets, options.placement), options)
    dumps = Dumps(options.dump, steps)
    steps = select_steps(steps, options)
    graph = run_passes(graph, graph_steps(steps), dumps.ir)
    return run_fusion(graph, fusion_steps(steps), dumps.ir) if fusion_steps(steps) else graph


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


def _import(
    model: Any, example_inputs: Any, options: CompileOptions, timer: StageTimer, frontend: Mapping[str, Any]
) -> Graph:
    from mansard.frontends import import_model

    check_pass_names(options)
    with timer.stage("import"):
        return import_model(model, example_inputs, cache=options.cache, **frontend)


def _compile(graph: Graph, options: CompileOptions, timer: StageTimer) -> CompiledModel:
    compiled = replace(_compile_graph(graph, options, timer), interface=graph.interface, notes=graph.notes)
    with timer.stage("schedule"):
        return build_model(compiled, options, timer.timings)


@dataclass(frozen=True)
class _Lowering:
    """A graph's dispatches, and what they were made with."""

    dispatches: DispatchGraph
    targets: Sequence[CompileTarget]
    dumps: Dumps
    fuse: Callable[[Graph], DispatchGraph]


def _sharing(lowerings: Mapping[str, _Lowering]) -> dict[str, _Lowering]:
    """The dispatches of a model's methods, with one place for weights that one of them joins."""
    graphs = share_joined([lowering.dispatches for lowering in lowerings.values()])
    return {
        name: replace(lowering, dispatches=graph)
        for (name, lowering), graph in zip(lowerings.items(), graphs, strict=True)
    }


def _compile_graph(graph: Graph, options: CompileOptions, timer: StageTimer) -> CompiledGraph:
    lowering = _lower(_begin(graph, options, timer), options, timer)
    with timer.stage("place"):
        placed = place_graph(lowering.dispatches, lowering.targets, options.placement, lowering.fuse)
    return _compile_placed(placed, lowering, options, timer)


def _begin(graph: Graph, options: CompileOptions, timer: StageTimer) -> Graph:
    """The passes on a graph that do not depend on what it shares with other methods."""
    if options.stop_after is not None:
        raise CompileError(f"stop_after={options.stop_after!r} gives IR and no model: lower_graph returns it")
    steps = target_pipeline(resolve_targets(options.targets, options.placement), options)
    dumps = Dumps(options.dump, steps)
    with timer.stage("simplify"):
        return run_passes(graph, sharing_steps(select_steps(steps, options)), dumps.ir)


def _lower(
    graph: Graph, options: CompileOptions, timer: StageTimer, shared: frozenset[str] = frozenset()
) -> _Lowering:
    """The other passes on a graph that `_begin` returned."""
    targets = resolve_targets(options.targets, options.placement)
    steps = target_pipeline(targets, options, shared)
    dumps = Dumps(options.dump, steps)
    steps = select_steps(steps, options)
    with timer.stage("simplify"):
        rest = graph_steps(steps)[len(sharing_steps(steps)) :]
        graph = run_passes(graph, rest, dumps.ir, begun=True)
    with timer.stage("fuse"):
        dispatches = run_fusion(graph, fusion_steps(steps), dumps.ir)
    return _Lowering(dispatches, targets, dumps, lambda divided: run_fusion(divided, fusion_steps(steps)))


def _compile_placed(
    placed: PlacedGraph, lowering: _Lowering, options: CompileOptions, timer: StageTimer
) -> CompiledGraph:
    if placed.splits and lowering.dumps.ir:
        lowering.dumps.ir("split", str(placed.graph))
    with timer.stage("kernels"):
        settings = _kernel_settings(options, lowering.dumps)
        variants = [
            (chosen, build_executables(placed.graph, placed.device_of, chosen, settings))
            for chosen in target_sets(placed.targets)
        ]
    return CompiledGraph(placed, variants)


def _kernel_settings(options: CompileOptions, dumps: Dumps) -> KernelSettings:
    report = options.progress
    return KernelSettings(
        folder=Folder("kernels") if options.cache else None,
        progress=(lambda done, total: report("kernels", done, total)) if report else None,
        dump=dumps.code,
    )
