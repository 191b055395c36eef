"""The plan as data, from values and queues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mansard.compiler.planning.activations import activation_arenas, describe
from mansard.compiler.planning.inputs import DeviceTarget
from mansard.compiler.planning.queues import Queues
from mansard.compiler.planning.values import DeviceValue, DeviceValues
from mansard.dims import DimLike
from mansard.ir.dispatch import DispatchGraph
from mansard.ir.ops import Assert
from mansard.ir.types import Value
from mansard.plan.plan import AssertSpec, Decision, DeviceProgram, Plan, TensorSpec, ValueSpec, WeightSpec


class Assembler:
    """Makes the plan when every dispatch has its step."""

    def __init__(
        self,
        graph: DispatchGraph,
        values: DeviceValues,
        queues: Queues,
        weights: Mapping[Value, WeightSpec],
    ) -> None:
        self.graph, self.values, self.queues, self.weights = graph, values, queues, weights

    def assemble(
        self, targets: Sequence[DeviceTarget], decisions: Sequence[Decision], info: Mapping[str, str]
    ) -> Plan:
        """The plan, with what `info` tells about its compilation."""
        graph = self.graph.graph
        states = tuple(self._state(s.before, s.after) for s in graph.states)
        values = tuple(self._value_spec(v) for v in self.values.values)
        arenas = zip(targets, activation_arenas(values, len(targets)), strict=True)
        return Plan(
            name=graph.name,
            dims=tuple(graph.dims().values()),
            inputs=tuple(self._input(v) for v in graph.inputs),
            outputs=tuple(
                self._output(v, name) for v, name in zip(graph.outputs, graph.output_names, strict=True)
            ),
            values=(*values, *self._unused_inputs(len(values))),
            weights=tuple(self.weights.values()),
            devices=tuple(self._program(number, target) for number, target in enumerate(targets)),
            states=states,
            asserts=tuple(self._assert(a) for a in self.graph.asserts),
            constraints=graph.constraints,
            decisions=tuple(decisions),
            info={**info, **{f"activations on {t.name}": describe(arena) for t, arena in arenas}},
        )

    def _program(self, number: int, target: DeviceTarget) -> DeviceProgram:
        return DeviceProgram(
            target.name,
            target.driver,
            target.target,
            target.executables,
            tuple(self.queues.segments[number]),
            target.product_names,
            target.late_binding,
        )

    def _value_spec(self, entry: DeviceValue) -> ValueSpec:
        last = entry.last
        for device, segment, value in entry.remote_reads:
            copy = self.values.by_device[value, device]
            last_read = self.queues.last_segment(device, segment, copy.last)
            last = max(last, self.queues.release_epoch(entry.device, device, last_read))
        return ValueSpec(
            entry.id,
            entry.value.name,
            entry.kind,
            entry.device,
            self._bytes(entry),
            entry.weight,
            entry.shared,
            entry.first or 0,
            last,
            None if entry.whole is None else entry.whole.id,
            0 if entry.whole is None else entry.offset,
        )

    def _bytes(self, entry: DeviceValue) -> DimLike:
        """Bytes of a value in memory: a constant may be packed."""
        if entry.kind != "constant":
            return entry.value.type.bytes
        weight = self.weights[entry.value]
        return (math.prod(weight.shape) * weight.dtype.bits + 7) // 8

    def _unused_inputs(self, first: int) -> list[ValueSpec]:
        """Inputs that no dispatch reads, which still need a value for the call."""
        return [ValueSpec(first + i, v.name, "input", 0, v.type.bytes) for i, v in enumerate(self._unused())]

    def _unused(self) -> list[Value]:
        used = {entry.value for entry in self.values.values}
        return [v for v in self.graph.graph.inputs if v not in used]

    def _input(self, value: Value) -> TensorSpec:
        number = next((entry.id for entry in self.values.values if entry.value is value), None)
        if number is None:
            number = len(self.values.values) + self._unused().index(value)
        return TensorSpec(value.name, value.type.dtype, value.type.shape, number)

    def _output(self, value: Value, name: str) -> TensorSpec:
        return TensorSpec(name, value.type.dtype, value.type.shape, self._at_home(value).id)

    def _at_home(self, value: Value) -> DeviceValue:
        base = self.graph.base(value)
        return self.values.by_device[base, self.values.home[base]]

    def _state(self, before: Value, after: Value) -> tuple[int, int]:
        base, home = self.graph.base(after), self.values.home
        device = home.get(base, home.get(before, 0))
        return self.values.get(before, device).id, self.values.get(base, device).id

    def _assert(self, check: Assert) -> AssertSpec:
        (value,) = check.inputs
        base = self.graph.base(value)
        number = self._input(base).value if base in self.graph.graph.inputs else self._at_home(value).id
        limits = None if check.limits is None else (check.limits[0], check.limits[1])
        place = check.location.text
        return AssertSpec(number, check.message, place, limits, value.type.dtype)
