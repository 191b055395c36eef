"""The pipeline cache, kept on disk between runs."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from pathlib import Path

from mansard.cache import cache_directory, read_file, write_file
from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.context import DeviceContext
from mansard.drivers.vulkan.instance.results import created
from mansard.drivers.vulkan.instance.snapshot import Snapshot


def cache_path(snapshot: Snapshot) -> Path:
    """The file for one device and driver version: another driver's cache is never offered to it."""
    key = hashlib.sha256()
    key.update(snapshot.device_uuid + snapshot.cache_uuid)
    key.update(
        f"{snapshot.vendor_id} {snapshot.device_id} {snapshot.driver_version} {snapshot.driver}".encode()
    )
    return cache_directory() / "vulkan" / f"pipelines-{key.hexdigest()[:32]}.bin"


class PipelineCache:
    """A VkPipelineCache, filled from disk; `save` writes what pipelines made since have added."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self._path = cache_path(context.snapshot)
        self._lock = threading.Lock()
        data = read_file(self._path) or b""
        self._saved = len(data)
        info = vk.VkPipelineCacheCreateInfo(initialDataSize=len(data))
        content = ctypes.create_string_buffer(data, len(data)) if data else None
        info.pInitialData = ctypes.addressof(content) if content is not None else None
        self.handle = created(
            lambda out: context.commands.vkCreatePipelineCache(context.handle, ctypes.byref(info), None, out),
            "creating the pipeline cache",
        )

    def save(self) -> None:
        """Write the cache to disk when it has changed in size since it was read or written."""
        commands, device = self._context.commands, self._context.handle
        with self._lock:
            size = ctypes.c_size_t()
            commands.vkGetPipelineCacheData(device, self.handle, ctypes.byref(size), None)
            if size.value in (0, self._saved):
                return
            data = ctypes.create_string_buffer(size.value)
            result = commands.vkGetPipelineCacheData(device, self.handle, ctypes.byref(size), data)
            # Another thread may be adding to the cache; what it adds is saved after its own load.
            if result == vk.VK_SUCCESS:
                write_file(self._path, data.raw[: size.value])
                self._saved = size.value

    def close(self) -> None:
        """Destroy the cache; the file stays."""
        self._context.commands.vkDestroyPipelineCache(self._context.handle, self.handle, None)
