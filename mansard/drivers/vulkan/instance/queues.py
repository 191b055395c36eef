"""Which queues of a device do what: a pure function of its snapshot."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.device_plan import choose_queue_family, sparse_family
from mansard.drivers.vulkan.instance.snapshot import Snapshot

_WORK = vk.VK_QUEUE_GRAPHICS_BIT | vk.VK_QUEUE_COMPUTE_BIT
COMPUTE_QUEUES = 4
"""How many queues for kernels are opened at most. Kernels that are too small for a device run beside those of
calls on other queues."""
_PLAIN = _WORK | vk.VK_QUEUE_TRANSFER_BIT | vk.VK_QUEUE_SPARSE_BINDING_BIT
"""A family that can do anything else (video, optical flow) belongs to another engine."""


@dataclass(frozen=True)
class QueueSlot:
    """One queue of a family."""

    family: int
    index: int


@dataclass(frozen=True)
class QueuePlan:
    """The queues to open: for kernels, and for copies beside them (None: there is only the first)."""

    compute: QueueSlot
    transfer: QueueSlot | None
    sparse: QueueSlot | None = None
    """Binds memory to sparse buffers, where they were asked for, and does nothing else."""
    beside: tuple[QueueSlot, ...] = ()
    """More queues for kernels, of the family of the first."""

    @property
    def slots(self) -> tuple[QueueSlot, ...]:
        """The queues to ask the device for, without repetition."""
        wanted = (self.compute, self.transfer, self.sparse, *self.beside)
        return tuple(dict.fromkeys(slot for slot in wanted if slot is not None))

    @property
    def families(self) -> tuple[int, ...]:
        """The families of those queues: all of them may use every buffer."""
        return tuple(dict.fromkeys(slot.family for slot in self.slots))


def plan_queues(snapshot: Snapshot) -> QueuePlan:
    """The queues of a device that has a compute family.

    Copies go to a family that can do nothing else: those are the copy engines of discrete devices, which
    move data over the bus while kernels run. Where there is none, a second queue of the compute family
    lets copies of one call run beside kernels of another; and else all work shares one queue. What is left of
    the compute family, but for its last queue, which `with_sparse` may take, is for kernels.
    """
    family = choose_queue_family(snapshot)
    assert family is not None, "a device without a compute family is below the baseline"
    compute = QueueSlot(family, 0)
    engines = [
        index
        for index, found in enumerate(snapshot.queue_families)
        if found.count and found.flags & vk.VK_QUEUE_TRANSFER_BIT and not found.flags & _WORK
    ]
    engines.sort(key=lambda index: bool(snapshot.queue_families[index].flags & ~_PLAIN))
    count = snapshot.queue_families[family].count
    free = [QueueSlot(family, index) for index in range(1, count)]
    transfer = QueueSlot(engines[0], 0) if engines else free.pop(0) if free else None
    return QueuePlan(compute, transfer, beside=tuple(free[:-1][: COMPUTE_QUEUES - 1]))


def with_sparse(plan: QueuePlan, snapshot: Snapshot) -> QueuePlan:
    """The plan with a queue for sparse binding: the last of a family that has more than the others use."""
    family = sparse_family(snapshot)
    if family is None:
        return plan
    slot = QueueSlot(family, snapshot.queue_families[family].count - 1)
    return replace(plan, sparse=slot)


def can_time(snapshot: Snapshot, slot: QueueSlot) -> bool:
    """Whether recordings for a queue may reset and write timestamps: queues of copy engines may not."""
    family = snapshot.queue_families[slot.family]
    return bool(family.flags & _WORK and family.timestamp_bits and "hostQueryReset" in snapshot.features)
