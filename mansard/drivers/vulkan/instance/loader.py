"""The Vulkan loader and an instance of it."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance import faults
from mansard.drivers.vulkan.instance.results import check, result_name
from mansard.drivers.vulkan.instance.snapshot import enumerate_all

VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
DEBUG_UTILS = "VK_EXT_debug_utils"
LIBRARIES = {
    "win32": ("vulkan-1.dll",),
    "darwin": ("libvulkan.dylib", "libvulkan.1.dylib", "libMoltenVK.dylib"),
}


_NOT_OURS = "WARNING-vkGetDeviceProcAddr-device"
"""An older loader asks a newer layer for commands that are none of a device; Mansard does not."""


class LoaderError(Exception):
    """Why there is no Vulkan instance; becomes the reasons of a DeviceInfo."""


class Instance:
    """A VkInstance and its commands. It lives as long as the process: devices hang on it.

    With ``validation`` the Khronos validation layer is on; what it reports is in `messages`.
    Raises LoaderError.
    """

    def __init__(self, *, validation: bool = False) -> None:
        self._library = _load_library()
        try:
            get_address = self._library.vkGetInstanceProcAddr
        except AttributeError as error:
            raise LoaderError(f"{self._library._name} is no Vulkan loader: {error}") from error
        get_address.restype = ctypes.c_void_p
        get_address.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
        try:
            self._globals = vk.GlobalCommands(lambda name: get_address(None, name.encode()))
        except LookupError as error:
            raise LoaderError(f"the Vulkan loader is too old: {error}") from error
        self.validation = validation
        self.layer_version = 0
        """The version of Vulkan that the validation layer knows; 0 without validation."""
        self.handle = self._create(validation)
        self.commands = vk.InstanceCommands(lambda name: get_address(self.handle, name.encode()))
        if validation:
            self._listen()

    def _create(self, validation: bool) -> int:
        version = ctypes.c_uint32()
        self._globals.vkEnumerateInstanceVersion(ctypes.byref(version))
        if version.value < vk.VK_API_VERSION_1_3:
            raise LoaderError("the Vulkan loader knows no Vulkan 1.3; install a newer one")
        layers = [VALIDATION_LAYER] if validation else []
        extensions = [DEBUG_UTILS] if validation else []
        if validation:
            installed = self._layers()
            if VALIDATION_LAYER not in installed:
                raise LoaderError(
                    f"validation was asked for, but the layer {VALIDATION_LAYER} is not installed"
                )
            self.layer_version = installed[VALIDATION_LAYER]
        application = vk.VkApplicationInfo(pEngineName=b"mansard", apiVersion=vk.VK_API_VERSION_1_3)
        info = vk.VkInstanceCreateInfo(
            pApplicationInfo=ctypes.pointer(application),
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=string_array(layers),
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=string_array(extensions),
        )
        handle = ctypes.c_void_p()
        result = self._globals.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(handle))
        if result == vk.VK_ERROR_INCOMPATIBLE_DRIVER:
            raise LoaderError("no Vulkan driver is installed (VK_ERROR_INCOMPATIBLE_DRIVER)")
        if result < 0 or handle.value is None:
            raise LoaderError(f"vkCreateInstance failed: {result_name(result)}")
        return handle.value

    def _listen(self) -> None:
        """Collect the validation layer's warnings and errors."""
        from mansard.drivers.vulkan.instance.messages import message_callback

        info = vk.VkDebugUtilsMessengerCreateInfoEXT(
            messageSeverity=vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT
            | vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
            messageType=vk.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
            pfnUserCallback=message_callback(),
        )
        messenger = ctypes.c_uint64()
        check(
            self.commands.vkCreateDebugUtilsMessengerEXT(
                self.handle, ctypes.byref(info), None, ctypes.byref(messenger)
            ),
            "listening to the validation layer",
        )

    def messages(self, *, clear: bool = False) -> list[str]:
        """What validation layers have reported in this process; empty without validation."""
        if not self.validation:
            return []
        from mansard.drivers.vulkan.instance.messages import read_messages

        return [text for text in read_messages(clear=clear) if not text.startswith(_NOT_OURS)]

    def _layers(self) -> dict[str, int]:
        """The layers installed, each with the version of Vulkan it was written for."""
        layers = enumerate_all(
            self._globals.vkEnumerateInstanceLayerProperties, vk.VkLayerProperties, "listing layers"
        )
        return {item.layerName.decode(): item.specVersion for item in layers}

    def physical_devices(self) -> list[int]:
        """Handles of all physical devices, in the loader's order."""
        handles = enumerate_all(
            lambda count, items: self.commands.vkEnumeratePhysicalDevices(self.handle, count, items),
            ctypes.c_void_p,
            "listing physical devices",
        )
        return [handle for handle in handles if handle]

    def device_commands(self, device: int) -> vk.DeviceCommands:
        """The commands of a device, called without going through the loader."""
        return faults.opened(
            vk.DeviceCommands(lambda name: self.commands.vkGetDeviceProcAddr(device, name.encode()))
        )

    def create_device(self, physical: int, info: Any) -> int:
        """vkCreateDevice; raises DeviceError."""
        handle = ctypes.c_void_p()
        create = self.commands.vkCreateDevice
        check(
            faults.opening() or create(physical, ctypes.byref(info), None, ctypes.byref(handle)),
            "opening the Vulkan device",
        )
        return handle.value or 0


def string_array(names: list[str]) -> Any:
    """A C array of C strings."""
    return (ctypes.c_char_p * len(names))(*(name.encode() for name in names))


def _load_library() -> Any:
    names = LIBRARIES.get(sys.platform, ("libvulkan.so.1", "libvulkan.so"))
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise LoaderError(f"the Vulkan loader ({names[0]}) is not installed")
