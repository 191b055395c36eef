"""An open VkDevice with its commands and the decisions it was opened by."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.device_setup import DeviceSetup
from mansard.drivers.vulkan.instance.loader import Instance, string_array
from mansard.drivers.vulkan.instance.queues import QueueAssignment
from mansard.drivers.vulkan.instance.results import check
from mansard.drivers.vulkan.instance.snapshot import (
    EXTERNAL_MEMORY_HOST,
    Snapshot,
    feature_names,
    feature_structs,
)

_PLAIN_USAGE = (
    vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
    | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
    | vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
)


@dataclass(frozen=True)
class DeviceContext:
    """What the parts of the driver share: handles, commands, snapshot and setup of one open device."""

    instance: Instance
    physical: int
    handle: int
    queues: QueueAssignment
    commands: vk.DeviceCommands
    snapshot: Snapshot
    setup: DeviceSetup
    can_import_host: bool

    @property
    def has_addresses(self) -> bool:
        """Whether buffers have addresses."""
        return self.setup.features["buffer_device_address"]

    def name(self, kind: int, handle: int, text: str) -> None:
        """Name an object (``kind``: a VkObjectType) for debuggers; nothing without the validation layer."""
        if not text or not self.instance.validation:
            return
        info = vk.VkDebugUtilsObjectNameInfoEXT(
            objectType=kind, objectHandle=handle, pObjectName=text.encode()
        )
        check(self.commands.vkSetDebugUtilsObjectNameEXT(self.handle, ctypes.byref(info)), f"naming {text!r}")

    @property
    def buffer_usage(self) -> int:
        """VkBufferUsageFlags of every buffer."""
        return _usage(self.setup)


def open_context(
    instance: Instance, physical: int, snapshot: Snapshot, setup: DeviceSetup, queues: QueueAssignment
) -> DeviceContext:
    """Create the VkDevice the plans describe; raises DeviceError."""
    counts = {f: 1 + max(s.index for s in queues.slots if s.family == f) for f in queues.families}
    queue_infos = (vk.VkDeviceQueueCreateInfo * len(counts))(
        *(
            vk.VkDeviceQueueCreateInfo(
                queueFamilyIndex=family,
                queueCount=count,
                pQueuePriorities=(ctypes.c_float * count)(*[1.0] * count),
            )
            for family, count in counts.items()
        )
    )
    info = vk.VkDeviceCreateInfo(
        queueCreateInfoCount=len(counts),
        pQueueCreateInfos=queue_infos,
        enabledExtensionCount=len(setup.extensions),
        ppEnabledExtensionNames=string_array(list(setup.extensions)),
    )
    vk.chain(info, _enable(setup.enabled, setup.extensions))
    handle = instance.create_device(physical, info)
    return DeviceContext(
        instance=instance,
        physical=physical,
        handle=handle,
        queues=queues,
        commands=instance.device_commands(handle),
        snapshot=snapshot,
        setup=setup,
        can_import_host=EXTERNAL_MEMORY_HOST in setup.extensions
        and _importable(instance, physical, _usage(setup)),
    )


def _enable(names: Iterable[str], extensions: Collection[str]) -> vk.VkPhysicalDeviceFeatures2:
    """A chain of feature structs with the named members set."""
    head = vk.VkPhysicalDeviceFeatures2()
    structs = feature_structs(extensions)
    holders = {name: struct for struct in (head.features, *structs) for name in feature_names(struct)}
    for name in names:
        setattr(holders[name], name, 1)
    chain: vk.VkPhysicalDeviceFeatures2 = vk.chain(head, *structs)
    return chain


def _usage(setup: DeviceSetup) -> int:
    addressed = vk.VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT if setup.features["buffer_device_address"] else 0
    return _PLAIN_USAGE | addressed


def _importable(instance: Instance, physical: int, usage: int) -> bool:
    """Whether buffers as we create them can lie in imported host memory."""
    info = vk.VkPhysicalDeviceExternalBufferInfo(
        usage=usage, handleType=vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
    )
    properties = vk.VkExternalBufferProperties()
    instance.commands.vkGetPhysicalDeviceExternalBufferProperties(
        physical, ctypes.byref(info), ctypes.byref(properties)
    )
    features = properties.externalMemoryProperties.externalMemoryFeatures
    return bool(features & vk.VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT)
