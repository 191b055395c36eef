"""Writes mansard/drivers/vulkan/vk.py: a ctypes binding of the Vulkan calls Mansard makes, from vk.xml.

    python tools/gen_vulkan.py /usr/share/vulkan/registry/vk.xml mansard/drivers/vulkan/vk.py

Only what the lists below name is written. Every type a listed struct or command mentions must resolve
to a scalar, a handle, an enum or another listed struct; structs that are only pointed to and not
listed become ``void *``. An unknown name or a struct needed by value but not listed is an error.
"""

from __future__ import annotations

import argparse
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path


def words(text: str) -> tuple[str, ...]:
    """The names of a blank-separated list."""
    return tuple(text.split())


COMMANDS = words("""
vkGetInstanceProcAddr vkEnumerateInstanceVersion vkEnumerateInstanceExtensionProperties
vkEnumerateInstanceLayerProperties vkCreateInstance
vkDestroyInstance vkEnumeratePhysicalDevices vkGetPhysicalDeviceProperties vkGetPhysicalDeviceProperties2
vkGetPhysicalDeviceFeatures2 vkGetPhysicalDeviceQueueFamilyProperties vkGetPhysicalDeviceMemoryProperties
vkGetPhysicalDeviceMemoryProperties2 vkEnumerateDeviceExtensionProperties vkCreateDevice vkGetDeviceProcAddr
vkGetPhysicalDeviceExternalBufferProperties vkGetPhysicalDeviceCalibrateableTimeDomainsEXT
vkCreateDebugUtilsMessengerEXT vkDestroyDebugUtilsMessengerEXT
vkDestroyDevice vkDeviceWaitIdle vkGetDeviceQueue
vkAllocateMemory vkFreeMemory vkMapMemory vkCreateBuffer vkDestroyBuffer vkGetBufferMemoryRequirements
vkBindBufferMemory vkQueueBindSparse vkQueueWaitIdle vkGetBufferDeviceAddress
vkGetMemoryHostPointerPropertiesEXT
vkCreateShaderModule vkDestroyShaderModule vkCreatePipelineCache vkDestroyPipelineCache
vkGetPipelineCacheData vkCreateComputePipelines vkDestroyPipeline vkCreatePipelineLayout
vkDestroyPipelineLayout
vkCreateCommandPool vkDestroyCommandPool vkAllocateCommandBuffers vkFreeCommandBuffers
vkBeginCommandBuffer vkEndCommandBuffer vkCmdBindPipeline vkCmdPushConstants vkCmdDispatch
vkCmdCopyBuffer vkCmdFillBuffer vkCmdPipelineBarrier2
vkCreateQueryPool vkDestroyQueryPool vkResetQueryPool vkCmdResetQueryPool vkCmdWriteTimestamp2
vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR
vkGetQueryPoolResults vkQueueSubmit2 vkCreateSemaphore vkDestroySemaphore vkWaitSemaphores
vkGetSemaphoreCounterValue vkGetCalibratedTimestampsEXT
vkCreateDescriptorSetLayout vkDestroyDescriptorSetLayout vkCreateDescriptorPool vkDestroyDescriptorPool
vkAllocateDescriptorSets vkUpdateDescriptorSets vkCmdBindDescriptorSets vkCmdPushDescriptorSetKHR
vkSetDebugUtilsObjectNameEXT vkCmdBeginDebugUtilsLabelEXT vkCmdEndDebugUtilsLabelEXT
vkCreateCuModuleNVX vkDestroyCuModuleNVX vkCreateCuFunctionNVX vkDestroyCuFunctionNVX vkCmdCuLaunchKernelNVX
""")

