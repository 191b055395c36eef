"""PTX modules, which NVIDIA's driver compiles and launches from command buffers (VK_NVX_binary_import)."""

from __future__ import annotations

import ctypes
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.context import DeviceContext
from mansard.drivers.vulkan.instance.results import created
from mansard.drivers.vulkan.shaders.abi import ShaderModule
from mansard.errors import ArtifactError, DeviceError
from mansard.hal.executable import Build, EntryPoint

MAX_TABLE = 4096
"""Bytes of parameters that CUDA takes: argument tables of PTX kernels always go by value."""
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([A-Za-z_$%][\w$]*)", re.ASCII)


def ptx_entry_points(code: bytes) -> frozenset[str]:
    """The names of a module's kernels; raises ArtifactError when the bytes are no text of PTX."""
    try:
        text = _COMMENT.sub(" ", code.rstrip(b"\0").decode("ascii"))
    except UnicodeDecodeError as error:
        raise ArtifactError(f"not a PTX module: {error}") from error
    if "\0" in text or not text.lstrip().startswith(".version"):
        raise ArtifactError("not a PTX module: it starts with no .version, or holds a zero byte")
    return frozenset(_ENTRY.findall(text))


@dataclass(frozen=True)
class PtxKernels:
    """The functions of a loaded PTX module, in the order of its entry points, and how they were built."""

    module: int
    functions: tuple[int, ...]
    builds: tuple[Build, ...]
    threads: int
    """Invocations of a block."""


class PtxModules:
    """The PTX modules of one device. Thread-safe."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._live: dict[int, list[int]] = {}  # functions by module

    def load(self, module: ShaderModule, entries: tuple[EntryPoint, ...]) -> PtxKernels:
        """Let the driver compile a module; raises DeviceError when it refuses, and for too many arguments."""
        for entry in entries:
            if entry.table_words * 8 > MAX_TABLE:
                raise DeviceError(
                    f"the PTX kernel {entry.name!r} takes {entry.table_words * 8} bytes of arguments; "
                    f"CUDA allows {MAX_TABLE}"
                )
        begun = time.perf_counter()
        handle = self._create(module, ", ".join(entry.name for entry in entries))
        try:
            for entry in entries:
                self._live[handle].append(self._function(handle, entry.name))
        except BaseException:
            self.release(handle)
            raise
        share = (time.perf_counter() - begun) / len(entries)
        builds = tuple(Build(entry.name, share) for entry in entries)
        return PtxKernels(handle, tuple(self._live[handle]), builds, module.threads)

    def release(self, module: int) -> None:
        """Destroy a module and its functions, unless that was done."""
        commands, device = self._context.commands, self._context.handle
        with self._lock:
            functions = self._live.pop(module, None)
            if functions is None:
                return
            for function in functions:
                commands.vkDestroyCuFunctionNVX(device, function, None)
            commands.vkDestroyCuModuleNVX(device, module, None)

    def close(self) -> None:
        """Destroy what is left."""
        for module in list(self._live):
            self.release(module)

    def _create(self, module: ShaderModule, names: str) -> int:
        text = module.code.rstrip(b"\0") + b"\0"
        info = vk.VkCuModuleCreateInfoNVX(
            dataSize=len(text), pData=ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p)
        )
        commands, device = self._context.commands, self._context.handle
        handle = _created(
            lambda out: commands.vkCreateCuModuleNVX(device, ctypes.byref(info), None, out),
            f"loading the PTX of {names}",
        )
        self._live[handle] = []
        return handle

    def _function(self, module: int, name: str) -> int:
        info = vk.VkCuFunctionCreateInfoNVX(module=module, pName=name.encode())
        commands, device = self._context.commands, self._context.handle
        return _created(
            lambda out: commands.vkCreateCuFunctionNVX(device, ctypes.byref(info), None, out),
            f"taking {name!r} from its PTX",
        )


def _created(call: Callable[[Any], int], doing: str) -> int:
    """As `created`. The extension does not promise a handle with success: DeviceError where there is none."""
    handle = created(call, doing)
    if not handle:
        raise DeviceError(f"{doing} failed: the driver gave no handle")
    return handle
