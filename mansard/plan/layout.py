"""Where every value of a plan lives, and which copies that takes: decided before any device is asked.

A *store* is one range of memory that a set of device slots can use; values that share memory share a
store. The decisions follow from the plan, from which devices share the host's memory, and from which
of them can use each other's buffers (`Links`); they hold for every shape.

 - Inputs and outputs of a late-binding device are the caller's arrays (*argument* stores).
 - Other devices read inputs from, and write outputs to, host-visible memory; a device with memory of
   own does so through a copy, for an input as early as it can, for an output once it is made.
 - A transfer between devices that share memory costs nothing: both values get one store. Otherwise
   the device with memory of its own copies, from or to memory that both can use.
 - What a device with a transfer queue copies for a segment may come while the segment before computes:
   the target is then taken from the arena that much earlier.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mansard.dims import DimLike, add
from mansard.errors import ArtifactError, DeviceError
from mansard.hal import MemoryKind
from mansard.plan.arena import FOREVER
from mansard.plan.memory_uses import ACTIVATIONS, INPUTS, OUTPUTS, STAGING
from mansard.plan.plan import Plan, TransferStep, ValueSpec
from mansard.plan.segments import Place, Segments


@dataclass(frozen=True)
class Links:
    """What the bound devices can do with each other's memory, by device slot."""

    names: tuple[str, ...]
    unified: tuple[bool, ...]
    late_binding: tuple[bool, ...]
    reach: tuple[tuple[bool, ...], ...]
    """``reach[a][b]``: slot b can use host-visible buffers that slot a allocated."""
    transfer_queue: tuple[bool, ...] = ()
    """Whether a slot copies beside its kernels; no slot does when left out."""


@dataclass(eq=False)
class Store:
    """One range of memory. ``first`` and ``last`` are epochs of the queue of slot ``home``."""

    role: str
    """arena (memory of the call), argument (the caller's array), constant or state."""
    home: int
    members: set[int]
    """The slots whose commands use it."""
    values: list[ValueSpec]
    first: int = 0
    last: int = FOREVER
    host_visible: bool = False
    source: int = -1
    """argument: the number of the input, or of the output when ``output``; constant: the weight."""
    output: bool = False
    allocator: int = -1
    use: str = ACTIVATIONS
    """What an arena store is for, in the words of the memory ledger."""

    @property
    def kind(self) -> MemoryKind:
        """The memory it needs."""
        shared = self.host_visible or len(self.members) > 1
        return MemoryKind.SHARED if shared else MemoryKind.DEVICE

    def keep(self) -> None:
        """Let no other value use the memory during a call."""
        self.first, self.last = 0, FOREVER


@dataclass(frozen=True, eq=False)
class CopyPlan:
    """Copy the bytes of ``value`` between two stores, by a device's own queue."""

    source: Store
    target: Store
    value: ValueSpec
    label: str
    made: Place | None = None
    """The segment that completes the source; None where the host has filled it before the call."""
    beside: int | None = None
    """For a copy before its kernels, the segment of its device from whose start on the target is free; None
    where it runs in the order of the queue."""
    after: CopyPlan | None = None
    """The copy that fills the source, which lies in memory that two devices use."""
    source_offset: DimLike = 0
    target_offset: DimLike = 0
    """The bytes of the stores at which the value begins."""


@dataclass
class Layout:
    """The decisions."""

    stores: list[Store] = field(default_factory=list)
    of_value: dict[int, Store] = field(default_factory=dict)
    offset_of: dict[int, DimLike] = field(default_factory=dict)
    """The byte of its store at which a value begins that is a part of another; 0 for those left out."""
    uploads: list[list[Store]] = field(default_factory=list)
    """For every input of the model, the stores the host fills at the start of a call."""
    readbacks: dict[int, Store] = field(default_factory=dict)
    """The store from which the host reads a value (an output or an assert) at the end of a call."""
    before: dict[tuple[int, int], list[CopyPlan]] = field(default_factory=dict)
    after: dict[tuple[int, int], list[CopyPlan]] = field(default_factory=dict)
    """Copies at the start and the end of (slot, segment)."""
    transfers: dict[tuple[int, int], CopyPlan | None] = field(default_factory=dict)
    """What a transfer step (source value, target value) does: a copy, or nothing."""
    sends: dict[tuple[int, int], CopyPlan] = field(default_factory=dict)
    """The copies by the source's device that transfer steps (source value, target value) rely on."""

    def arguments(self, slot: int) -> list[Store]:
        """The caller's arrays that a slot's commands name, by argument number."""
        return [store for store in self.stores if store.role == "argument" and store.home == slot]


