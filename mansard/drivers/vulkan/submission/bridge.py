"""The C half of the driver, called through ctypes: a mirror of src/vulkan/bridge.h.

`tests/native/test_mirrors.py` compares the two.
"""

from __future__ import annotations

import ctypes
import functools

from mansard.hal import core_abi, native

DISPATCH, DISPATCH_IN_MEMORY, DISPATCH_WITH_SET, COPY, FILL, BARRIER = range(1, 7)
TIMESTAMP, LABEL, LABEL_END, LAUNCH = range(7, 11)
"""``mn_vk_op``: what a command of a recording is."""

CALLS = {
    "begin": "vkBeginCommandBuffer",
    "end": "vkEndCommandBuffer",
    "bind_pipeline": "vkCmdBindPipeline",
    "push_constants": "vkCmdPushConstants",
    "dispatch": "vkCmdDispatch",
    "copy": "vkCmdCopyBuffer",
    "fill": "vkCmdFillBuffer",
    "barrier": "vkCmdPipelineBarrier2",
    "reset_queries": "vkCmdResetQueryPool",
    "timestamp": "vkCmdWriteTimestamp2",
    "allocate_sets": "vkAllocateDescriptorSets",
    "update_sets": "vkUpdateDescriptorSets",
    "bind_sets": "vkCmdBindDescriptorSets",
    "push_set": "vkCmdPushDescriptorSetKHR",
    "begin_label": "vkCmdBeginDebugUtilsLabelEXT",
    "end_label": "vkCmdEndDebugUtilsLabelEXT",
    "launch": "vkCmdCuLaunchKernelNVX",
}
"""The Vulkan command behind every member of ``mn_vk_calls``, in its order."""


class VulkanQueueOptionsStruct(ctypes.Structure):
    """``mn_vk_options``."""

    _fields_ = (
        ("label", ctypes.c_char_p),
        ("device", ctypes.c_void_p),
        ("queue", ctypes.c_void_p),
        ("semaphore", ctypes.c_uint64),
        ("spin_ns", ctypes.c_uint64),
        ("submit", ctypes.c_void_p),
        ("wait", ctypes.c_void_p),
        ("counter", ctypes.c_void_p),
        ("sibling", ctypes.c_void_p),
    )


class CallsStruct(ctypes.Structure):
    """``mn_vk_calls``."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in CALLS)


class RecordingStruct(ctypes.Structure):
    """``mn_vk_recording``."""

    _fields_ = (
        ("calls", ctypes.POINTER(CallsStruct)),
        ("device", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("queries", ctypes.c_uint64),
        ("query_count", ctypes.c_uint64),
        ("tables", ctypes.c_void_p),
        ("tables_address", ctypes.c_uint64),
        ("set_pool", ctypes.c_uint64),
    )


_ptr, _u64, _i32 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int32
SIGNATURES: core_abi.Signatures = {
    "mn_vk_queue_create": (_ptr, (ctypes.POINTER(VulkanQueueOptionsStruct),)),
    "mn_vk_queue_core": (_ptr, (_ptr,)),
    "mn_vk_queue_release": (None, (_ptr,)),
    "mn_vk_inject": (ctypes.c_int, (ctypes.POINTER(_ptr), _u64, _u64, _i32)),
    "mn_vk_queue_let_go": (None, (_ptr,)),
    "mn_vk_record": (_i32, (ctypes.POINTER(RecordingStruct), _ptr, _u64)),
}


@functools.cache
def library() -> ctypes.CDLL:
    """The native core with the bridge's functions declared."""
    return native.declare(native.load_library(), SIGNATURES)
