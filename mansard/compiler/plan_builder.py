"""Builds the plan: one queue per device, cut into segments where devices wait for each other.

A segment ends after a dispatch whose result another device needs, and starts where a result of
another device is needed. Segments of one queue run in order; between queues only the waits order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mansard.compiler.activations import activation_arenas, describe
from mansard.dims import DimLike, add, representative
from mansard.errors import CompileError
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.ir.ops import Assert
from mansard.ir.types import Value
from mansard.plan.plan import (
    AssertSpec,
    BarrierStep,
    BindingSpec,
    Decision,
    DeviceProgram,
    DispatchStep,
    ExecutableRef,
    Plan,
    Segment,
    Step,
    TensorSpec,
    TransferStep,
    ValueSpec,
    WeightSpec,
)


@dataclass(frozen=True)
class KernelRef:
    """Where a dispatch's kernel is, and how it is launched."""

    executable: int
    entry: str
    params: tuple[DimLike, ...]
    grid: tuple[DimLike, DimLike, DimLike]


@dataclass(frozen=True)
class DeviceTarget:
    """What the plan records of a device slot."""

    name: str
    driver: str
    target: str
    executables: tuple[ExecutableRef, ...]
    product_names: tuple[str, ...] = ()
    late_binding: bool = False


@dataclass
class _Open:
    """The segment being filled on one queue."""

    wait: dict[int, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    written: set[int] = field(default_factory=set)  # value ids written since the last barrier


@dataclass
class _Spec:
    """A value on one device, before its lifetime is known."""

    id: int
    value: Value
    device: int
    kind: str
    weight: int | None = None
    shared: bool = False
    first: int | None = None
    last: int = 0
    users: list[tuple[int, int, Value]] = field(default_factory=list)
    """(device, segment) that read it elsewhere, as which value."""
    whole: _Spec | None = None  # what it is a part of
    offset: DimLike = 0

    @property
    def memory(self) -> int:
        """The id of the value whose memory it is."""
        return self.id if self.whole is None else self.whole.id


def build_plan(
    graph: DispatchGraph,
    device_of: Mapping[Dispatch, int],
    kernels: Mapping[Dispatch, KernelRef],
    targets: Sequence[DeviceTarget],
    weights: Mapping[Value, WeightSpec],
    decisions: Sequence[Decision],
    info: Mapping[str, str],
) -> Plan:
    """The plan of placed and compiled dispatches."""
    return _Builder(graph, device_of, kernels, targets, weights).run(decisions, info)


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
        self.weights = weights
        self.weight_ids = {v: i for i, v in enumerate(weights)}
        self.specs: list[_Spec] = []
        self.spec_of: dict[tuple[Value, int], _Spec] = {}
        self.open = [_Open() for _ in targets]
        self.closed: list[list[Segment]] = [[] for _ in targets]
        self.epoch = [0 for _ in targets]
        self.starts: list[list[int]] = [[0] for _ in targets]  # first epoch of every segment
        self.made_in: dict[Value, tuple[int, int]] = {}  # producer's device and segment
        self.seen: list[dict[int, int]] = [{} for _ in targets]  # newest segment of others waited on
        self.home: dict[Value, int] = {}
        self.live = {graph.base(v) for v in graph.graph.live_outs()}
        self.checked = {graph.base(a.inputs[0]) for a in graph.asserts}
        self.states_before = {s.before: s for s in graph.graph.states}
        self.inputs = frozenset(graph.graph.inputs)
        self.taken_over = {v: old for d in graph.dispatches for old in d.in_place for v in d.outputs}
        self.part_of = {part: (v, at) for v, parts in graph.joins.items() for part, at in parts}
        self.joined = self._joined()
        self.read_whole = {
            (graph.base(v), device_of[d])
            for d in graph.dispatches
            for v in d.inputs
            if graph.base(v) not in graph.slices
        }

    # Values ---------------------------------------------------------------------------------
    def spec(self, value: Value, device: int) -> _Spec:
        """The value on a device, made when first asked for; one made in place is what was there."""
        value = self.taken_over.get(value, value)
        key = (value, device)
        if key not in self.spec_of:
            kind, weight = self._kind(value), self.weight_ids.get(value)
            if value in self.joined and device != self.home.get(value, device):
                kind = "transient"
            self._add_spec(_Spec(len(self.specs), value, device, kind, weight))
        return self.spec_of[key]

    def _add_spec(self, spec: _Spec) -> None:
        self.specs.append(spec)
        self.spec_of[spec.value, spec.device] = spec
        if spec.value in self.part_of:
            whole, spec.offset = self.part_of[spec.value]
            if spec.device in self.joined[whole]:
                spec.whole = self.spec(whole, spec.device)

    def _joined(self) -> dict[Value, list[int]]:
        """The devices that have a joined value as a whole: those that read it. A result of the model that
        none reads is on that of its largest part."""
        found: dict[Value, list[int]] = {value: [] for value in self.graph.joins}
        for dispatch in self.graph.dispatches:
            for value in dispatch.inputs:
                base, device = self.graph.whole(value), self.device_of[dispatch]
                if base in found and device not in found[base]:
                    found[base].append(device)
        maker = {v: d for d in self.graph.dispatches for v in d.outputs}
        for value, devices in found.items():
            parts = sorted(self.graph.joins[value], key=lambda p: -representative(p[0].type.elements))
            if not devices and (value in self.live or value in self.checked):
                devices.append(self.device_of[maker[parts[0][0]]])
            if devices:
                self.home[value] = devices[0]
        return found

    def _kind(self, value: Value) -> str:
        if value in self.weight_ids:
            return "constant"
        if value in self.inputs:
            return "input"
        if value in self.states_before or value in {
            self.graph.base(s.after) for s in self.graph.graph.states
        }:
            return "state"
        if value in self.live or value in self.checked:
            return "output"
        return "transient"

    # Segments -------------------------------------------------------------------------------
    def close(self, device: int) -> None:
        """End the open segment of a queue, if it has steps."""
        segment = self.open[device]
        if not segment.steps:
            return
        number = len(self.closed[device])
        waits = dict(segment.wait)
        if number:
            waits[device] = number - 1  # segments of one queue run in order
        self.closed[device].append(Segment(tuple(sorted(waits.items())), tuple(segment.steps)))
        self.open[device] = _Open()
        self.epoch[device] += 1
        self.starts[device].append(self.epoch[device])

    def await_segment(self, device: int, other: int, segment: int) -> None:
        """Let the queue of ``device`` wait for a segment of another queue before what follows."""
        if self.seen[device].get(other, -1) >= segment:
            return
        self.close(device)
        self.seen[device][other] = segment
        self.open[device].wait[other] = max(segment, self.open[device].wait.get(other, -1))

    def barrier(self, device: int) -> None:
        """Order what follows on a queue after what it holds."""
        self.open[device].steps.append(BarrierStep())
        self.open[device].written.clear()
        self.epoch[device] += 1

    def touch(self, spec: _Spec) -> None:
        """Note a use of a value at the current epoch of its device."""
        epoch = self.epoch[spec.device]
        spec.first = epoch if spec.first is None else spec.first
        spec.last = max(spec.last, epoch)
        if spec.whole is not None:
            self.touch(spec.whole)

    # Steps ----------------------------------------------------------------------------------
    def run(self, decisions: Sequence[Decision], info: Mapping[str, str]) -> Plan:
        """Walk the dispatches in order."""
        remote = self._remote_values()
        for dispatch in self.graph.dispatches:
            device = self.device_of[dispatch]
            for value in dispatch.inputs:
                if self._is_moved_slice(value, device):
                    self._bring_slice(self.graph.base(value), device)
                    continue
                for source in self.graph.sources(value):
                    self._bring(source, device)
            self._dispatch(dispatch, device)
            for value in dispatch.outputs:
                self.home[value] = device
                self.made_in[value] = (device, len(self.closed[device]))
            if any(v in remote for v in dispatch.outputs):
                self.close(device)
        for value, devices in self.joined.items():
            if value in self.live or value in self.checked:
                for part, _ in self.graph.joins[value]:
                    self._bring(part, devices[0])
        for device in range(len(self.targets)):
            self.close(device)
        return self._plan(decisions, info)

    def _remote_values(self) -> set[Value]:
        """Values some other device reads."""
        home = {v: self.device_of[d] for d in self.graph.dispatches for v in d.outputs}
        read = {
            (source, self.device_of[d])
            for d in self.graph.dispatches
            for v in d.inputs
            for source in self.graph.sources(v)
        }
        read |= {
            (p, d) for v, devices in self.joined.items() for p, _ in self.graph.joins[v] for d in devices
        }
        return {v for v, device in read if v in home and home[v] != device}

    def _bring(self, value: Value, device: int) -> None:
        """Make a value available on a device: wait for its producer and transfer it once."""
        if value not in self.made_in:
            if value in self.states_before:
                owner = self.home.setdefault(value, device)
                if owner != device:
                    raise CompileError(
                        f"state {value.name!r} is used on {self.targets[owner].name} and "
                        f"{self.targets[device].name}; pin its users to one device"
                    )
            self._bring_source(value, device)
            return
        owner, segment = self.made_in[value]
        if owner == device:
            return
        source = self.spec(value, owner)
        first_time = (value, device) not in self.spec_of
        self.await_segment(device, owner, segment)
        target = self._copy_spec(value, device)
        if first_time:
            source.shared = target.shared = True
            step = TransferStep(source.id, target.id, value.type.bytes, f"transfer {value.name}")
            self.open[device].steps.append(step)
            self.open[device].written.add(target.memory)
            self.touch(target)
        source.users.append((device, len(self.closed[device]), value))
        if source.whole is not None:
            source.whole.users.append((device, len(self.closed[device]), source.whole.value))

    def _is_moved_slice(self, value: Value, device: int) -> bool:
        """Whether a device needs a slice of what another one has made, and nothing else of it."""
        base = self.graph.base(value)
        if base not in self.graph.slices:
            return False
        whole = self.graph.slices[base][0]
        made_elsewhere = whole in self.made_in and self.made_in[whole][0] != device
        return made_elsewhere and whole not in self.part_of and (whole, device) not in self.read_whole

    def _bring_slice(self, value: Value, device: int) -> None:
        """Make a slice available on a device, without the rest of what it is a part of."""
        whole, offset = self.graph.slices[value]
        owner, segment = self.made_in[whole]
        source = self.spec(whole, owner)
        first_time = (value, device) not in self.spec_of
        self.await_segment(device, owner, segment)
        target = self._copy_spec(value, device)
        if first_time:
            source.shared = target.shared = True
            step = TransferStep(source.id, target.id, value.type.bytes, f"transfer {whole.name}", offset)
            self.open[device].steps.append(step)
            self.open[device].written.add(target.memory)
            self.touch(target)
        source.users.append((device, len(self.closed[device]), value))

    def _bring_source(self, value: Value, device: int) -> None:
        """Constants and states have a value per device; an input moves from its first device."""
        owner = self.home.setdefault(value, device)
        first_time = (value, device) not in self.spec_of
        if owner == device or value not in self.inputs:
            self.spec(value, device)
            return
        target = self._copy_spec(value, device)
        if first_time:
            step = TransferStep(
                self.spec(value, owner).id, target.id, value.type.bytes, f"input {value.name}"
            )
            self.open[device].steps.append(step)
            self.open[device].written.add(target.id)
        self.touch(target)

    def _copy_spec(self, value: Value, device: int) -> _Spec:
        key = (value, device)
        if key not in self.spec_of:
            self._add_spec(_Spec(len(self.specs), value, device, "transient"))
        return self.spec_of[key]

    def _dispatch(self, dispatch: Dispatch, device: int) -> None:
        places = [self._place(v, device) for v in (*dispatch.inputs, *dispatch.outputs)]
        specs = [self.spec(v, device) for v, _ in places]
        reads, writes = specs[: len(dispatch.inputs)], specs[len(dispatch.inputs) :]
        # Parts of one value are apart from each other: only who reads the whole waits for them.
        used = {s.memory for s in reads} | {s.id for s in writes}
        # What is overwritten in place may still be read by what comes before.
        if dispatch.in_place or used & self.open[device].written:
            self.barrier(device)
        kernel = self.kernels[dispatch]
        bindings = tuple(BindingSpec(s.id, at) for s, (_, at) in zip(specs, places, strict=True))
        for spec in specs:
            self.touch(spec)
        self.open[device].written.update(s.memory for s in writes)
        self.open[device].steps.append(
            DispatchStep(
                kernel.executable,
                kernel.entry,
                bindings,
                kernel.params,
                kernel.grid,
                dispatch.name,
                dispatch.location,
            )
        )

    def _place(self, value: Value, device: int) -> tuple[Value, DimLike]:
        """The value in whose memory a dispatch finds one that it names, and the byte where."""
        offset: DimLike = 0
        while (base := self.graph.base(value)) in self.graph.slices and (base, device) not in self.spec_of:
            value, at = self.graph.slices[base]
            offset = add(offset, at)
        return base, offset

    # Result ---------------------------------------------------------------------------------
    def _plan(self, decisions: Sequence[Decision], info: Mapping[str, str]) -> Plan:
        graph = self.graph.graph
        values = tuple(self._value_spec(s) for s in self.specs)
        devices = tuple(
            DeviceProgram(
                t.name,
                t.driver,
                t.target,
                t.executables,
                tuple(self.closed[i]),
                t.product_names,
                t.late_binding,
            )
            for i, t in enumerate(self.targets)
        )
        arenas = activation_arenas(values, len(devices))
        return Plan(
            name=graph.name,
            dims=tuple(graph.dims().values()),
            inputs=tuple(self._input(v) for v in graph.inputs),
            outputs=tuple(
                self._output(v, name) for v, name in zip(graph.outputs, graph.output_names, strict=True)
            ),
            values=(*values, *self._unused_inputs(len(values))),
            weights=tuple(self.weights.values()),
            devices=devices,
            states=tuple(self._state(s.before, s.after) for s in graph.states),
            asserts=tuple(self._assert(a) for a in self.graph.asserts),
            decisions=tuple(decisions),
            info={
                **info,
                **{
                    f"activations on {t.name}": describe(a) for t, a in zip(self.targets, arenas, strict=True)
                },
            },
        )

    def _value_spec(self, spec: _Spec) -> ValueSpec:
        last = spec.last
        for device, segment, value in spec.users:
            last = max(last, self._released(spec.device, device, self._last_read(value, device, segment)))
        return ValueSpec(
            spec.id,
            spec.value.name,
            spec.kind,
            spec.device,
            self._bytes(spec),
            spec.weight,
            spec.shared,
            spec.first or 0,
            last,
            None if spec.whole is None else spec.whole.id,
            0 if spec.whole is None else spec.offset,
        )

    def _bytes(self, spec: _Spec) -> DimLike:
        """Bytes of a value in memory: a constant may be packed."""
        if spec.kind != "constant":
            return spec.value.type.bytes
        weight = self.weights[spec.value]
        return (math.prod(weight.shape) * weight.dtype.bits + 7) // 8

    def _last_read(self, value: Value, device: int, segment: int) -> int:
        """The last segment of ``device`` that uses its view of the value."""
        spec = self.spec_of[value, device]
        starts = self.starts[device]
        while segment + 1 < len(starts) and starts[segment + 1] <= spec.last:
            segment += 1
        return segment

    def _released(self, owner: int, reader: int, segment: int) -> int:
        """The last epoch of the owner's queue before it is sure the reader's segment has ended."""
        for number, closed in enumerate(self.closed[owner]):
            if any(d == reader and s >= segment for d, s in closed.wait):
                return self.starts[owner][number] - 1
        return self.epoch[owner]

    def _unused_inputs(self, first: int) -> list[ValueSpec]:
        """Inputs no dispatch reads still need a value for the call."""
        used = {s.value for s in self.specs}
        unused = [v for v in self.graph.graph.inputs if v not in used]
        return [ValueSpec(first + i, v.name, "input", 0, v.type.bytes) for i, v in enumerate(unused)]

    def _input(self, value: Value) -> TensorSpec:
        first = next((s.id for s in self.specs if s.value is value), None)
        if first is None:
            used = {s.value for s in self.specs}
            unused = [v for v in self.graph.graph.inputs if v not in used]
            first = len(self.specs) + unused.index(value)
        return TensorSpec(value.name, value.type.dtype, value.type.shape, first)

    def _output(self, value: Value, name: str) -> TensorSpec:
        base = self.graph.base(value)
        spec = self.spec_of[base, self.home[base]]
        return TensorSpec(name, value.type.dtype, value.type.shape, spec.id)

    def _state(self, before: Value, after: Value) -> tuple[int, int]:
        base = self.graph.base(after)
        device = self.home.get(base, self.home.get(before, 0))
        return self.spec(before, device).id, self.spec(base, device).id

    def _assert(self, check: Assert) -> AssertSpec:
        base = self.graph.base(check.inputs[0])
        spec = self.spec_of[base, self.home[base]]
        return AssertSpec(spec.id, check.message, check.location.text)
