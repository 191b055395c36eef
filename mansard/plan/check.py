"""Checks that a plan is sound before anything is built from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from mansard.dims import add, to_expr
from mansard.errors import ArtifactError
from mansard.plan.plan import BarrierStep, DeviceProgram, DispatchStep, Plan, Step, TransferStep

Kernel = tuple[str, int, int, tuple[int, int, int], int]
"""An entry of `ExecutableRef.kernels`."""
KINDS = ("input", "output", "constant", "transient", "state")


def check_plan(plan: Plan) -> None:
    """Raise ArtifactError when a reference of the plan points nowhere or its segments wait in a circle."""
    ids = [value.id for value in plan.values]
    known = set(ids)
    if len(known) != len(ids):
        raise ArtifactError("the plan uses a value id twice")
    for value in plan.values:
        where = f"value {value.id} ({value.name})"
        if value.kind not in KINDS:
            raise ArtifactError(f"{where} is of unknown kind {value.kind!r}")
        _in_range(value.device, len(plan.devices), f"device slot of {where}")
        if value.weight is not None:
            _in_range(value.weight, len(plan.weights), f"weight of {where}")
        elif value.kind == "constant":
            raise ArtifactError(f"{where} is a constant without a weight")
    _check_parts(plan)
    _check_splits(plan)
    specs = [(f"input {s.name!r}", s.value) for s in plan.inputs]
    specs += [(f"output {s.name!r}", s.value) for s in plan.outputs]
    specs += [(f"assert {a.message!r}", a.value) for a in plan.asserts]
    specs += [("a state", value) for pair in plan.states for value in pair]
    for what, value_id in specs:
        _known(value_id, known, what)
    _check_inputs(plan)
    for device in plan.devices:
        _check_device(plan, device, known)
    _check_waits(plan)
    for variant in plan.variants:
        if (variant.inputs, variant.outputs, variant.dims) != (plan.inputs, plan.outputs, plan.dims):
            raise ArtifactError("a variant of the plan has other inputs, outputs or dims")
        if variant.variants:
            raise ArtifactError("a variant of the plan has variants")
        check_plan(variant)


def _check_parts(plan: Plan) -> None:
    values = {value.id: value for value in plan.values}
    for value in plan.values:
        if value.part_of is None:
            continue
        where = f"value {value.id} ({value.name})"
        _known(value.part_of, set(values), f"the whole of {where}")
        whole = values[value.part_of]
        if whole.device != value.device or whole.part_of is not None:
            raise ArtifactError(f"{where} is a part of value {whole.id}, which is no whole of its device")


def _check_splits(plan: Plan) -> None:
    symbols = {dim.name: dim for dim in plan.dims}
    labels = [
        {
            step.label
            for segment in device.segments
            for step in segment.steps
            if not isinstance(step, BarrierStep)
        }
        for device in plan.devices
    ]
    for number, split in enumerate(plan.splits):
        where = f"split {number}"
        free = {s.name for size in split.sizes for s in to_expr(size).symbols()}
        if not free <= symbols.keys():
            raise ArtifactError(f"{where} names unknown dims: {', '.join(sorted(free - symbols.keys()))}")
        if add(*split.sizes) != split.total or sum(split.initial) != split.total:
            raise ArtifactError(f"the pieces of {where} do not sum up to {split.total}")
        if len(split.initial) != len(split.sizes):
            raise ArtifactError(f"{where} has {len(split.initial)} shares for {len(split.sizes)} pieces")
        for pieces in split.dispatches:
            if len(pieces) != len(split.sizes):
                raise ArtifactError(f"a dispatch of {where} has {len(pieces)} pieces, not {len(split.sizes)}")
            for piece in pieces:
                _in_range(piece.device, len(plan.devices), f"device slot of piece {piece.label!r}")
                if piece.label not in labels[piece.device]:
                    raise ArtifactError(f"{where} names the missing dispatch {piece.label!r}")


def _check_inputs(plan: Plan) -> None:
    kinds = {value.id: value.kind for value in plan.values}
    for spec in plan.inputs:
        if kinds[spec.value] != "input":
            raise ArtifactError(f"input {spec.name!r} is bound to a value of kind {kinds[spec.value]}")
    named = {spec.value for spec in plan.inputs}
    for value in plan.values:
        if value.kind == "input" and value.id not in named:
            raise ArtifactError(f"value {value.id} ({value.name}) is of kind input but no input names it")


def _check_device(plan: Plan, device: DeviceProgram, known: set[int]) -> None:
    kernels = [{kernel[0]: kernel for kernel in ref.kernels} for ref in device.executables]
    for segment in device.segments:
        for slot, number in segment.wait:
            _in_range(slot, len(plan.devices), "device slot of a wait")
            _in_range(number, len(plan.devices[slot].segments), "segment of a wait")
        for step in segment.steps:
            _check_step(kernels, step, known)


def _check_step(kernels: Sequence[Mapping[str, Kernel]], step: Step, known: set[int]) -> None:
    if isinstance(step, TransferStep):
        _known(step.source, known, f"source of {step.label}")
        _known(step.target, known, f"target of {step.label}")
    elif isinstance(step, DispatchStep):
        what = f"dispatch {step.label!r}"
        _in_range(step.executable, len(kernels), f"executable of {what}")
        if step.entry not in kernels[step.executable]:
            raise ArtifactError(f"{what} names the missing kernel {step.entry!r}")
        _, bindings, params, _, _ = kernels[step.executable][step.entry]
        if (len(step.bindings), len(step.params)) != (bindings, params):
            raise ArtifactError(
                f"{what} passes {len(step.bindings)} buffers and {len(step.params)} params; "
                f"kernel {step.entry!r} takes {bindings} and {params}"
            )
        for binding in step.bindings:
            _known(binding.value, known, f"a binding of {what}")


def _check_waits(plan: Plan) -> None:
    graph: dict[tuple[int, int], Iterable[tuple[int, int]]] = {}
    for slot, device in enumerate(plan.devices):
        for number, segment in enumerate(device.segments):
            before = [(slot, number - 1)] if number else []
            graph[slot, number] = [*segment.wait, *before]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise ArtifactError(f"segments wait on each other in a circle: {error.args[1]}") from error


def _known(value: int, known: set[int], what: str) -> None:
    if value not in known:
        raise ArtifactError(f"{what} names the missing value {value}")


def _in_range(index: int, count: int, what: str) -> None:
    if not 0 <= index < count:
        raise ArtifactError(f"{what} is {index}; the plan has {count}")
