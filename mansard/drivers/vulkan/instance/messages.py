"""Messages of validation layers, collected by the native core (src/vulkan/messages.c)."""

from __future__ import annotations

import ctypes
import functools

from mansard.hal import core_abi, native

SIGNATURES: core_abi.Signatures = {
    "mn_vk_messages": (ctypes.c_size_t, (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_bool)),
}
"""Result and arguments by function, as in src/vulkan/bridge.h."""


@functools.cache
def library() -> ctypes.CDLL:
    """The native core with the functions declared."""
    return native.declare(native.load_library(), SIGNATURES)


def message_callback() -> int:
    """The address of the bridge's PFN_vkDebugUtilsMessengerCallbackEXT."""
    return ctypes.cast(library().mn_vk_message_callback, ctypes.c_void_p).value or 0


def read_messages(*, clear: bool) -> list[str]:
    """The messages collected from validation layers in this process."""
    text = ctypes.create_string_buffer(1 << 20)  # The bridge keeps no more.
    size = library().mn_vk_messages(text, len(text), clear)
    return text.raw[:size].decode(errors="replace").split("\0")[:-1]
