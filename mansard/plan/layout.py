"""Where every value of a plan lives: decided before any device is asked.

The decisions follow from the plan, from which devices share the host's memory, and from which of them can use
each other's buffers (`Links`); they hold for every shape.

 - Inputs and outputs of a late-binding device are the caller's arrays (*argument* stores).
 - Other devices read inputs from, and write outputs to, host-visible memory; a device with memory of its own
   does so through a copy, for an input as early as it can, for an output once it is computed.
 - Transfers between devices: see `copies`.
"""

from __future__ import annotations

from mansard.errors import ArtifactError
from mansard.hal import MemoryKind
from mansard.plan.copies import TransferPlanner, ordered_transfers
from mansard.plan.memory_uses import INPUTS, OUTPUTS, STAGING
from mansard.plan.plan import Plan, ValueSpec
from mansard.plan.segments import SegmentIndex
from mansard.plan.stores import Layout, Links, Store, StoreCopy


def lay_out(plan: Plan, links: Links) -> Layout:
    """Decide. Raises ArtifactError for a plan that cannot be laid out, DeviceError when two devices
    that exchange data share no memory at all.
    """
    return _LayoutBuilder(plan, links).run()


class _LayoutBuilder:
    def __init__(self, plan: Plan, links: Links) -> None:
        self.plan, self.links, self.layout = plan, links, Layout()
        self.values = {value.id: value for value in plan.values}
        self.segments = SegmentIndex(plan)
        self.transfers = [step for _, _, step in ordered_transfers(plan)]

    def run(self) -> Layout:
        self.layout.uploads = [[] for _ in self.plan.inputs]
        self._place_states()
        self._place_sources()
        self._place_rest()
        TransferPlanner(self.plan, self.links, self.layout, self.segments).run()
        for spec in self.plan.outputs:
            self._place_readback(spec.value)
        for check in self.plan.computed_asserts:
            self._place_readback(check.value)
        for store in self.layout.stores:
            store.allocator = self.links.allocator(store.members, store.home)
        return self.layout

    def _place_states(self) -> None:
        after = {exit_: entry for entry, exit_ in self.plan.states if exit_ != entry}
        for entry, _ in self.plan.states:
            if not isinstance(self.values[entry].bytes, int):
                raise ArtifactError(f"state {self.values[entry].name!r} has no fixed size")
            store = self.layout.new_store("state", self.values[entry])
            self.layout.of_value[entry] = store
            if self.values[entry].shared:
                store.members |= self._sharing(store.home)
        for exit_, entry in after.items():
            if self.values[exit_].device != self.values[entry].device:
                raise ArtifactError(f"state {self.values[entry].name!r} changes its device during a call")
        for value in self.plan.values:
            if value.kind == "state" and value.id not in self.layout.of_value and value.id not in after:
                raise ArtifactError(f"value {value.id} ({value.name}) is of kind state but no state names it")

    def _sharing(self, home: int) -> set[int]:
        """The slots that can use a state of another slot, in memory of the host that both reach."""
        unified = self.links.unified
        return {
            slot
            for slot in range(len(unified))
            if unified[home] and unified[slot] and self.links.have_common_memory({home, slot})
        }

    def _place_sources(self) -> None:
        """Inputs and constants, with the copies of them that transfers would make on other devices.

        These are filled from the host's original on every device, so that no device waits for another.
        """
        origin: dict[int, tuple[str, int]] = {}
        for number, spec in enumerate(self.plan.inputs):
            origin[spec.value] = ("input", number)
        for value in self.plan.values:
            if value.kind == "constant" and value.weight is not None:
                origin[value.id] = ("weight", value.weight)
        for step in self.transfers:
            if step.source in origin:
                origin[step.target] = origin[step.source]
                self.layout.transfers[step.source, step.target] = None
        groups: dict[tuple[str, int, int], list[ValueSpec]] = {}
        for value_id, (what, number) in origin.items():
            value = self.values[value_id]
            groups.setdefault((what, number, value.device), []).append(value)
        for (what, number, _), values in groups.items():
            if what == "input":
                store = self._place_input(values, number)
            else:
                store = self.layout.new_store("constant", values[0])
                store.source = number
            for value in values:
                self.layout.of_value[value.id] = store

    def _place_input(self, values: list[ValueSpec], number: int) -> Store:
        """The store of an input on one device, where it may go by several ids."""
        value, slot = values[0], values[0].device
        if self.links.late_binding[slot]:
            host_store = self.layout.new_store("argument", value)
            host_store.source = number
        else:
            host_store = self.layout.new_store("arena", value)
            host_store.host_visible, host_store.use = True, INPUTS
            self.layout.uploads[number].append(host_store)
        users = [n for v in values for n in self.segments.users(v.id, slot)]
        if self.links.unified[slot] or not users:
            return host_store
        name = self.plan.inputs[number].name
        store = self.layout.new_store("arena", value)
        store.use = INPUTS
        if host_store.role == "arena":
            host_store.use = STAGING
        copy = StoreCopy(host_store, store, value, f"upload {name}")
        self.layout.copies_before.setdefault((slot, min(users)), []).append(copy)
        return store

    def _place_rest(self) -> None:
        transferred = {value for step in self.transfers for value in (step.source, step.target)}
        transferred |= {check.value for check in self.plan.computed_asserts}
        transferred |= {v.part_of for v in self.plan.values if v.id in transferred and v.part_of is not None}
        outputs = [spec.value for spec in self.plan.outputs]
        for value in self.plan.values:
            if value.id in self.layout.of_value or value.part_of is not None:
                continue
            late = self.links.late_binding[value.device] and self.links.unified[value.device]
            if value.kind == "output" and value.id in outputs and late and value.id not in transferred:
                store = self.layout.new_store("argument", value)
                store.source, store.output = outputs.index(value.id), True
            else:
                store = self.layout.new_store("arena", value)
                store.host_visible = value.shared and self.links.unified[value.device]
                if value.kind == "transient":
                    store.first, store.last = value.first, value.last
            self.layout.of_value[value.id] = store
        for value in self.plan.values:
            if value.part_of is not None:
                self.layout.of_value[value.id] = self.layout.of_value[value.part_of]
                self.layout.offset_of[value.id] = value.part_offset
        for entry, exit_ in self.plan.states:
            if exit_ != entry and self.layout.of_value[exit_].role == "arena":
                self.layout.of_value[exit_].keep()

    def _place_readback(self, value_id: int) -> None:
        store, value = self.layout.of_value[value_id], self.values[value_id]
        if value_id in self.layout.readbacks:
            return
        if store.role in ("argument", "constant"):
            self.layout.readbacks[value_id] = store
            return
        if store.role == "arena":
            store.keep()
            store.use = OUTPUTS
        if self.links.unified[store.home] or store.kind is MemoryKind.SHARED:
            store.host_visible = True
            self.layout.readbacks[value_id] = store
            return
        written = self.segments.writers(value_id, value.device)
        if not written:
            raise ArtifactError(f"output value {value_id} ({value.name}) is never computed")
        outputs = [spec.value for spec in self.plan.outputs]
        if self.links.late_binding[value.device] and value_id in outputs:
            host_store = self.layout.new_store("argument", value)
            host_store.source, host_store.output = outputs.index(value_id), True
        else:
            host_store = self.layout.new_store("arena", value)
            host_store.host_visible, host_store.use = True, STAGING
        producer = (value.device, written[-1])
        copy = StoreCopy(store, host_store, value, f"download {value.name}", producer)
        self.layout.copies_after.setdefault(producer, []).append(copy)
        self.layout.readbacks[value_id] = host_store
