"""The pipeline cache, kept on disk between runs."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import tempfile
import threading
from pathlib import Path

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.context import Context
from mansard.drivers.vulkan.results import check
from mansard.drivers.vulkan.snapshot import Snapshot

_MAGIC = b"mansard pipeline cache 1\n"
_DIGEST = hashlib.sha256().digest_size


def cache_directory() -> Path:
    """``$MANSARD_CACHE_DIR``, or ``mansard`` in the user's cache directory."""
    chosen = os.environ.get("MANSARD_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mansard"


def cache_path(snapshot: Snapshot) -> Path:
    """The file for one device and driver version: another driver's cache is never offered to it."""
    key = hashlib.sha256()
    key.update(snapshot.device_uuid + snapshot.cache_uuid)
    key.update(
        f"{snapshot.vendor_id} {snapshot.device_id} {snapshot.driver_version} {snapshot.driver}".encode()
    )
    return cache_directory() / "vulkan" / f"pipelines-{key.hexdigest()[:32]}.bin"


def read_cache(path: Path) -> bytes:
    """The stored data, or nothing when the file is absent, cut off or altered."""
    try:
        content = path.read_bytes()
    except OSError:
        return b""
    head = len(_MAGIC) + _DIGEST
    data = content[head:]
    intact = content[: len(_MAGIC)] == _MAGIC and hashlib.sha256(data).digest() == content[len(_MAGIC) : head]
    return data if intact else b""


def write_cache(path: Path, data: bytes) -> None:
    """Replace the file at once, so that no reader sees half of it. A read-only home is no error."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(data).digest() + data)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise


class PipelineCache:
    """A VkPipelineCache, filled from disk; `save` writes what pipelines made since have added."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._path = cache_path(context.snapshot)
        self._lock = threading.Lock()
        data = read_cache(self._path)
        self._saved = len(data)
        info = vk.VkPipelineCacheCreateInfo(initialDataSize=len(data))
        content = ctypes.create_string_buffer(data, len(data)) if data else None
        info.pInitialData = ctypes.addressof(content) if content is not None else None
        handle = ctypes.c_uint64()
        check(
            context.commands.vkCreatePipelineCache(
                context.handle, ctypes.byref(info), None, ctypes.byref(handle)
            ),
            "creating the pipeline cache",
        )
        self.handle = handle.value

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
                write_cache(self._path, data.raw[: size.value])
                self._saved = size.value

    def close(self) -> None:
        """Destroy the cache; the file stays."""
        self._context.commands.vkDestroyPipelineCache(self._context.handle, self.handle, None)
