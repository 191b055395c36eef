"""The choice of queues, on made-up queue families."""

from __future__ import annotations

import dataclasses

import pytest
from support.vulkan_snapshots import COMPUTE, DISCRETE, GRAPHICS, INTEGRATED, LAVAPIPE, TRANSFER

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.queues import QueuePlan, QueueSlot, can_time, plan_queues
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
        (DISCRETE, QueuePlan(QueueSlot(2, 0), QueueSlot(1, 0), beside=slots(2, 1, 2, 3))),
        (INTEGRATED, QueuePlan(QueueSlot(0, 0), None)),
        (LAVAPIPE, QueuePlan(QueueSlot(0, 0), None)),
        # A video engine can copy too, but it is another engine's.
        (
            of(
                QueueFamily(ALL, 1, 64),
                QueueFamily(TRANSFER | VIDEO, 1, 64),
                QueueFamily(TRANSFER | SPARSE, 2, 64),
            ),
            QueuePlan(QueueSlot(0, 0), QueueSlot(2, 0)),
        ),
        (
            of(QueueFamily(ALL, 1, 64), QueueFamily(TRANSFER | VIDEO, 1, 64)),
            QueuePlan(QueueSlot(0, 0), QueueSlot(1, 0)),
        ),
        # No engine for copies: a second queue of the family that computes.
        (of(QueueFamily(ALL, 4, 64)), QueuePlan(QueueSlot(0, 0), QueueSlot(0, 1), beside=slots(0, 2))),
        (
            of(QueueFamily(ALL, 1, 64), QueueFamily(COMPUTE | TRANSFER, 4, 64)),
            QueuePlan(QueueSlot(1, 0), QueueSlot(1, 1), beside=slots(1, 2)),
        ),
        (of(QueueFamily(ALL, 1, 64), QueueFamily(TRANSFER, 0, 64)), QueuePlan(QueueSlot(0, 0), None)),
    ],
)
def test_queues_of_devices(snapshot: Snapshot, expected: QueuePlan) -> None:
    plan = plan_queues(snapshot)
    assert plan == expected
    # The last queue of a family is left to sparse binding.
    last = QueueSlot(plan.compute.family, snapshot.queue_families[plan.compute.family].count - 1)
    assert last not in plan.beside


def test_families_share_buffers() -> None:
    assert plan_queues(DISCRETE).families == (2, 1)
    assert plan_queues(of(QueueFamily(ALL, 2, 64))).families == (0,)
    assert len(plan_queues(of(QueueFamily(ALL, 2, 64))).slots) == 2


def test_copy_engines_take_no_times() -> None:
    plan = plan_queues(DISCRETE)
    assert plan.transfer is not None
    assert can_time(DISCRETE, plan.compute)
    assert not can_time(DISCRETE, plan.transfer)
    without = dataclasses.replace(DISCRETE, features=DISCRETE.features - {"hostQueryReset"})
    assert not can_time(without, plan.compute)
