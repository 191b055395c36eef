"""The plan of a compiled model, with those of its variants and methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mansard
from mansard.compiler.compiled_model import CompiledModel
from mansard.compiler.executables import Executables
from mansard.compiler.options import CompileOptions
from mansard.compiler.place import PlacedGraph, device_target
from mansard.compiler.planning.build import build_plan
from mansard.compiler.sources import sources_to_bytes
from mansard.compiler.targets import CompileTarget
from mansard.compiler.variants import SharedFiles
from mansard.compiler.weights import collect_weights
from mansard.plan.interface import Interface
from mansard.plan.plan import Plan


@dataclass(frozen=True)
class CompiledGraph:
    """A placed graph, and its ``variants``: targets and kernels, the best first."""

    placed: PlacedGraph
    variants: Sequence[tuple[Sequence[CompileTarget], Executables]]
    interface: Interface | None = None
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What the plan's info says of the graph."""


def build_model(
    compiled: CompiledGraph,
    options: CompileOptions,
    timings: Mapping[str, float],
    methods: Mapping[str, CompiledGraph] | None = None,
) -> CompiledModel:
    """The compiled model of a graph, with further ``methods`` by name."""
    files = SharedFiles()
    plan = _plan(compiled, files, options)
    others = {}
    for name, method in (methods or {}).items():
        files.begin_method(name)
        others[name] = _plan(method, files, options)
    plan = _with_shared_states(dataclasses.replace(plan, methods=others))
    # A search replaces the kernels of one plan; those of a model with several stay as they are.
    best = compiled.variants[0][1]
    sources = None if len(plan.all_plans()) > 1 else sources_to_bytes(best.sources)
    return CompiledModel(plan, files.blobs, tuple(files.weights.values()), timings, best.cache, sources)


def _with_shared_states(plan: Plan) -> Plan:
    """The plan, with the states that methods have on different devices in memory that both can reach, where
    there is such memory."""
    devices: dict[str, set[str]] = {}
    for each in (plan, *plan.methods.values()):
        for name, device in _state_devices(each).items():
            devices.setdefault(name, set()).add(device)
    moving = {name for name, of in devices.items() if len(of) > 1}
    if not moving:
        return plan

    def marked(each: Plan) -> Plan:
        entries = {entry for entry, _ in each.states}
        values = tuple(
            dataclasses.replace(v, shared=True) if v.id in entries and v.name in moving else v
            for v in each.values
        )
        return dataclasses.replace(each, values=values, variants=tuple(map(marked, each.variants)))

    methods = {name: marked(method) for name, method in plan.methods.items()}
    return dataclasses.replace(marked(plan), methods=methods)


def _state_devices(plan: Plan) -> dict[str, str]:
    """The device of every state, by name."""
    values = {value.id: value for value in plan.values}
    states = [values[entry] for entry, _ in plan.states]
    return {state.name: plan.devices[state.device].name for state in states}


def _plan(compiled: CompiledGraph, files: SharedFiles, options: CompileOptions) -> Plan:
    placed = compiled.placed
    first, *others = (
        _variant_plan(placed, targets, kernels, files, number, options)
        for number, (targets, kernels) in enumerate(compiled.variants)
    )
    return dataclasses.replace(
        first,
        variants=tuple(others),
        prediction=placed.prediction,
        interface=compiled.interface,
        info={**first.info, **compiled.notes},
    )


def _variant_plan(
    placed: PlacedGraph,
    targets: Sequence[CompileTarget],
    kernels: Executables,
    files: SharedFiles,
    number: int,
    options: CompileOptions,
) -> Plan:
    refs = files.add_code(number, kernels)
    weights = files.add_weights(collect_weights(placed.graph, kernels.packed), kernels.packed)
    # What holds for all variants is told once, by the first plan.
    plan = build_plan(
        placed.graph,
        placed.device_of,
        kernels.kernels,
        [device_target(target, refs[i]) for i, target in enumerate(targets)],
        weights,
        placed.decisions if number == 0 else (),
        _info(options, placed.targets) if number == 0 else {},
        placed.swaps,
    )
    return dataclasses.replace(plan, splits=placed.splits)


def _info(options: CompileOptions, targets: Sequence[CompileTarget]) -> dict[str, str]:
    """What the plan says about its compilation."""
    measured = [f"{t.name} {t.slot.profile.measured}" for t in targets if t.slot.profile.measured]
    return {
        **({"calibrated": ", ".join(measured)} if measured else {}),
        "compiler": f"mansard {mansard.__version__}",
        "objective": options.placement.objective,
        "precision": options.precision,
        **({"quantisation": str(options.quantisation)} if options.quantisation is not None else {}),
    }
