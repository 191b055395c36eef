"""What Python and the code generator repeat of the native core's headers is what the headers say.

Without this, a member added on one side would be read as another one on the other.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from support.c_declarations import CType, Header, parse
from support.mirrors import (
    missing_enumerators,
    structures,
    wrong_constants,
    wrong_functions,
    wrong_structures,
)
from support.paths import ROOT

from mansard import errors
from mansard.codegen.kernel.builder import KernelBuilder
from mansard.codegen.llvm import function, target
from mansard.codegen.llvm.module import emit
from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance import messages
from mansard.drivers.vulkan.submission import bridge
from mansard.hal import core_abi, float12, native, small_integers

CORE, BRIDGE, VULKAN, INTEGERS, FLOAT12 = (
    ROOT / path
    for path in (
        "mansard/include/mansard_core.h",
        "src/vulkan/bridge.h",
        "src/vulkan/api.h",
        "src/weights/small_integers.h",
        "src/weights/float12.h",
    )
)
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
VULKAN_STRUCTURES = {
    "vk_semaphore_submit": vk.VkSemaphoreSubmitInfo,
    "vk_command_buffer_submit": vk.VkCommandBufferSubmitInfo,
    "vk_submit2": vk.VkSubmitInfo2,
    "vk_semaphore_wait": vk.VkSemaphoreWaitInfo,
    "vk_begin_info": vk.VkCommandBufferBeginInfo,
    "vk_memory_barrier2": vk.VkMemoryBarrier2,
    "vk_dependency_info": vk.VkDependencyInfo,
    "vk_buffer_copy": vk.VkBufferCopy,
    "vk_label": vk.VkDebugUtilsLabelEXT,
    "vk_cu_launch_info": vk.VkCuLaunchInfoNVX,
}
"""Structures of the Vulkan API that the C half declares itself, and those made from the registry."""
STRUCTURE_TYPES = {
    "TYPE_BEGIN_INFO": vk.VkCommandBufferBeginInfo,
    "TYPE_LABEL": vk.VkDebugUtilsLabelEXT,
    "TYPE_CU_LAUNCH_INFO": vk.VkCuLaunchInfoNVX,
    "TYPE_SEMAPHORE_WAIT_INFO": vk.VkSemaphoreWaitInfo,
    "TYPE_MEMORY_BARRIER_2": vk.VkMemoryBarrier2,
    "TYPE_DEPENDENCY_INFO": vk.VkDependencyInfo,
    "TYPE_SUBMIT_INFO_2": vk.VkSubmitInfo2,
    "TYPE_SEMAPHORE_SUBMIT_INFO": vk.VkSemaphoreSubmitInfo,
    "TYPE_COMMAND_BUFFER_SUBMIT_INFO": vk.VkCommandBufferSubmitInfo,
}


def header_of(*paths: Path, change: tuple[str, str] | None = None) -> Header:
    """The declarations of headers, of which the last may be changed before it is read."""
    texts = [path.read_text() for path in paths]
    if change is not None:
        assert texts[-1].count(change[0]) == 1, change[0]
        texts[-1] = texts[-1].replace(*change)
    return parse("\n".join(texts))


def constants(module: ModuleType) -> dict[str, int]:
    return {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, int)}


def core_differences(header: Header) -> list[str]:
    names, mirrors = constants(core_abi), structures(core_abi)
    return [
        *wrong_constants(names, "MN_", header),
        *missing_enumerators(names, "MN_", header),
        *wrong_structures(mirrors, header),
        *wrong_functions(core_abi.SIGNATURES, header, mirrors),
    ]


def bridge_differences(header: Header) -> list[str]:
    names, mirrors = constants(bridge), structures(bridge)
    opcodes = Header(enumerations={"mn_vk_op": header.enumerations["mn_vk_op"]})
    return [
        *wrong_constants(names, "MN_VK_", header),
        *missing_enumerators(names, "MN_VK_", opcodes),
        *wrong_structures(mirrors, header),
        *wrong_functions({**bridge.SIGNATURES, **messages.SIGNATURES}, header, mirrors),
    ]


def vulkan_differences(header: Header) -> list[str]:
    stypes = {name: struct.STYPE for name, struct in STRUCTURE_TYPES.items()}
    return [
        *wrong_structures(VULKAN_STRUCTURES, header, names=False),
        *wrong_constants(
            {name: vars(vk).get(name, 0) for name in header.constants if name[:2] == "VK"}, "", header
        ),
        *wrong_constants(stypes, "", header),
    ]


def test_the_core_as_python_knows_it() -> None:
    assert core_differences(header_of(CORE)) == []


def test_the_vulkan_bridge_as_python_knows_it() -> None:
    header = header_of(CORE, VULKAN, BRIDGE)
    assert bridge_differences(header) == []
    declared = {*core_abi.SIGNATURES, *bridge.SIGNATURES, *messages.SIGNATURES, "mn_vk_message_callback"}
    assert {name for name in header.functions if name.startswith("mn_vk_")} <= declared


def test_small_integers_as_python_knows_them() -> None:
    header, mirrors = header_of(CORE, INTEGERS), structures(small_integers)
    names = {name: number for name, number in constants(small_integers).items() if name != "BLOCK"}
    assert wrong_constants(names, "MN_", header) == []
    assert wrong_structures(mirrors, header) == []
    assert wrong_functions(small_integers.SIGNATURES, header, mirrors) == []


def test_floats_of_12_bits_as_python_knows_them() -> None:
    header, mirrors = header_of(CORE, INTEGERS, FLOAT12), structures(float12)
    assert wrong_structures(mirrors, header) == []
    assert wrong_functions(float12.SIGNATURES, header, mirrors) == []


def test_the_vulkan_api_as_the_bridge_knows_it() -> None:
    assert vulkan_differences(header_of(VULKAN)) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("MN_EXECUTION = 21", "MN_EXECUTION = 31", id="value of a code"),
        pytest.param("MN_CANCELLED = 25,", "MN_CANCELLED = 25, MN_MORE = 26,", id="one more code"),
        pytest.param("MN_QUEUE_RECORDS 256", "MN_QUEUE_RECORDS 128", id="value of a definition"),
        pytest.param("uint64_t busy_ns;", "uint64_t busy_ns; uint64_t more;", id="one more member"),
        pytest.param(
            "uint32_t signal_count;\n    uint32_t slot_count;",
            "uint32_t slot_count;\n    uint32_t signal_count;",
            id="order of members",
        ),
        pytest.param("uint32_t pattern;", "uint64_t pattern;", id="type of a member"),
        pytest.param("uint32_t grid[3];", "uint32_t grid[4];", id="length of an array"),
        pytest.param(
            "mn_queue_close(mn_queue *queue, uint64_t timeout_ns)",
            "mn_queue_close(mn_queue *queue)",
            id="arity",
        ),
        pytest.param("uint32_t capacity,\n", "uint64_t capacity,\n", id="type of an argument"),
        pytest.param("MN_API uint64_t mn_now(void)", "MN_API uint32_t mn_now(void)", id="type of a result"),
        pytest.param(
            "const uint64_t *words, uint32_t word_count",
            "const uint32_t *words, uint32_t word_count",
            id="type behind a pointer",
        ),
        pytest.param("mn_queue_poison(", "mn_queue_poisoned(", id="name of a function"),
    ],
)
def test_a_change_of_the_core_is_seen(before: str, after: str) -> None:
    assert len(core_differences(header_of(CORE, change=(before, after)))) > 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("MN_VK_BARRIER = 6", "MN_VK_BARRIER = 16"),
        ("MN_VK_LABEL_END = 9,", "MN_VK_LABEL_END = 9, MN_VK_EVENT = 10,"),
        ("uint64_t query_count;", "uint32_t query_count;"),
        ("    void (*end_label)(void *);\n", ""),
        ("uint64_t after, int32_t result);", "uint64_t after, int64_t result);"),
    ],
)
def test_a_change_of_the_bridge_is_seen(before: str, after: str) -> None:
    assert len(bridge_differences(header_of(CORE, VULKAN, BRIDGE, change=(before, after)))) > 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("VK_ERROR_DEVICE_LOST = -4", "VK_ERROR_DEVICE_LOST = -5"),
        ("TYPE_SUBMIT_INFO_2 = 1000314004", "TYPE_SUBMIT_INFO_2 = 1000314003"),
        ("    uint32_t device_mask;\n", ""),
    ],
)
def test_a_change_of_the_vulkan_api_is_seen(before: str, after: str) -> None:
    assert len(vulkan_differences(header_of(VULKAN, change=(before, after)))) > 0


def test_every_failure_has_the_class_its_code_names() -> None:
    listed = re.findall(r"(MN_\w+) = (\d+), +/\* (\w+Error) \*/", CORE.read_text())
    assert len(listed) == 10
    for name, code, class_name in listed:
        cls = getattr(errors, class_name)
        assert type(native.exception_of(int(code), "")) is cls, name
        assert native.code_of(cls("")) == int(code), name


def test_kernels_are_what_the_core_calls() -> None:
    header = header_of(CORE)
    result, arguments = header.function_types["mn_kernel"]
    assert result == CType("void")
    module = emit([KernelBuilder("nothing", (), 0).build()], target.parse("cpu:x86_64"))
    (declared,) = re.findall(r'define void @"nothing"\((.*)\)', module)
    llvm = [re.match(r"\S+", part.strip())[0] for part in declared.split(",")]  # type: ignore[index]
    assert llvm == ["ptr" if each.pointers else each.name.replace("int64_t", "i64") for each in arguments]
    assert header.constants["MN_KERNEL_STACK_BYTES"] == function.MAX_STACK_BYTES


@pytest.mark.skipif(COMPILER is None, reason="no C compiler to ask for sizes")
def test_sizes_and_offsets_are_the_compilers(tmp_path: Path) -> None:
    mirrors = {**structures(core_abi), **structures(bridge)}
    header = header_of(CORE, VULKAN, BRIDGE)
    lines, expected = [], []
    for c_name, cls in {**mirrors, **VULKAN_STRUCTURES}.items():
        lines.append(f'printf("{c_name} %zu\\n", sizeof({c_name}));')
        expected.append(f"{c_name} {ctypes.sizeof(cls)}")
        for member, (field, *_) in zip(header.structures[c_name], cls._fields_, strict=True):
            lines.append(f'printf("{c_name}.{member} %zu\\n", offsetof({c_name}, {member}));')
            expected.append(f"{c_name}.{member} {getattr(cls, field).offset}")
    values = {name: value for name, value in header.constants.items() if value < 2**63}
    lines += [f'printf("{name} %lld\\n", (long long){name});' for name in values]
    expected += [f"{name} {value}" for name, value in values.items()]
    program, source = tmp_path / "sizes", tmp_path / "sizes.c"
    source.write_text(
        '#include <stdio.h>\n#include "vulkan/bridge.h"\nint main(void) {\n' + "\n".join(lines) + "\n}\n"
    )
    includes = [f"-I{ROOT / 'src'}", f"-I{ROOT / 'mansard/include'}"]
    subprocess.run([str(COMPILER), "-std=gnu11", *includes, str(source), "-o", str(program)], check=True)
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == expected
