"""Queue families, and which queues of a device do what: pure functions of its snapshot."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.snapshot import Snapshot
from mansard.hal.device import QueueFamily

_WORK = vk.VK_QUEUE_GRAPHICS_BIT | vk.VK_QUEUE_COMPUTE_BIT
COMPUTE_QUEUES = 4
"""How many queues for kernels are opened at most. Kernels too small to fill a device overlap with those of
calls on other queues."""
_PLAIN = _WORK | vk.VK_QUEUE_TRANSFER_BIT | vk.VK_QUEUE_SPARSE_BINDING_BIT
"""A family that can do anything else (video, optical flow) belongs to another engine."""
_QUEUE_ABILITIES = {
    "graphics": vk.VK_QUEUE_GRAPHICS_BIT,
    "compute": vk.VK_QUEUE_COMPUTE_BIT,
    "transfer": vk.VK_QUEUE_TRANSFER_BIT,
    "sparse_binding": vk.VK_QUEUE_SPARSE_BINDING_BIT,
}


@dataclass(frozen=True)
class QueueSlot:
    """One queue of a family."""

    family: int
    index: int


@dataclass(frozen=True)
class QueueAssignment:
    """The queues to open: for kernels, and for copies that overlap with them (None: they share the first)."""

    compute: QueueSlot
    transfer: QueueSlot | None
    sparse: QueueSlot | None = None
    """Binds memory to sparse buffers, where they were asked for, and does nothing else."""
    more_compute: tuple[QueueSlot, ...] = ()
    """More queues for kernels, of the family of the first."""

    @property
    def slots(self) -> tuple[QueueSlot, ...]:
        """The queues to ask the device for, without repetition."""
        slots = (self.compute, self.transfer, self.sparse, *self.more_compute)
        return tuple(dict.fromkeys(slot for slot in slots if slot is not None))

    @property
    def families(self) -> tuple[int, ...]:
        """The families of those queues: all of them may use every buffer."""
        return tuple(dict.fromkeys(slot.family for slot in self.slots))


def assign_queues(snapshot: Snapshot) -> QueueAssignment:
    """The queues of a device that has a compute family.

    Copies go to a family that can do nothing else: those are the copy engines of discrete devices, which
    move data over the bus while kernels run. Where there is none, a second queue of the compute family
    lets copies of one call overlap with kernels of another; otherwise all work shares one queue. What is
    left of the compute family, but for its last queue, which `with_sparse` may take, is for kernels.
    """
    family = choose_queue_family(snapshot)
    assert family is not None, "a device without a compute family is below the baseline"
    compute = QueueSlot(family, 0)
    engines = [
        index
        for index, each in enumerate(snapshot.queue_families)
        if each.count and each.flags & vk.VK_QUEUE_TRANSFER_BIT and not each.flags & _WORK
    ]
    engines.sort(key=lambda index: bool(snapshot.queue_families[index].flags & ~_PLAIN))
    count = snapshot.queue_families[family].count
    free = [QueueSlot(family, index) for index in range(1, count)]
    transfer = QueueSlot(engines[0], 0) if engines else free.pop(0) if free else None
    return QueueAssignment(compute, transfer, more_compute=tuple(free[:-1][: COMPUTE_QUEUES - 1]))


def with_sparse(queues: QueueAssignment, snapshot: Snapshot) -> QueueAssignment:
    """The assignment with a queue for sparse binding: the last of a family with more than the others use."""
    family = sparse_family(snapshot)
    if family is None:
        return queues
    slot = QueueSlot(family, snapshot.queue_families[family].count - 1)
    return replace(queues, sparse=slot)


def can_time(snapshot: Snapshot, slot: QueueSlot) -> bool:
    """Whether recordings for a queue may reset and write timestamps: queues of copy engines may not."""
    family = snapshot.queue_families[slot.family]
    return bool(family.flags & _WORK and family.timestamp_bits and "hostQueryReset" in snapshot.features)


def choose_queue_family(snapshot: Snapshot) -> int | None:
    """A compute family, preferably one without graphics (it does not compete with the display)."""
    families = [
        (bool(family.flags & vk.VK_QUEUE_GRAPHICS_BIT), index)
        for index, family in enumerate(snapshot.queue_families)
        if family.flags & vk.VK_QUEUE_COMPUTE_BIT and family.count
    ]
    return min(families)[1] if families else None


def sparse_family(snapshot: Snapshot) -> int | None:
    """A family that binds memory to sparse buffers and has a third queue, which no other work uses."""
    for index, family in enumerate(snapshot.queue_families):
        if family.flags & vk.VK_QUEUE_SPARSE_BINDING_BIT and family.count > 2:
            return index
    return None


def timestamp_bits(snapshot: Snapshot, family: int) -> int:
    """Valid bits of a family's timestamps; 0 when it has none or the host cannot reset queries."""
    return snapshot.queue_families[family].timestamp_bits if "hostQueryReset" in snapshot.features else 0


def describe_queues(snapshot: Snapshot) -> tuple[QueueFamily, ...]:
    """The queue families as listed in DeviceInfo, in Vulkan's order."""
    return tuple(
        QueueFamily(
            family.count,
            tuple(name for name, bit in _QUEUE_ABILITIES.items() if family.flags & bit),
            timestamp_bits(snapshot, index) > 0,
        )
        for index, family in enumerate(snapshot.queue_families)
    )
