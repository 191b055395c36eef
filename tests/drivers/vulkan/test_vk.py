"""The generated binding against the registry and the C headers it came from, where they are installed."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

from mansard.drivers.vulkan import vk

REGISTRY = Path("/usr/share/vulkan/registry/vk.xml")
HEADER = Path("/usr/include/vulkan/vulkan_core.h")

STRUCTS = {
    name: value
    for name, value in vars(vk).items()
    if name.startswith("Vk") and isinstance(value, type) and issubclass(value, ctypes.Structure)
}


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("gen_vulkan", ROOT / "tools" / "gen_vulkan.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gen_vulkan"] = module
    spec.loader.exec_module(module)
    return module


def test_importing_loads_no_vulkan_library() -> None:
    code = (
        "import mansard.drivers.vulkan.vk, pathlib, sys; "
        "maps = pathlib.Path('/proc/self/maps'); "
        "sys.exit(maps.exists() and 'libvulkan' in maps.read_text())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_chain_links_and_keeps_the_structs() -> None:
    second = vk.VkPhysicalDeviceVulkan13Features()
    head = vk.chain(vk.VkPhysicalDeviceFeatures2(), vk.VkPhysicalDeviceVulkan12Features(), second)
    assert head.sType == vk.VkPhysicalDeviceFeatures2.STYPE
    following = vk.VkPhysicalDeviceVulkan12Features.from_address(head.pNext)
    assert following.sType == vk.VkPhysicalDeviceVulkan12Features.STYPE
    assert following.pNext == ctypes.addressof(second)


def test_a_missing_core_command_is_an_error_and_a_missing_extension_is_not() -> None:
    with pytest.raises(LookupError, match="vkDestroyDevice"):
        vk.DeviceCommands(lambda name: None)
    optional = vk.DeviceCommands.OPTIONAL
    assert "vkGetMemoryHostPointerPropertiesEXT" in optional
    commands = vk.DeviceCommands(lambda name: None if name in optional else 1)
    assert not set(vars(commands)) & optional


@pytest.mark.skipif(not REGISTRY.exists(), reason=f"{REGISTRY} is not installed")
def test_a_name_the_registry_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    module = generator()
    monkeypatch.setattr(module, "ENUMS", ("VkResult",))
    monkeypatch.setattr(module, "STRUCTS", ())
    monkeypatch.setattr(module, "COMMANDS", ("vkNoSuchCommand",))
    with pytest.raises(module.RegistryError, match="vkNoSuchCommand"):
        module.generate(REGISTRY)


@pytest.mark.skipif(not REGISTRY.exists(), reason=f"{REGISTRY} is not installed")
def test_a_struct_needed_by_value_must_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = generator()
    monkeypatch.setattr(module, "ENUMS", ("VkResult",))
    monkeypatch.setattr(module, "STRUCTS", ("VkPhysicalDeviceMemoryProperties",))
    with pytest.raises(module.RegistryError, match="VkMemoryType"):
        module.generate(REGISTRY)


def known_to(module: Any, registry: Any) -> None:
    """Leave of the generator's lists what a registry knows; a struct goes with what it holds by value."""
    module.ENUMS = tuple(n for n in module.ENUMS if n in registry.groups)
    module.CONSTANTS = tuple(n for n in module.CONSTANTS if n in registry.values)
    module.STRUCTS = tuple(n for n in module.STRUCTS if registry.categories.get(n) == "struct")
    module.COMMANDS = tuple(n for n in module.COMMANDS if n in registry.commands)


def statements(text: str) -> set[str]:
    """Constants, structs and prototypes of a binding, each as a text of its own.

    Pointers are pointers: one to a struct has no type where a registry knows the struct by another name.
    """
    text = re.sub(r"P\(Vk\w+\)", "C.c_void_p", text)
    lines = set(re.findall(r"^VK_\w+ = .*$", text, re.MULTILINE))
    lines |= set(re.findall(r"^ +'\w+': C\.CFUNCTYPE.*$", text, re.MULTILINE))
    return lines | set(re.findall(r"^class Vk\w+\(.*\):\n(?:    .*\n)+", text, re.MULTILINE))


@pytest.mark.skipif(not REGISTRY.exists(), reason=f"{REGISTRY} is not installed")
def test_the_checked_in_file_is_what_the_generator_writes() -> None:
    """In every letter from the same registry; from another, everything that both know."""
    module, checked_in = generator(), Path(str(vk.__file__)).read_text()
    registry = module.Registry(REGISTRY)
    if f"(registry version {registry.version})" in checked_in:
        assert module.generate(REGISTRY) == checked_in
        return
    known_to(module, registry)
    fresh, stored = statements(module.generate(REGISTRY)), statements(checked_in)
    # Enumerations grow, so a newer registry has constants that an older one lacks; the same name never
    # changes its value, a struct never its members, a command never its parameters.
    names = {text.split(" ")[0] for text in stored if text.startswith("VK_")}
    changed = {t for t in fresh - stored if not t.startswith("VK_") or t.split(" ")[0] in names}
    assert not changed
    assert len(fresh & stored) > 0.8 * len(stored)


@pytest.mark.skipif(not HEADER.exists() or not shutil.which("cc"), reason="no C compiler or Vulkan headers")
def test_layout_of_every_struct_is_the_compilers(tmp_path: Path) -> None:
    # An older header lacks the newest structs.
    known = {name: struct for name, struct in STRUCTS.items() if f"}} {name};" in HEADER.read_text()}
    expected = {name: ctypes.sizeof(struct) for name, struct in known.items()}
    lines = [f'printf("{name} %zu\\n", sizeof({name}));' for name in known]
    for name, struct in known.items():
        for field, *_ in struct._fields_:
            expected[f"{name}.{field}"] = getattr(struct, field).offset
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <vulkan/vulkan.h>\n"
        "int main(void) {" + "\n".join(lines) + "return 0; }\n"
    )
    subprocess.run(["cc", str(source), "-o", str(tmp_path / "layout")], check=True)
    printed = subprocess.run([str(tmp_path / "layout")], check=True, capture_output=True, text=True).stdout
    actual = {name: int(value) for name, value in (line.split() for line in printed.splitlines())}
    assert actual == expected
    assert len(expected) > 500