def lay_out(plan: Plan, links: Links) -> Layout:
    """Decide. Raises ArtifactError for a plan that cannot be laid out, DeviceError when two devices
    that exchange data share no memory at all.
    """
    return _Planner(plan, links).run()


class _Planner:
    def __init__(self, plan: Plan, links: Links) -> None:
        self.plan, self.links, self.layout = plan, links, Layout()
        self.values = {value.id: value for value in plan.values}
        self.segments = Segments(plan)
        self.moves = _ordered_transfers(plan)

    def run(self) -> Layout:
        self.layout.uploads = [[] for _ in self.plan.inputs]
        self._place_states()
        self._place_sources()
        self._place_rest()
        for _, _, step in self.moves:
            self._share_part(self.values[step.source], self.values[step.target])
        for slot, number, step in self.moves:
            self._place_transfer(slot, number, step)
        for spec in self.plan.outputs:
            self._place_readback(spec.value)
        for check in self.plan.asserts:
            self._place_readback(check.value)
        for store in self.layout.stores:
            store.allocator = self._allocator(store.members, store.home)
        return self.layout

    # Stores -------------------------------------------------------------------------------------

    def _new(self, role: str, value: ValueSpec, slot: int | None = None) -> Store:
        home = value.device if slot is None else slot
        store = Store(role, home, {home}, [value])
        self.layout.stores.append(store)
        return store

    def _place_states(self) -> None:
        after = {exit_: entry for entry, exit_ in self.plan.states if exit_ != entry}
        for entry, _ in self.plan.states:
            if not isinstance(self.values[entry].bytes, int):
                raise ArtifactError(f"state {self.values[entry].name!r} has no fixed size")
            self.layout.of_value[entry] = self._new("state", self.values[entry])
        for exit_, entry in after.items():
            if self.values[exit_].device != self.values[entry].device:
                raise ArtifactError(f"state {self.values[entry].name!r} changes its device during a call")
        for value in self.plan.values:
            if value.kind == "state" and value.id not in self.layout.of_value and value.id not in after:
                raise ArtifactError(f"value {value.id} ({value.name}) is of kind state but no state names it")

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
        for _, _, step in self.moves:
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
                store = self._new("constant", values[0])
                store.source = number
            for value in values:
                self.layout.of_value[value.id] = store

    def _place_input(self, values: list[ValueSpec], number: int) -> Store:
        """The store of an input on one device, where it may go by several ids."""
        value, slot = values[0], values[0].device
        if self.links.late_binding[slot]:
            landing = self._new("argument", value)
            landing.source = number
        else:
            landing = self._new("arena", value)
            landing.host_visible, landing.use = True, INPUTS
            self.layout.uploads[number].append(landing)
        used = [n for v in values for n in self.segments.users(v.id, slot)]
        if self.links.unified[slot] or not used:
            return landing
        name = self.plan.inputs[number].name
        store = self._new("arena", value)
        store.use = INPUTS
        if landing.role == "arena":
            landing.use = STAGING
        self._copy(self.layout.before, (slot, min(used)), CopyPlan(landing, store, value, f"upload {name}"))
        return store

    def _place_rest(self) -> None:
        moved = {value for _, _, step in self.moves for value in (step.source, step.target)}
        moved |= {check.value for check in self.plan.asserts}
        moved |= {v.part_of for v in self.plan.values if v.id in moved and v.part_of is not None}
        outputs = [spec.value for spec in self.plan.outputs]
        for value in self.plan.values:
            if value.id in self.layout.of_value or value.part_of is not None:
                continue
            late = self.links.late_binding[value.device] and self.links.unified[value.device]
            if value.kind == "output" and value.id in outputs and late and value.id not in moved:
                store = self._new("argument", value)
                store.source, store.output = outputs.index(value.id), True
            else:
                store = self._new("arena", value)
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

    # Transfers ----------------------------------------------------------------------------------

    def _place_transfer(self, slot: int, number: int, step: TransferStep) -> None:
        key = (step.source, step.target)
        if key in self.layout.transfers:
            return
        if any(target == step.target for _, target in self.layout.transfers):
            raise ArtifactError(f"value {step.target} is the target of two transfers")
        source, target = self.values[step.source], self.values[step.target]
        if target.device != slot:
            raise ArtifactError(f"transfer {step.label!r} fills a value of another device")
        self.layout.transfers[key] = self._join(source, target, number, step.offset)

    def _join(
        self, source: ValueSpec, target: ValueSpec, number: int, offset: DimLike = 0
    ) -> CopyPlan | None:
        """Give two values one store or find the copies between theirs; the step's own copy is returned."""
        a, b = source.device, target.device
        here, there = self.layout.of_value[source.id], self.layout.of_value[target.id]
        begin, end = (self.layout.offset_of.get(value.id, 0) for value in (source, target))
        begin = add(begin, offset)
        unified = self.links.unified
        label = f"transfer {source.name}"
        if here is there and begin == end:
            return None
        whole = source.part_of is None and target.part_of is None
        shared = whole and unified[a] and unified[b] and there.role == "arena"
        if shared and self._fits(here.members | there.members):
            self._merge(here, there)
            if begin != 0:
                self.layout.offset_of[target.id] = begin
            return None
        if a == b:
            return CopyPlan(here, there, target, label, source_offset=begin, target_offset=end)
        made = (a, self._producer(source, b, number))
        if unified[a] and self._fits(here.members | {b}):
            here.members.add(b)
            copy = CopyPlan(here, there, target, label, made, source_offset=begin, target_offset=end)
            return self._fetch(copy, number)
        if unified[b] and there.role == "arena" and self._fits(there.members | {a}):
            there.members.add(a)
            if whole:
                # Written when the source is made: what has surely ended by then, and what that had waited
                # for, uses the memory no more.
                ended = max(0, self.segments.ended(*made, b))
                there.first = min(there.first, self.segments.start(b, ended))
            else:
                there.keep()
            copy = CopyPlan(here, there, target, label, made, source_offset=begin, target_offset=end)
            self._send((source.id, target.id), copy)
            return None
        if not self._fits({a, b}):
            names = f"{self.links.names[a]} and {self.links.names[b]}"
            raise DeviceError(f"{label}: devices {names} can use no common memory")
        middle = self._new("arena", target, a)
        middle.members.add(b)
        middle.use = STAGING
        if (
            source.kind == "transient" and whole
        ):  # as long as the source, whose users on other devices read this
            middle.first, middle.last = self.segments.start(*made), source.last
        first = CopyPlan(here, middle, target, label, made, source_offset=begin)
        send = self._send((source.id, target.id), first)
        copy = CopyPlan(middle, there, target, label, made, after=send, target_offset=end)
        return self._fetch(copy, number)

    def _send(self, step: tuple[int, int], copy: CopyPlan) -> CopyPlan:
        """Let the device that makes a value copy it once it is made."""
        assert copy.made is not None
        ends = (copy.source, copy.target, copy.source_offset, copy.target_offset)
        for other in self.layout.after.get(copy.made, ()):  # several devices' views of one part
            if (other.source, other.target, other.source_offset, other.target_offset) == ends:
                self.layout.sends[step] = other
                return other
        self._copy(self.layout.after, copy.made, copy)
        self.layout.sends[step] = copy
        return copy

    def _fetch(self, copy: CopyPlan, number: int) -> CopyPlan:
        """Let the device whose segment ``number`` needs a value copy it, early if it has a queue for that."""
        slot = copy.value.device
        if not any(self.links.transfer_queue[slot : slot + 1]) or copy.target.role != "arena":
            return copy  # in the order of the queue
        beside = self.segments.early(slot, number, copy.made)
        copy.target.first = min(copy.target.first, self.segments.start(slot, beside))
        return replace(copy, beside=beside)

    def _share_part(self, source: ValueSpec, target: ValueSpec) -> None:
        """Let a part be made where its whole lies on another device, if both devices can use one memory.

        Stores that have become one are named by no copy yet: these are found when all have.
        """
        here, there = self.layout.of_value[source.id], self.layout.of_value[target.id]
        begin, end = (self.layout.offset_of.get(value.id, 0) for value in (source, target))
        unified = self.links.unified[source.device] and self.links.unified[target.device]
        if target.part_of is None or here is there or not unified or {here.role, there.role} != {"arena"}:
            return
        alone = [value for value, store in self.layout.of_value.items() if store is here] == [source.id]
        if not self._fits(here.members | there.members) or (begin != end and not alone):
            return
        self._merge(there, here)
        # The other device writes whenever its turn comes: nothing else may lie there before.
        there.keep()
        self.layout.offset_of[source.id] = end

    def _merge(self, here: Store, there: Store) -> None:
        here.members |= there.members
        here.values += there.values
        if there.last == FOREVER and here.role == "arena":
            here.keep()
        here.host_visible |= there.host_visible
        self.layout.stores.remove(there)
        for value_id, store in self.layout.of_value.items():
            if store is there:
                self.layout.of_value[value_id] = here

    def _producer(self, source: ValueSpec, consumer: int, number: int) -> int:
        """The segment that completes the source: the last one to write it before the consumer starts."""
        slot = source.device
        waited = [
            segment
            for earlier in self.plan.devices[consumer].segments[: number + 1]
            for waited_slot, segment in earlier.wait
            if waited_slot == slot
        ]
        limit = max(waited, default=-1)
        written = [n for n in self.segments.writers(source.id, slot) if n <= limit]
        if not written:
            raise ArtifactError(
                f"value {source.id} ({source.name}) is transferred to {self.links.names[consumer]} "
                "before any segment it waits for has made it"
            )
        return written[-1]

    # The host's ends ------------------------------------------------------------------------------

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
            landing = self._new("argument", value)
            landing.source, landing.output = outputs.index(value_id), True
        else:
            landing = self._new("arena", value)
            landing.host_visible, landing.use = True, STAGING
        made = (value.device, written[-1])
        copy = CopyPlan(store, landing, value, f"download {value.name}", made)
        self._copy(self.layout.after, made, copy)
        self.layout.readbacks[value_id] = landing

    # Memory that several slots can use --------------------------------------------------------------

    def _fits(self, members: set[int]) -> bool:
        return any(all(self.links.reach[x][m] for m in members) for x in members)

    def _allocator(self, members: set[int], home: int) -> int:
        """The slot that allocates for all members; a device with buffers of its own kind goes first."""
        able = [x for x in sorted(members) if all(self.links.reach[x][m] for m in members)]
        bound = [x for x in able if not self.links.late_binding[x]]
        if home in able and (home in bound or not bound):
            return home
        return (bound or able)[0]

    def _copy(
        self, place: dict[tuple[int, int], list[CopyPlan]], where: tuple[int, int], copy: CopyPlan
    ) -> None:
        place.setdefault(where, []).append(copy)


def _ordered_transfers(plan: Plan) -> list[tuple[int, int, TransferStep]]:
    """Every transfer with its slot and segment, those that feed other transfers first."""
    pending = [
        (slot, number, step)
        for slot, device in enumerate(plan.devices)
        for number, segment in enumerate(device.segments)
        for step in segment.steps
        if isinstance(step, TransferStep)
    ]
    ordered: list[tuple[int, int, TransferStep]] = []
    while pending:
        targets = {step.target for _, _, step in pending}
        ready = [move for move in pending if move[2].source not in targets]
        if not ready:
            raise ArtifactError("transfers feed each other in a circle")
        ordered += ready
        pending = [move for move in pending if move[2].source in targets]
    return ordered
