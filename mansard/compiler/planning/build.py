"""Builds the plan: a step for every dispatch on its device's queue, with the transfers that it needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from mansard.compiler.planning.assemble import Assembler
from mansard.compiler.planning.inputs import DeviceTarget, KernelRef, SwappedDispatches
from mansard.compiler.planning.queues import Queues
from mansard.compiler.planning.swapping import Swapping
from mansard.compiler.planning.values import DeviceValue, DeviceValues
from mansard.dims import DimLike, add
from mansard.errors import CompileError
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.ir.types import Value
from mansard.plan.plan import BindingSpec, Decision, DispatchStep, Plan, TransferStep, WeightSpec


def build_plan(
    graph: DispatchGraph,
    device_of: Mapping[Dispatch, int],
    kernels: Mapping[Dispatch, KernelRef],
    targets: Sequence[DeviceTarget],
    weights: Mapping[Value, WeightSpec],
    decisions: Sequence[Decision],
    info: Mapping[str, str],
    swaps: Mapping[int, SwappedDispatches] | None = None,
) -> Plan:
    """The plan of placed and compiled dispatches, of which those in ``swaps`` take turns on their target.

    Raises CompileError for a state whose users are on several devices.
    """
    builder = _Builder(graph, device_of, kernels, targets, weights)
    builder.swapping = {
        device: Swapping(device, swapped, graph.dispatches, kernels, builder.queues)
        for device, swapped in (swaps or {}).items()
    }
    builder.run()
    plan = Assembler(graph, builder.values, builder.queues, weights).assemble(targets, decisions, info)
    devices = [
        builder.swapping[number].marked(device) if number in builder.swapping else device
        for number, device in enumerate(plan.devices)
    ]
    return dataclasses.replace(plan, devices=tuple(devices))


class _Builder:
    def __init__(
        self,
        graph: DispatchGraph,
        device_of: Mapping[Dispatch, int],
        kernels: Mapping[Dispatch, KernelRef],
        targets: Sequence[DeviceTarget],
        weights: Mapping[Value, WeightSpec],
    ) -> None:
        self.graph, self.device_of, self.kernels, self.targets = graph, device_of, kernels, targets
        self.values = DeviceValues(graph, device_of, {v: i for i, v in enumerate(weights)})
        self.queues = Queues(len(targets))
        self.swapping: Mapping[int, Swapping] = {}
        self.produced: dict[Value, tuple[int, int]] = {}
        """Device and segment that produce a value."""
        self.read_whole = {
            (graph.base(v), device_of[d])
            for d in graph.dispatches
            for v in d.inputs
            if graph.base(v) not in graph.slices
        }

    def run(self) -> None:
        """Add the steps of all dispatches, in order."""
        remote = self._remote_values()
        for swapping in self.swapping.values():
            swapping.load()
        for dispatch in self.graph.dispatches:
            device = self.device_of[dispatch]
            for value in dispatch.inputs:
                if self._is_remote_slice(value, device):
                    self._bring_slice(self.graph.base(value), device)
                    continue
                for source in self.graph.sources(value):
                    self._bring(source, device)
            self._dispatch(dispatch, device)
            if device in self.swapping:
                self.swapping[device].after(dispatch)
            for value in dispatch.outputs:
                self.values.home[value] = device
                self.produced[value] = (device, self.queues.segment(device))
            if any(v in remote for v in dispatch.outputs):
                self.queues.close(device)
        for value, devices in self.values.joined.items():
            if self.values.is_result(value):
                for part, _ in self.graph.joins[value]:
                    self._bring(part, devices[0])
        for device in range(len(self.targets)):
            self.queues.close(device)

    def _remote_values(self) -> set[Value]:
        """Values that a device reads which does not produce them."""
        home = {v: self.device_of[d] for d in self.graph.dispatches for v in d.outputs}
        read = {
            (source, self.device_of[d])
            for d in self.graph.dispatches
            for v in d.inputs
            for source in self.graph.sources(v)
        }
        read |= {
            (part, device)
            for value, devices in self.values.joined.items()
            for part, _ in self.graph.joins[value]
            for device in devices
        }
        return {v for v, device in read if v in home and home[v] != device}

    # Transfers ------------------------------------------------------------------------------
    def _bring(self, value: Value, device: int) -> None:
        """Make a value available on a device: wait for its producer and transfer it once."""
        if value not in self.produced:
            if value in self.values.states_before:
                owner = self.values.home.setdefault(value, device)
                if owner != device:
                    raise CompileError(
                        f"state {value.name!r} is used on {self.targets[owner].name} and "
                        f"{self.targets[device].name}; pin its users to one device"
                    )
            self._bring_source(value, device)
            return
        owner, segment = self.produced[value]
        if owner == device:
            return
        source = self.values.get(value, owner)
        self._transfer(source, value, device, segment, value.name)
        if source.whole is not None:
            reader = (device, self.queues.segment(device), source.whole.value)
            source.whole.remote_reads.append(reader)

    def _is_remote_slice(self, value: Value, device: int) -> bool:
        """Whether a device needs a slice of a value of another device, and nothing else of it."""
        base = self.graph.base(value)
        if base not in self.graph.slices:
            return False
        whole = self.graph.slices[base][0]
        is_remote = whole in self.produced and self.produced[whole][0] != device
        return is_remote and whole not in self.values.part_of and (whole, device) not in self.read_whole

    def _bring_slice(self, value: Value, device: int) -> None:
        """Make a slice available on a device, without the rest of the value it is a part of."""
        whole, offset = self.graph.slices[value]
        owner, segment = self.produced[whole]
        self._transfer(self.values.get(whole, owner), value, device, segment, whole.name, offset)

    def _transfer(
        self,
        source: DeviceValue,
        value: Value,
        device: int,
        segment: int,
        name: str,
        offset: DimLike = 0,
    ) -> None:
        """Copy ``value``, all or a slice of ``source``, to a device, unless it is there already."""
        is_first_use = (value, device) not in self.values.by_device
        self.queues.wait_for(device, source.device, segment)
        target = self.values.get_copy(value, device)
        if is_first_use:
            source.shared = target.shared = True
            step = TransferStep(source.id, target.id, value.type.bytes, f"transfer {name}", offset)
            self.queues.add(device, step, (target.memory,))
            target.touch(self.queues.epoch[device])
        source.remote_reads.append((device, self.queues.segment(device), value))

    def _bring_source(self, value: Value, device: int) -> None:
        """Constants and states have a value per device; an input moves from its first device."""
        owner = self.values.home.setdefault(value, device)
        is_first_use = (value, device) not in self.values.by_device
        if owner == device or value not in self.values.inputs:
            self.values.get(value, device)
            return
        target = self.values.get_copy(value, device)
        if is_first_use:
            source = self.values.get(value, owner)
            step = TransferStep(source.id, target.id, value.type.bytes, f"input {value.name}")
            self.queues.add(device, step, (target.id,))
        target.touch(self.queues.epoch[device])

    # Dispatches -----------------------------------------------------------------------------
    def _dispatch(self, dispatch: Dispatch, device: int) -> None:
        places = [self.values.place_of(v, device) for v in (*dispatch.inputs, *dispatch.outputs)]
        operands = [self.values.get(v, device) for v, _ in places]
        reads, writes = operands[: len(dispatch.inputs)], operands[len(dispatch.inputs) :]
        # Parts of one value are disjoint: only who reads the whole waits for them.
        used = {v.memory for v in reads} | {v.id for v in writes}
        overwritten = {v.id for v in writes} if dispatch.in_place else set()
        if self.queues.must_order(device, used, overwritten):
            self.queues.barrier(device)
        kernel = self.kernels[dispatch]
        offsets = kernel.offsets or (0,) * len(places)
        bindings = tuple(
            BindingSpec(v.id, add(at, offset))
            for v, (_, at), offset in zip(operands, places, offsets, strict=True)
        )
        for operand in operands:
            operand.touch(self.queues.epoch[device])
        step = DispatchStep(
            kernel.executable,
            kernel.entry,
            bindings,
            kernel.params,
            kernel.grid,
            dispatch.name,
            dispatch.location,
        )
        self.queues.add(device, step, {v.memory for v in writes}, {v.memory for v in reads})