STRUCTS = words("""
VkApplicationInfo VkInstanceCreateInfo VkExtensionProperties VkLayerProperties VkPhysicalDeviceLimits
VkPhysicalDeviceSparseProperties VkPhysicalDeviceProperties VkPhysicalDeviceProperties2
VkPhysicalDeviceVulkan11Properties VkPhysicalDeviceVulkan12Properties VkPhysicalDeviceVulkan13Properties
VkConformanceVersion VkPhysicalDeviceExternalMemoryHostPropertiesEXT
VkPhysicalDeviceFeatures VkPhysicalDeviceFeatures2 VkPhysicalDeviceVulkan11Features
VkPhysicalDeviceVulkan12Features VkPhysicalDeviceVulkan13Features
VkExtent3D VkQueueFamilyProperties VkMemoryType VkMemoryHeap VkPhysicalDeviceMemoryProperties
VkPhysicalDeviceMemoryProperties2 VkPhysicalDeviceMemoryBudgetPropertiesEXT
VkDeviceQueueCreateInfo VkDeviceCreateInfo
VkSparseMemoryBind VkSparseBufferMemoryBindInfo VkBindSparseInfo
VkBufferCreateInfo VkMemoryRequirements VkMemoryAllocateInfo VkMemoryAllocateFlagsInfo
VkBufferDeviceAddressInfo VkImportMemoryHostPointerInfoEXT
VkMemoryHostPointerPropertiesEXT VkExternalMemoryBufferCreateInfo VkPhysicalDeviceExternalBufferInfo
VkExternalBufferProperties VkExternalMemoryProperties
VkShaderModuleCreateInfo VkPipelineCacheCreateInfo
VkPipelineShaderStageCreateInfo VkPipelineShaderStageRequiredSubgroupSizeCreateInfo
VkComputePipelineCreateInfo VkPushConstantRange VkPipelineLayoutCreateInfo
VkPipelineCreationFeedback VkPipelineCreationFeedbackCreateInfo
VkCommandPoolCreateInfo VkCommandBufferAllocateInfo VkCommandBufferBeginInfo VkBufferCopy VkMemoryBarrier2
VkDependencyInfo VkQueryPoolCreateInfo
VkSemaphoreTypeCreateInfo VkSemaphoreCreateInfo VkSemaphoreWaitInfo VkSemaphoreSubmitInfo
VkCommandBufferSubmitInfo VkSubmitInfo2 VkCalibratedTimestampInfoEXT
VkDebugUtilsLabelEXT VkDebugUtilsObjectNameInfoEXT VkDebugUtilsMessengerCallbackDataEXT
VkDebugUtilsMessengerCreateInfoEXT
VkDescriptorSetLayoutBinding VkDescriptorSetLayoutCreateInfo VkDescriptorPoolSize VkDescriptorPoolCreateInfo
VkPhysicalDevicePushDescriptorPropertiesKHR
VkPhysicalDeviceCooperativeMatrixFeaturesKHR VkCooperativeMatrixPropertiesKHR
VkPhysicalDeviceCooperativeMatrix2FeaturesNV VkPhysicalDeviceCooperativeMatrix2PropertiesNV
VkPhysicalDeviceShaderSMBuiltinsPropertiesNV VkPhysicalDeviceShaderCorePropertiesAMD
VkPhysicalDeviceShaderCoreProperties2AMD VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM
VkCuModuleCreateInfoNVX VkCuFunctionCreateInfoNVX VkCuLaunchInfoNVX
""")

# Enumerations written in full; single values of others are in CONSTANTS.
ENUMS = words("""
VkResult VkPhysicalDeviceType VkQueueFlagBits VkMemoryPropertyFlagBits VkMemoryHeapFlagBits
VkSubgroupFeatureFlagBits VkScopeKHR VkComponentTypeKHR
""")

