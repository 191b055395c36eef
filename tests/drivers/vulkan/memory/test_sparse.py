"""Sparse buffers: when a device has them, and the calls that make one."""

import dataclasses
from types import SimpleNamespace

import pytest
from support.vulkan_snapshots import DISCRETE, GIB, INTEGRATED, LIMITS

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.device_setup import can_be_sparse, make_setup
from mansard.drivers.vulkan.instance.queues import QueueSlot, assign_queues, with_sparse
from mansard.drivers.vulkan.instance.snapshot import QueueFamily
from mansard.drivers.vulkan.memory.sparse import SparseBinder
from mansard.errors import DeviceError, OutOfMemoryError

SPARSE_QUEUE = vk.VK_QUEUE_SPARSE_BINDING_BIT
FAMILIES = tuple(QueueFamily(f.flags | SPARSE_QUEUE, f.count, 64) for f in DISCRETE.queue_families)
ABLE = dataclasses.replace(
    DISCRETE,
    features=DISCRETE.features | {"sparseBinding"},
    limits={**LIMITS, "sparseAddressSpaceSize": 1 << 40, "maxBufferSize": 1 << 40},
    queue_families=FAMILIES,
    driver_id=0,
)


def test_sparse_buffers_are_for_those_who_ask():
    assert can_be_sparse(ABLE)
    plain, sparse = make_setup(ABLE), make_setup(ABLE, sparse=True)
    assert not plain.sparse and "sparseBinding" not in plain.enabled
    assert sparse.sparse and "sparseBinding" in sparse.enabled
    assert plain.limits["max_allocation"] == 4 * GIB
    assert sparse.limits["max_allocation"] == 140 * GIB
    assert plain.limits["memory_object"] == sparse.limits["memory_object"] == 4 * GIB


@pytest.mark.parametrize(
    "changes",
    [
        {"features": DISCRETE.features},
        {"queue_families": DISCRETE.queue_families},
        {"queue_families": tuple(QueueFamily(f.flags, 1, 64) for f in FAMILIES)},
        {"device_type": INTEGRATED.device_type, "memory_types": INTEGRATED.memory_types},
    ],
)
def test_devices_without(changes):
    snapshot = dataclasses.replace(ABLE, **changes)
    setup = make_setup(snapshot, sparse=True)
    assert not setup.sparse and setup.limits["max_allocation"] == setup.limits["memory_object"]


def test_a_queue_of_its_own():
    plain = assign_queues(ABLE)
    queues = with_sparse(plain, ABLE)
    assert queues.sparse == QueueSlot(0, 15) and queues.sparse not in plain.slots
    assert set(queues.slots) == {*plain.slots, queues.sparse}
    assert with_sparse(plain, DISCRETE) == plain


class Calls:
    """The Vulkan calls of one buffer; the allocation numbered ``fails`` does."""

    def __init__(self, fails=-1):
        self.fails, self.sizes, self.freed, self.destroyed, self.binds = fails, [], [], [], []

    def vkGetDeviceQueue(self, device, family, index, queue):
        self.slot = (family, index)

    def vkCreateBuffer(self, device, info, allocator, buffer):
        assert info._obj.flags == vk.VK_BUFFER_CREATE_SPARSE_BINDING_BIT
        self.size = info._obj.size
        buffer._obj.value = 77
        return 0

    def vkGetBufferMemoryRequirements(self, device, buffer, needed):
        needed._obj.alignment, needed._obj.memoryTypeBits = 65536, 0b10
        needed._obj.size = -(-self.size // 65536) * 65536

    def vkAllocateMemory(self, device, info, allocator, memory):
        if len(self.sizes) == self.fails:
            return vk.VK_ERROR_OUT_OF_DEVICE_MEMORY
        assert info._obj.memoryTypeIndex == 1
        self.sizes.append(info._obj.allocationSize)
        memory._obj.value = 100 + len(self.sizes)
        return 0

    def vkQueueBindSparse(self, queue, count, info, fence):
        whole = info._obj.pBufferBinds[0]
        assert whole.buffer == 77
        self.binds = [
            (whole.pBinds[i].resourceOffset, whole.pBinds[i].size, whole.pBinds[i].memory)
            for i in range(whole.bindCount)
        ]
        return 0

    def vkQueueWaitIdle(self, queue):
        return 0

    def vkGetBufferDeviceAddress(self, device, info):
        return 1 << 40

    def vkDestroyBuffer(self, device, buffer, allocator):
        self.destroyed.append(buffer)

    def vkFreeMemory(self, device, memory, allocator):
        self.freed.append(memory)


def binder(calls, queues=None):
    setup = dataclasses.replace(make_setup(ABLE, sparse=True), limits={"memory_object": 1_000_000})
    queues = queues or with_sparse(assign_queues(ABLE), ABLE)
    context = SimpleNamespace(
        commands=calls, handle=1, setup=setup, queues=queues, has_addresses=True, buffer_usage=32
    )
    return SparseBinder(context)


def test_memory_is_bound_from_end_to_end():
    calls = Calls()
    sparse = binder(calls).create(2_500_000)
    piece = 1_000_000 // 65536 * 65536
    assert calls.slot == (0, 15)
    assert calls.sizes == [piece, piece, sparse.size - 2 * piece]
    assert calls.binds == [(0, piece, 101), (piece, piece, 102), (2 * piece, calls.sizes[2], 103)]
    assert sparse.pieces == (101, 102, 103) and sparse.address == 1 << 40 and sparse.size >= 2_500_000
    assert not calls.freed and not calls.destroyed


def test_what_was_allocated_is_freed_when_the_rest_fails():
    calls = Calls(fails=2)
    with pytest.raises(OutOfMemoryError, match="of a sparse buffer"):
        binder(calls).create(2_500_000)
    assert calls.freed == [101, 102] and calls.destroyed == [77]


def test_a_device_opened_without_the_queue():
    with pytest.raises(DeviceError, match="without a queue for sparse binding"):
        binder(Calls(), assign_queues(ABLE))
