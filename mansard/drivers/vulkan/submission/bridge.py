"""The C half of the driver (src/vulkan/bridge.c), called through ctypes."""

from __future__ import annotations

import ctypes
import functools

from mansard.hal import native


class QueueOptions(ctypes.Structure):
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


class Calls(ctypes.Structure):
    """``mn_vk_calls``."""

    _fields_ = (("address", ctypes.c_void_p * 16),)


class RecordingStruct(ctypes.Structure):
    """``mn_vk_recording``."""

    _fields_ = (
        ("calls", ctypes.POINTER(Calls)),
        ("device", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("queries", ctypes.c_uint64),
        ("query_count", ctypes.c_uint64),
        ("tables", ctypes.c_void_p),
        ("tables_address", ctypes.c_uint64),
        ("set_pool", ctypes.c_uint64),
    )


@functools.cache
def library() -> ctypes.CDLL:
    """The native core with the bridge's functions declared."""
    core = native.load_library()
    pointer, u64 = ctypes.c_void_p, ctypes.c_uint64
    signatures: dict[str, tuple[object, tuple[object, ...]]] = {
        "mn_vk_queue_create": (pointer, (ctypes.POINTER(QueueOptions),)),
        "mn_vk_queue_core": (pointer, (pointer,)),
        "mn_vk_queue_release": (None, (pointer,)),
        "mn_vk_queue_abandon": (None, (pointer,)),
        "mn_vk_queue_inject_failure": (None, (pointer, u64, ctypes.c_int32)),
        "mn_vk_queue_inject_hang": (None, (pointer, u64)),
        "mn_vk_queue_let_go": (None, (pointer,)),
        "mn_vk_record": (ctypes.c_int32, (ctypes.POINTER(RecordingStruct), pointer, u64)),
        "mn_vk_messages": (ctypes.c_size_t, (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_bool)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(core, name)
        function.restype, function.argtypes = result, arguments
    return core


def message_callback() -> int:
    """The address of the bridge's PFN_vkDebugUtilsMessengerCallbackEXT."""
    return ctypes.cast(library().mn_vk_message_callback, ctypes.c_void_p).value or 0


def read_messages(*, clear: bool) -> list[str]:
    """The messages collected from validation layers in this process."""
    text = ctypes.create_string_buffer(1 << 20)  # The bridge keeps no more.
    size = library().mn_vk_messages(text, len(text), clear)
    return text.raw[:size].decode(errors="replace").split("\0")[:-1]