CONSTANTS = words("""
VK_API_VERSION_1_3 VK_DRIVER_ID_MESA_LLVMPIPE VK_DRIVER_ID_NVIDIA_PROPRIETARY
VK_BUFFER_USAGE_TRANSFER_SRC_BIT VK_BUFFER_USAGE_TRANSFER_DST_BIT
VK_BUFFER_USAGE_STORAGE_BUFFER_BIT VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT VK_SHARING_MODE_EXCLUSIVE
VK_BUFFER_CREATE_SPARSE_BINDING_BIT VK_SHARING_MODE_CONCURRENT VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT
VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT VK_SHADER_STAGE_COMPUTE_BIT VK_PIPELINE_BIND_POINT_COMPUTE
VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT VK_COMMAND_BUFFER_LEVEL_PRIMARY
VK_ACCESS_2_MEMORY_READ_BIT VK_ACCESS_2_MEMORY_WRITE_BIT VK_ACCESS_2_SHADER_READ_BIT
VK_ACCESS_2_SHADER_WRITE_BIT VK_ACCESS_2_TRANSFER_READ_BIT VK_ACCESS_2_TRANSFER_WRITE_BIT
VK_ACCESS_2_HOST_READ_BIT VK_ACCESS_2_HOST_WRITE_BIT
VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT VK_PIPELINE_STAGE_2_HOST_BIT
VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT VK_QUERY_TYPE_TIMESTAMP VK_QUERY_RESULT_64_BIT
VK_QUERY_RESULT_WAIT_BIT VK_SEMAPHORE_TYPE_TIMELINE VK_TIME_DOMAIN_DEVICE_EXT
VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT
VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT
VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT
VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT
VK_QUEUE_FAMILY_IGNORED VK_WHOLE_SIZE
VK_DESCRIPTOR_TYPE_STORAGE_BUFFER VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR
VK_PIPELINE_CREATION_FEEDBACK_VALID_BIT
VK_PIPELINE_CREATION_FEEDBACK_APPLICATION_PIPELINE_CACHE_HIT_BIT
VK_OBJECT_TYPE_BUFFER VK_OBJECT_TYPE_PIPELINE VK_OBJECT_TYPE_COMMAND_BUFFER VK_OBJECT_TYPE_QUEUE
""")

SCALARS = {
    "char": "C.c_char", "float": "C.c_float", "double": "C.c_double", "size_t": "C.c_size_t",
    "uint8_t": "C.c_uint8", "uint16_t": "C.c_uint16", "uint32_t": "C.c_uint32", "uint64_t": "C.c_uint64",
    "int32_t": "C.c_int32", "int64_t": "C.c_int64", "int": "C.c_int",
    "VkBool32": "C.c_uint32", "VkFlags": "C.c_uint32", "VkFlags64": "C.c_uint64",
    "VkDeviceSize": "C.c_uint64", "VkDeviceAddress": "C.c_uint64", "VkSampleMask": "C.c_uint32",
}  # fmt: skip


class RegistryError(Exception):
    """vk.xml lacks a listed name, or a listed struct needs a type that is not listed."""


@dataclass(frozen=True)
class Declaration:
    """One member or parameter: ``const`` is dropped, which ctypes cannot express."""

    name: str
    type: str
    pointers: int
    extents: tuple[str, ...]
    """Array lengths, outermost first: digits or the name of a constant."""
    stype: str | None


def for_vulkan(element: ET.Element) -> bool:
    """Whether an element belongs to the Vulkan API (not to Vulkan SC only)."""
    api = element.get("api")
    return api is None or "vulkan" in api.split(",")


def declaration(element: ET.Element) -> Declaration:
    """Parse a ``<member>`` or ``<param>``."""
    type_node, name_node = element.find("type"), element.find("name")
    if type_node is None or name_node is None or not type_node.text or not name_node.text:
        raise RegistryError(f"cannot parse {ET.tostring(element)!r}")
    pieces, comment = [], element.find("comment")
    for node in element.iter():
        if node is comment:
            pieces.append(node.tail or "")
        else:
            pieces += [node.text or "", node.tail or "" if node is not element else ""]
    text = "".join(pieces)
    before, after = text.split(name_node.text, 1)
    if ":" in after:
        raise RegistryError(f"bit field {name_node.text} is not supported")
    return Declaration(
        name=name_node.text,
        type=type_node.text,
        pointers=before.count("*"),
        extents=tuple(re.findall(r"\[(\w+)\]", after)),
        stype=element.get("values") if name_node.text == "sType" else None,
    )


