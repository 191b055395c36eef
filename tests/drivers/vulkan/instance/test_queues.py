"""The choice of queues, on made-up queue families."""

from __future__ import annotations

import dataclasses

import pytest
from support.vulkan_snapshots import COMPUTE, DISCRETE, GRAPHICS, INTEGRATED, LAVAPIPE, TRANSFER

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.queues import QueueAssignment, QueueSlot, assign_queues, can_time
from mansard.drivers.vulkan.instance.snapshot import QueueFamily, Snapshot

ALL = GRAPHICS | COMPUTE | TRANSFER
SPARSE = vk.VK_QUEUE_SPARSE_BINDING_BIT
VIDEO = 0x20  # VK_QUEUE_VIDEO_DECODE_BIT_KHR


def of(*families: QueueFamily) -> Snapshot:
    return dataclasses.replace(DISCRETE, queue_families=families)


def slots(family: int, *indices: int) -> tuple[QueueSlot, ...]:
    return tuple(QueueSlot(family, index) for index in indices)


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        (DISCRETE, QueueAssignment(QueueSlot(2, 0), QueueSlot(1, 0), more_compute=slots(2, 1, 2, 3))),
        (INTEGRATED, QueueAssignment(QueueSlot(0, 0), None)),
        (LAVAPIPE, QueueAssignment(QueueSlot(0, 0), None)),
        # A video engine can copy too, but it is another engine's.
        (
            of(
                QueueFamily(ALL, 1, 64),
                QueueFamily(TRANSFER | VIDEO, 1, 64),
                QueueFamily(TRANSFER | SPARSE, 2, 64),
            ),
            QueueAssignment(QueueSlot(0, 0), QueueSlot(2, 0)),
        ),
        (
            of(QueueFamily(ALL, 1, 64), QueueFamily(TRANSFER | VIDEO, 1, 64)),
            QueueAssignment(QueueSlot(0, 0), QueueSlot(1, 0)),
        ),
        # No engine for copies: a second queue of the family that computes.
        (
            of(QueueFamily(ALL, 4, 64)),
            QueueAssignment(QueueSlot(0, 0), QueueSlot(0, 1), more_compute=slots(0, 2)),
        ),
        (
            of(QueueFamily(ALL, 1, 64), QueueFamily(COMPUTE | TRANSFER, 4, 64)),
            QueueAssignment(QueueSlot(1, 0), QueueSlot(1, 1), more_compute=slots(1, 2)),
        ),
        (of(QueueFamily(ALL, 1, 64), QueueFamily(TRANSFER, 0, 64)), QueueAssignment(QueueSlot(0, 0), None)),
    ],
)
def test_queues_of_devices(snapshot: Snapshot, expected: QueueAssignment) -> None:
    queues = assign_queues(snapshot)
    assert queues == expected
    # The last queue of a family is left to sparse binding.
    last = QueueSlot(queues.compute.family, snapshot.queue_families[queues.compute.family].count - 1)
    assert last not in queues.more_compute


def test_families_share_buffers() -> None:
    assert assign_queues(DISCRETE).families == (2, 1)
    assert assign_queues(of(QueueFamily(ALL, 2, 64))).families == (0,)
    assert len(assign_queues(of(QueueFamily(ALL, 2, 64))).slots) == 2


def test_copy_engines_take_no_times() -> None:
    queues = assign_queues(DISCRETE)
    assert queues.transfer is not None
    assert can_time(DISCRETE, queues.compute)
    assert not can_time(DISCRETE, queues.transfer)
    without = dataclasses.replace(DISCRETE, features=DISCRETE.features - {"hostQueryReset"})
    assert not can_time(without, queues.compute)
