"""Checks that a plan is sound before anything is built from it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from graphlib import CycleError, TopologicalSorter

from mansard.dims import DimLike, add, symbol, to_expr
from mansard.errors import ArtifactError
from mansard.plan.claims import Claims
from mansard.plan.contracts import ContractCheck
from mansard.plan.initialised import InitialisedCheck
from mansard.plan.plan import (
    BarrierStep,
    DeviceProgram,
    DispatchStep,
    EvictStep,
    ExecutableRef,
    KernelContract,
    LoadStep,
    Plan,
    SplitSpec,
    TransferStep,
    ValueSpec,
)
from mansard.plan.segments import named
from mansard.plan.value_check import ValueCheck

Kernel = tuple[str, int, int, tuple[int, int, int], int]
"""An entry of `ExecutableRef.kernels`."""


_checked: dict[int, tuple[weakref.ref[Plan], Claims]] = {}
"""By identity, plans that have passed: they do not change, and are checked when read and when bound."""


def check_plan(plan: Plan) -> Claims:
    """Check a plan and its variants; returns what only the sizes of a call decide of this plan.

    Raises ArtifactError when a reference points nowhere, segments wait in a circle, or memory is too small
    for what lies in it or for what a kernel accesses (`mansard.plan.contracts`).
    """
    number = id(plan)
    known = _checked.get(number)
    if known is not None and known[0]() is plan:
        return known[1]
    claims = _check(plan)
    # Called as `pop(number, reference)`. Without a line of Python, an interrupt cannot be lost in it.
    _checked[number] = weakref.ref(plan, partial(_checked.pop, number)), claims
    return claims


def _check(plan: Plan) -> Claims:
    values = {value.id: value for value in plan.values}
    if len(values) != len(plan.values):
        raise ArtifactError("the plan uses a value id twice")
    claims = Claims()
    transfers = [
        (slot, step)
        for slot, device in enumerate(plan.devices)
        for segment in device.segments
        for step in segment.steps
        if isinstance(step, TransferStep)
    ]
    if plan.interface is not None and (
        problem := plan.interface.problem(len(plan.inputs), len(plan.outputs))
    ):
        raise ArtifactError(f"the plan's interface: {problem}")
    _check_splits(plan)
    ValueCheck(plan, values, claims).check(transfers)
    contracts = ContractCheck(values, {step.target for _, step in transfers}, claims)
    initialised = InitialisedCheck(plan, values)
    for slot in range(len(plan.devices)):
        _check_device(plan, slot, values, contracts, initialised)
    initialised.end()
    _check_waits(plan)
    for variant in plan.variants:
        if _interface(variant) != _interface(plan):
            raise ArtifactError("a variant of the plan has other inputs, outputs or dims")
        if variant.variants:
            raise ArtifactError("a variant of the plan has variants")
        if [(d.name, d.driver) for d in variant.devices] != [(d.name, d.driver) for d in plan.devices]:
            raise ArtifactError("a variant of the plan is for other devices")
        check_plan(variant)
    for name, method in plan.methods.items():
        _check_method(plan, name, method)
    return claims


def _check_method(plan: Plan, name: str, method: Plan) -> None:
    """A method is for the same devices, and what it shares with the plan by name has the same size."""
    check_plan(method)
    if method.methods:
        raise ArtifactError(f"method {name!r} of the plan has methods")
    if [(d.name, d.driver) for d in method.devices] != [(d.name, d.driver) for d in plan.devices]:
        raise ArtifactError(f"method {name!r} of the plan is for other devices")
    sizes = _state_sizes(plan)
    for state, size in _state_sizes(method).items():
        if sizes.get(state, size) != size:
            raise ArtifactError(f"state {state!r} has {sizes[state]} bytes, and {size} in method {name!r}")
    weights = {weight.entry: weight for weight in plan.weights}
    for weight in method.weights:
        other = weights.get(weight.entry, weight)
        if (other.dtype, other.shape) != (weight.dtype, weight.shape):
            raise ArtifactError(f"weight {weight.entry!r} has another type in method {name!r}")


def _state_sizes(plan: Plan) -> dict[str, DimLike]:
    values = {value.id: value for value in plan.values}
    return {values[entry].name: values[entry].bytes for entry, _ in plan.states}


def _check_splits(plan: Plan) -> None:
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
        _check_pieces(plan, split, where)
        for pieces in split.dispatches:
            if len(pieces) != len(split.sizes):
                raise ArtifactError(f"a dispatch of {where} has {len(pieces)} pieces, not {len(split.sizes)}")
            for piece in pieces:
                _in_range(piece.device, len(plan.devices), f"device slot of piece {piece.label!r}")
                if piece.label not in labels[piece.device]:
                    raise ArtifactError(f"{where} names the missing dispatch {piece.label!r}")


def _check_pieces(plan: Plan, split: SplitSpec, where: str) -> None:
    """Sizes are symbols of the plan, each once, and what they leave; the shares are values of them."""
    symbols = {dim.name: dim for dim in plan.dims}
    free = {s.name for size in split.sizes for s in to_expr(size).symbols()}
    if not free <= symbols.keys():
        raise ArtifactError(f"{where} names unknown dims: {', '.join(sorted(free - symbols.keys()))}")
    chosen = [symbols[name] for name in sorted(free)]
    bare = {symbol(dim): dim for dim in chosen}
    if len(split.sizes) < 2 or not split.dispatches or {*split.sizes[:-1]} != bare.keys():
        raise ArtifactError(f"{where} has pieces of the sizes {', '.join(map(str, split.sizes))}")
    if add(*split.sizes) != split.total or sum(split.initial) != split.total:
        raise ArtifactError(f"the pieces of {where} do not sum up to {split.total}")
    if len(split.initial) != len(split.sizes):
        raise ArtifactError(f"{where} has {len(split.initial)} shares for {len(split.sizes)} pieces")
    for size, share in zip(split.sizes, split.initial, strict=True):
        dim = bare.get(size)
        if share < 1 or (dim and not (dim.min <= share <= dim.max and share % dim.multiple == 0)):
            raise ArtifactError(f"{where} has a share of {share} for a piece of size {size}")


def _check_device(
    plan: Plan,
    slot: int,
    values: Mapping[int, ValueSpec],
    contracts: ContractCheck,
    initialised: InitialisedCheck,
) -> None:
    device = plan.devices[slot]
    for number in device.swapped:
        _in_range(number, len(device.executables), "executable that is swapped")
    kernels = [_kernels(ref) for ref in device.executables]
    epoch = -1
    for segment in device.segments:
        epoch += 1
        for other, number in segment.wait:
            _in_range(other, len(plan.devices), "device slot of a wait")
            _in_range(number, len(plan.devices[other].segments), "segment of a wait")
        for step in segment.steps:
            if isinstance(step, BarrierStep):
                epoch += 1
                continue
            if isinstance(step, (LoadStep, EvictStep)):
                _check_swap(device, step)
                continue
            contract = None
            if isinstance(step, DispatchStep):
                contract = _check_dispatch(slot, kernels, step, values)
                if contract is not None:
                    contracts.check(step, contract)
                    for number in named(step):
                        _check_lifetime(values, number, epoch, step.label)
            initialised.step(step, contract)


def _check_swap(device: DeviceProgram, step: LoadStep | EvictStep) -> None:
    """What is loaded and evicted takes turns, and fits the area for that."""
    if step.executable not in device.swapped:
        raise ArtifactError(f"{step.label!r} is about executable {step.executable}, which is always loaded")
    if isinstance(step, LoadStep) and not 0 <= step.bytes <= device.area_bytes:
        raise ArtifactError(
            f"{step.label!r} loads {step.bytes} bytes into an area of {device.area_bytes} on {device.name!r}"
        )


def _kernels(ref: ExecutableRef) -> dict[str, tuple[Kernel, KernelContract | None]]:
    contracts = ref.contracts or (None,) * len(ref.kernels)
    if len(contracts) != len(ref.kernels):
        raise ArtifactError(f"executable {ref.entry!r} does not have a contract for each kernel")
    kernels = {}
    for kernel, contract in zip(ref.kernels, contracts, strict=True):
        if contract is not None and (len(contract.bindings), len(contract.params)) != kernel[1:3]:
            raise ArtifactError(f"the contract of kernel {kernel[0]!r} has other bindings or params")
        kernels[kernel[0]] = (kernel, contract)
    return kernels


def _check_dispatch(
    slot: int,
    executables: Sequence[Mapping[str, tuple[Kernel, KernelContract | None]]],
    step: DispatchStep,
    values: Mapping[int, ValueSpec],
) -> KernelContract | None:
    what = f"dispatch {step.label!r}"
    _in_range(step.executable, len(executables), f"executable of {what}")
    if step.entry not in executables[step.executable]:
        raise ArtifactError(f"{what} names the missing kernel {step.entry!r}")
    (_, bindings, params, _, _), contract = executables[step.executable][step.entry]
    if (len(step.bindings), len(step.params)) != (bindings, params):
        raise ArtifactError(
            f"{what} passes {len(step.bindings)} buffers and {len(step.params)} params; "
            f"kernel {step.entry!r} takes {bindings} and {params}"
        )
    for binding in step.bindings:
        if binding.value not in values:
            raise ArtifactError(f"a binding of {what} names the missing value {binding.value}")
        if values[binding.value].device != slot:
            raise ArtifactError(f"{what} uses value {binding.value} of another device")
    return contract


def _check_lifetime(values: Mapping[int, ValueSpec], number: int, epoch: int, label: str) -> None:
    """Others may be in a transient value's memory outside the epochs that the value names."""
    value = values[number]
    if value.part_of is not None:
        value = values[value.part_of]
    if value.kind == "transient" and not value.first <= epoch <= value.last:
        raise ArtifactError(
            f"{label!r} uses value {value.id} in epoch {epoch}; it is kept from {value.first} to {value.last}"
        )


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


def _in_range(index: int, count: int, what: str) -> None:
    if not 0 <= index < count:
        raise ArtifactError(f"{what} is {index}; the plan has {count}")


def _interface(plan: Plan) -> tuple[object, ...]:
    return plan.inputs, plan.outputs, plan.dims, plan.constraints