class Registry:
    """What the generator needs of vk.xml: structs, commands, values and the kinds of all types."""

    def __init__(self, path: Path) -> None:
        root = ET.parse(path).getroot()
        self.values: dict[str, int | str] = {}
        self.groups: dict[str, list[str]] = {}
        self.extension_commands: set[str] = set()
        self.categories: dict[str, str] = {}
        self.types: dict[str, ET.Element] = {}
        self.commands: dict[str, ET.Element] = {}
        self.version = ""
        self._read_types(root)
        self._read_values(root)
        for command in root.iterfind("commands/command"):
            name = command.findtext("proto/name")
            if name and for_vulkan(command):
                self.commands[name] = command
        for command in root.iterfind("commands/command[@alias]"):
            target = self.commands.get(command.get("alias", ""))
            if target is not None:
                self.commands[command.get("name", "")] = target

    def _read_types(self, root: ET.Element) -> None:
        for node in root.iterfind("types/type"):
            name = node.get("name") or node.findtext("name")
            if not name or not for_vulkan(node):
                continue
            self.categories[name] = node.get("category", "")
            self.types[name] = node
            if name == "VK_HEADER_VERSION":
                self.version = (node.find("name").tail or "").strip()  # type: ignore[union-attr]

    def _read_values(self, root: ET.Element) -> None:
        for block in root.iterfind("enums"):
            for node in block.iterfind("enum"):
                self._value(node, block.get("name", ""), None)
        for parent in [*root.iterfind("feature"), *root.iterfind("extensions/extension")]:
            if parent.get("supported") == "disabled":
                continue
            number = parent.get("number") if parent.tag == "extension" else None
            for node in parent.iterfind("require/enum"):
                self._value(node, node.get("extends", ""), number)
            if parent.tag == "extension":
                self.extension_commands |= {c.get("name", "") for c in parent.iterfind("require/command")}
        for major, minor in ((1, 0), (1, 1), (1, 2), (1, 3)):
            self.values[f"VK_API_VERSION_{major}_{minor}"] = major << 22 | minor << 12

    def _value(self, node: ET.Element, group: str, extension: str | None) -> None:
        name = node.get("name", "")
        number = node.get("extnumber", extension)
        if not for_vulkan(node) or name in self.values:
            return
        if node.get("alias"):
            self.values[name] = node.get("alias", "")
        elif node.get("bitpos"):
            self.values[name] = 1 << int(node.get("bitpos", ""))
        elif node.get("offset"):
            # The registry's rule for values added by extensions.
            value = 1_000_000_000 + (int(number or "0") - 1) * 1000 + int(node.get("offset", ""))
            self.values[name] = -value if node.get("dir") == "-" else value
        elif node.get("value") and not node.get("value", "").startswith('"'):
            self.values[name] = c_integer(node.get("value", ""))
        else:
            return
        if not node.get("alias"):
            self.groups.setdefault(group, []).append(name)

    def value(self, name: str) -> int:
        """The number behind a constant, through aliases."""
        value = self.values.get(name)
        if value is None:
            raise RegistryError(f"constant {name} is not in the registry")
        return self.value(value) if isinstance(value, str) else value

    def members(self, struct: str) -> list[Declaration]:
        """The members of a struct in order."""
        if self.categories.get(struct) != "struct":
            raise RegistryError(f"{struct} is not a struct of the registry")
        alias = self.types[struct].get("alias")
        if alias:
            return self.members(alias)
        return [declaration(m) for m in self.types[struct].iterfind("member") if for_vulkan(m)]

    def parameters(self, command: str) -> tuple[str, list[Declaration]]:
        """The return type and parameters of a command."""
        node = self.commands.get(command)
        if node is None:
            raise RegistryError(f"command {command} is not in the registry")
        result = node.findtext("proto/type") or ""
        return result, [declaration(p) for p in node.iterfind("param") if for_vulkan(p)]


