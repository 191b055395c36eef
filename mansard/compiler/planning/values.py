"""The values of a plan under construction: which value is in whose memory, and when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mansard.dims import DimLike, add, representative
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.ir.types import Value


@dataclass
class DeviceValue:
    """A value on one device, before its lifetime is known."""

    id: int
    value: Value
    device: int
    kind: str
    weight: int | None = None
    shared: bool = False
    first: int | None = None
    """The first epoch of the device's queue that uses it."""
    last: int = 0
    remote_reads: list[tuple[int, int, Value]] = field(default_factory=list)
    """(device, segment, value as which it is read there) of other devices' reads."""
    whole: DeviceValue | None = None
    """The value of which it is a part, in whose memory it is."""
    offset: DimLike = 0

    @property
    def memory(self) -> int:
        """The id of the value whose memory it is in."""
        return self.id if self.whole is None else self.whole.id

    def touch(self, epoch: int) -> None:
        """Extend the lifetime to an epoch."""
        self.first = epoch if self.first is None else self.first
        self.last = max(self.last, epoch)
        if self.whole is not None:
            self.whole.touch(epoch)


class DeviceValues:
    """Every value of a dispatch graph on every device that needs it, in order of first use."""

    def __init__(
        self, graph: DispatchGraph, device_of: Mapping[Dispatch, int], weight_ids: Mapping[Value, int]
    ) -> None:
        self.graph, self.weight_ids = graph, weight_ids
        self.values: list[DeviceValue] = []
        self.by_device: dict[tuple[Value, int], DeviceValue] = {}
        self.home: dict[Value, int] = {}
        """The device that produces a value, or uses it first."""
        self.live = {graph.base(v) for v in graph.graph.live_outs()}
        self.inputs = frozenset(graph.graph.inputs)
        self.asserted = {graph.base(a.inputs[0]) for a in graph.asserts} - self.inputs
        self.states_before = {s.before for s in graph.graph.states}
        self.states_after = {graph.base(s.after) for s in graph.graph.states}
        in_place = {value for d in graph.dispatches for value in d.in_place}
        self._updated_in_place = {
            graph.base(s.after): s.before for s in graph.graph.states if s.before in in_place
        }
        self.part_of = {part: (v, at) for v, parts in graph.joins.items() for part, at in parts}
        self.joined = self._joined(device_of)

    def get(self, value: Value, device: int) -> DeviceValue:
        """The value on a device, created at its first use; one updated in place is the value it replaces."""
        value = self._updated_in_place.get(value, value)
        if (value, device) not in self.by_device:
            kind = self._kind(value)
            if value in self.joined and device != self.home.get(value, device):
                kind = "transient"
            self._add(value, device, kind, self.weight_ids.get(value))
        return self.by_device[value, device]

    def get_copy(self, value: Value, device: int) -> DeviceValue:
        """The copy of a value on a device that does not produce it."""
        if (value, device) not in self.by_device:
            self._add(value, device, "transient", None)
        return self.by_device[value, device]

    def place_of(self, value: Value, device: int) -> tuple[Value, DimLike]:
        """The value in whose memory a dispatch accesses an operand, and the byte offset there."""
        offset: DimLike = 0
        while (base := self.graph.base(value)) in self.graph.slices and (base, device) not in self.by_device:
            value, at = self.graph.slices[base]
            offset = add(offset, at)
        return base, offset

    def is_result(self, value: Value) -> bool:
        """Whether a value outlives the dispatches: an output, a state or an assertion's condition."""
        return value in self.live or value in self.asserted

    def _add(self, value: Value, device: int, kind: str, weight: int | None) -> None:
        entry = DeviceValue(len(self.values), value, device, kind, weight)
        self.values.append(entry)
        self.by_device[value, device] = entry
        if value in self.part_of:
            whole, entry.offset = self.part_of[value]
            if device in self.joined[whole]:
                entry.whole = self.get(whole, device)

    def _joined(self, device_of: Mapping[Dispatch, int]) -> dict[Value, list[int]]:
        """The devices that hold each joined value as a whole: those that read it; for a result that no
        dispatch
        reads, the device of its largest part."""
        holders: dict[Value, list[int]] = {value: [] for value in self.graph.joins}
        for dispatch in self.graph.dispatches:
            for value in dispatch.inputs:
                base, device = self.graph.whole(value), device_of[dispatch]
                if base in holders and device not in holders[base]:
                    holders[base].append(device)
        producers = {v: d for d in self.graph.dispatches for v in d.outputs}
        for value, devices in holders.items():
            parts = sorted(self.graph.joins[value], key=lambda p: -representative(p[0].type.elements))
            if not devices and self.is_result(value):
                devices.append(device_of[producers[parts[0][0]]])
            if devices:
                self.home[value] = devices[0]
        return holders

    def _kind(self, value: Value) -> str:
        if value in self.states_before or value in self.states_after:
            return "state"
        if value in self.weight_ids:
            return "constant"
        if value in self.inputs:
            return "input"
        return "output" if self.is_result(value) else "transient"
