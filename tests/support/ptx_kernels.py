"""PTX kernels for tests, and Vulkan commands that stand in for those of a driver that takes PTX."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.device import VulkanDevice
from mansard.drivers.vulkan.instance.context import DeviceContext
from mansard.drivers.vulkan.instance.features import PTX_SM_90A
from mansard.drivers.vulkan.shaders.abi import PTX, ShaderModule, join_ptx
from mansard.hal import EntryPoint, ExecutableSpec
from support import vulkan_kernels

THREADS = 128
_HEAD = b".version 8.0\n.target sm_90a\n.address_size 64\n"


def _kernel(entry: EntryPoint, count: int, body: str) -> bytes:
    """A kernel whose invocations below word ``count`` of the table run ``body``; %r1 is their number, %rd4
    four times that."""
    return f"""
.visible .entry {entry.name}(.param .align 8 .b8 table[{8 * entry.table_words}])
{{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    .reg .f32 %f<2>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r1, %r1, %r2, %r3;
    cvt.u64.u32 %rd3, %r1;
    ld.param.u64 %rd4, [table+{8 * count}];
    setp.ge.u64 %p1, %rd3, %rd4;
    @%p1 ret;
    shl.b64 %rd4, %rd3, 2;
{body}
    ret;
}}
""".encode()


TRIPLE = EntryPoint("triple", bindings=2, params=2, workgroup=(THREADS, 1, 1))
"""out[i] = 3 * in[i] + b, from i32 to f32, for i < n; buffers in, out; params n, b."""
_TRIPLE = """
    ld.param.u64 %rd1, [table];
    cvta.to.global.u64 %rd1, %rd1;
    add.u64 %rd1, %rd1, %rd4;
    ld.global.s32 %r4, [%rd1];
    ld.param.u32 %r5, [table+24];
    mad.lo.s32 %r6, %r4, 3, %r5;
    cvt.rn.f32.s32 %f1, %r6;
    ld.param.u64 %rd2, [table+8];
    cvta.to.global.u64 %rd2, %rd2;
    add.u64 %rd2, %rd2, %rd4;
    st.global.f32 [%rd2], %f1;
"""
_FILL = """
    ld.param.u64 %rd1, [table];
    cvta.to.global.u64 %rd1, %rd1;
    add.u64 %rd1, %rd1, %rd4;
    ld.param.u32 %r4, [table+24];
    mad.lo.s32 %r5, %r1, 3, %r4;
    st.global.s32 [%rd1], %r5;
"""
TRIPLE_TEXT = _HEAD + _kernel(TRIPLE, 2, _TRIPLE)
FILL_TEXT = _HEAD + _kernel(vulkan_kernels.FILL_INDEX, 1, _FILL)
"""out[i] = 3 * i + b, the PTX kernel beside `vulkan_kernels.FILL_INDEX`, which runs where b is 0."""


def ptx_module(text: bytes, threads: int = THREADS) -> ShaderModule:
    """A PTX module of kernels above."""
    return ShaderModule(PTX, text, (PTX_SM_90A,), threads)


def ptx_spec(
    entry: EntryPoint, text: bytes, spirv: ShaderModule | None = None, threads: int = THREADS
) -> ExecutableSpec:
    """An executable with a PTX module, ready to be loaded."""
    code_format, code, requires = join_ptx(ptx_module(text, threads), spirv)
    return ExecutableSpec(code_format, "vulkan:1.3", code, (entry,), requires)


def fill_both() -> ExecutableSpec:
    """`vulkan_kernels.FILL_INDEX` in SPIR-V and in PTX."""
    spec = vulkan_kernels.spec(vulkan_kernels.FILL_INDEX)
    return ptx_spec(
        vulkan_kernels.FILL_INDEX, FILL_TEXT, ShaderModule("bda", bytes(spec.code), spec.requires)
    )


class PtxCommands:
    """The commands of a device, with those of VK_NVX_binary_import made up: they count what there is."""

    def __init__(self, commands: vk.DeviceCommands) -> None:
        self._commands = commands
        self.texts: dict[int, bytes] = {}
        """What the modules that are there were made from."""
        self.functions: dict[int, tuple[int, bytes]] = {}
        """Module and name of the functions that are there."""
        self.results: dict[str, list[int]] = {}
        """VkResults of the next calls by name, or `NO_HANDLE`."""
        self.calls: list[str] = []
        self._last = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._commands, name)

    def vkCreateCuModuleNVX(self, device: int, info: Any, allocator: None, out: Any) -> int:
        given = info._obj
        assert given.sType == 1000029000
        text = ctypes.string_at(given.pData, given.dataSize)
        return self._make("vkCreateCuModuleNVX", out, lambda handle: self.texts.update({handle: text}))

    def vkCreateCuFunctionNVX(self, device: int, info: Any, allocator: None, out: Any) -> int:
        given = info._obj
        assert given.sType == 1000029001
        assert given.module in self.texts
        made = given.module, given.pName
        return self._make("vkCreateCuFunctionNVX", out, lambda handle: self.functions.update({handle: made}))

    def vkDestroyCuModuleNVX(self, device: int, module: int, allocator: None) -> None:
        del self.texts[module]
        assert module not in {of for of, _ in self.functions.values()}, "functions go first"

    def vkDestroyCuFunctionNVX(self, device: int, function: int, allocator: None) -> None:
        del self.functions[function]

    def _make(self, name: str, out: Any, keep: Any) -> int:
        self.calls.append(name)
        result = self.results[name].pop(0) if self.results.get(name) else 0
        if result == 0:
            self._last += 1
            keep(self._last)
            out._obj.value = self._last
        return min(result, 0)


NO_HANDLE = 1
"""For `PtxCommands.results`: success without a handle."""


def with_ptx(device: VulkanDevice) -> tuple[DeviceContext, PtxCommands]:
    """A device's context as if it ran PTX kernels."""
    context = device._context
    commands = PtxCommands(context.commands)
    setup = dataclasses.replace(context.setup, features={**context.setup.features, PTX_SM_90A: True})
    return dataclasses.replace(context, commands=commands, setup=setup), commands  # type: ignore[arg-type]