def c_integer(text: str) -> int:
    """The value of a C integer literal as the registry writes it: ``(~0U)``, ``0x10``, ``(~0ULL)``."""
    match = re.fullmatch(r"\(~(\d+)(U|ULL)(?:-(\d+))?\)", text)
    if match:
        bits = 64 if match[2] == "ULL" else 32
        return (~int(match[1]) & (1 << bits) - 1) - int(match[3] or 0)
    return int(float(text.rstrip("fF"))) if "." in text else int(text, 0)


class Writer:
    """Turns listed names into Python source."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.lines: list[str] = []

    def scalar(self, name: str) -> str | None:
        """The ctypes name of a type that is passed by value, or None for structs and unknown types."""
        if name in SCALARS:
            return SCALARS[name]
        node, category = self.registry.types.get(name), self.registry.categories.get(name, "")
        if node is None:
            raise RegistryError(f"type {name} is not in the registry")
        if node.get("alias"):
            return self.scalar(node.get("alias", ""))
        if category == "enum":
            return "C.c_int32"
        if category == "bitmask":
            return SCALARS[node.findtext("type") or "VkFlags"]
        if category == "handle":
            dispatchable = (node.findtext("type") or "") == "VK_DEFINE_HANDLE"
            return "C.c_void_p" if dispatchable else "C.c_uint64"
        return "C.c_void_p" if category == "funcpointer" else None

    def ctype(self, item: Declaration, where: str) -> str:
        """The ctypes expression of a member or parameter."""
        base, pointers = item.type, item.pointers
        if base in STRUCTS:
            text: str | None = base
        elif base == "char" and pointers:
            text, pointers = "C.c_char_p", pointers - 1
        elif base == "void" or (
            pointers
            and self.registry.categories.get(base) in {"struct", "union", "basetype"}
            and base not in SCALARS
        ):
            text, pointers = "C.c_void_p", pointers - 1
        else:
            text = self.scalar(base)
        if text is None or pointers < 0:
            raise RegistryError(f"{where}.{item.name} needs {base} by value; list it in STRUCTS")
        for _ in range(pointers):
            text = f"P({text})"
        for extent in reversed(item.extents):
            text = f"{text} * {extent if extent.isdigit() else self.registry.value(extent)}"
        return text

    def constants(self) -> None:
        """Constants and whole enumerations, then the names of results."""
        names = list(CONSTANTS)
        for group in ENUMS:
            if group not in self.registry.groups:
                raise RegistryError(f"enumeration {group} is not in the registry")
            names += self.registry.groups[group]
        self.lines += [f"{name} = {self.registry.value(name)}" for name in names]
        results = ", ".join(f"{self.registry.value(n)}: {n!r}" for n in self.registry.groups["VkResult"])
        self.lines += ["", f"RESULT_NAMES = {{{results}}}", ""]

    def structs(self) -> None:
        """Structs in an order in which every by-value member is defined first."""
        done: set[str] = set()

        def emit(name: str) -> None:
            if name in done:
                return
            done.add(name)
            members = self.registry.members(name)
            for member in members:
                if member.type in STRUCTS:
                    emit(member.type)
            stype = next((m.stype for m in members if m.stype), None)
            self.lines += ["", f"class {name}({'Chained' if stype else 'C.Structure'}):"]
            if stype:
                self.lines.append(f"    STYPE = {self.registry.value(stype)}")
            fields = ", ".join(f"({m.name!r}, {self.ctype(m, name)})" for m in members)
            self.lines += [f"    _fields_ = [{fields}]", ""]

        for name in STRUCTS:
            emit(name)

    def commands(self) -> None:
        """One table class per level; the level follows from the first parameter."""
        levels: dict[str, list[str]] = {"Global": [], "Instance": [], "Device": []}
        for name in COMMANDS:
            levels[self.level(name)].append(name)
        for level, names in levels.items():
            optional = [n for n in names if n in self.registry.extension_commands]
            self.lines += ["", f"class {level}Commands(Commands):"]
            for name in names:
                result, parameters = self.registry.parameters(name)
                shown = "None" if result == "void" else "int"
                self.lines.append(f"    {name}: Callable[..., {shown}]")
            self.lines.append(f"    OPTIONAL = frozenset({optional!r})")
            self.lines.append("    PROTOTYPES = {")
            for name in names:
                result, parameters = self.registry.parameters(name)
                returned = "None" if result == "void" else self.result(result)
                kinds = "".join(f", {self.ctype(p, name)}" for p in parameters)
                self.lines.append(f"        {name!r}: C.CFUNCTYPE({returned}{kinds}),")
            self.lines += ["    }", ""]

    def result(self, name: str) -> str:
        """The ctypes return type of a command."""
        text = self.scalar(name)
        if text is None:
            raise RegistryError(f"return type {name} is not a scalar")
        return text

    def level(self, command: str) -> str:
        """The dispatch level: what loads the command."""
        _, parameters = self.registry.parameters(command)
        first = parameters[0].type if parameters else ""
        if command == "vkGetInstanceProcAddr" or not first.startswith("Vk") or parameters[0].pointers:
            return "Global"
        if command == "vkGetDeviceProcAddr" or first in {"VkInstance", "VkPhysicalDevice"}:
            return "Instance"
        return "Device"


HEADER = '''# ruff: noqa
# mypy: ignore-errors
"""Vulkan calls, structs and constants used by Mansard (registry version {version}).

Written by tools/gen_vulkan.py from vk.xml; do not edit. Importing it loads no library.
"""

import ctypes as C
from collections.abc import Callable
from typing import Any, ClassVar

P = C.POINTER


class Chained(C.Structure):
    """A struct with sType and pNext; sType is filled in, pNext may be set with `chain`."""

    STYPE = 0

    def __init__(self, **members: object) -> None:
        super().__init__(sType=self.STYPE, **members)


def chain(*structs: Any) -> Any:
    """Link structs by pNext in the order given and return the first, which keeps the others alive."""
    for before, after in zip(structs, structs[1:]):
        before.pNext = C.addressof(after)
        before._next = after
    return structs[0]


class Commands:
    """Typed function pointers of one dispatch level, found by ``resolve(name) -> address``.

    Commands of extensions that are not there stay unset; a missing core command raises LookupError.
    """

    OPTIONAL: ClassVar[frozenset[str]]
    PROTOTYPES: ClassVar[dict[str, Any]]

    def __init__(self, resolve: Callable[[str], int | None]) -> None:
        for name, prototype in self.PROTOTYPES.items():
            address = resolve(name)
            if address:
                setattr(self, name, prototype(address))
            elif name not in self.OPTIONAL:
                raise LookupError(f"the Vulkan driver lacks {{name}}")

    def address(self, name: str) -> int:
        """Where a command lies, for callers in C."""
        return C.cast(getattr(self, name), C.c_void_p).value or 0

'''


def generate(registry_path: Path) -> str:
    """The source of vk.py."""
    registry = Registry(registry_path)
    writer = Writer(registry)
    writer.constants()
    writer.structs()
    writer.commands()
    return HEADER.format(version=registry.version) + "\n".join(writer.lines)


def main() -> int:
    """Write the binding; 1 and a message on an unresolved name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("registry", type=Path, help="path of vk.xml")
    parser.add_argument("output", type=Path, help="file to write")
    arguments = parser.parse_args()
    try:
        source = generate(arguments.registry)
    except RegistryError as error:
        print(f"gen_vulkan: {error}", file=sys.stderr)
        return 1
    compile(source, str(arguments.output), "exec")
    arguments.output.write_text(source)
    return 0


if __name__ == "__main__":
    sys.exit(main())
