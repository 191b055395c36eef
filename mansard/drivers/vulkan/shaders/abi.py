"""How kernels receive their buffers: by address or by descriptor; executables may hold both.

``bda``: the argument table of `EntryPoint`, with 64-bit addresses. ``descriptors``: buffer ``i`` is the
storage buffer at binding ``i`` of set 0, and push constants hold the parameters alone, 8 bytes each.
``all``: two modules, of which a device takes the first whose requirements it meets; addresses come first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.errors import ArtifactError
from mansard.hal.executable import ExecutableSpec

BDA, DESCRIPTORS, ALL = "bda", "descriptors", "all"
FORMATS: Mapping[str, str] = {BDA: "spirv", DESCRIPTORS: "spirv-descriptors", ALL: "spirv-all"}
"""The format of an executable, by its ABI."""
ADDRESSES = ("buffer_device_address", "int64")
"""Features behind the first ABI."""


@dataclass(frozen=True)
class ShaderModule:
    """A SPIR-V module, its ABI (``bda`` or ``descriptors``) and what it needs of a device."""

    abi: str
    code: bytes
    requires: tuple[str, ...]


def device_formats(features: Mapping[str, bool]) -> tuple[str, ...]:
    """The formats that a device with these named features loads, best first."""
    by_address = (FORMATS[BDA],) if all(features.get(name, False) for name in ADDRESSES) else ()
    return (*by_address, FORMATS[ALL], FORMATS[DESCRIPTORS])


def join(modules: Sequence[ShaderModule]) -> tuple[str, bytes, tuple[str, ...]]:
    """Format, code and requirements of an executable with one module or, of the same kernels, two.

    With two, a line of JSON in front says how long they are and what each needs beyond the other.
    """
    if len(modules) == 1:
        (module,) = modules
        return FORMATS[module.abi], module.code, module.requires
    common = tuple(r for r in modules[0].requires if all(r in module.requires for module in modules))
    head = [
        {"abi": m.abi, "bytes": len(m.code), "requires": [r for r in m.requires if r not in common]}
        for m in modules
    ]
    return FORMATS[ALL], json.dumps(head).encode() + b"\n" + b"".join(m.code for m in modules), common


def modules_of(spec: ExecutableSpec) -> list[ShaderModule]:
    """The modules of an executable, best first; raises ArtifactError for one that cannot be read."""
    code = bytes(spec.code)
    if spec.format == FORMATS[BDA]:
        return [ShaderModule(BDA, code, _by_address(spec.requires))]
    if spec.format == FORMATS[DESCRIPTORS]:
        return [ShaderModule(DESCRIPTORS, code, spec.requires)]
    text, _, rest = code.partition(b"\n")
    modules = []
    try:
        for part in json.loads(text):
            part_code, rest = rest[: part["bytes"]], rest[part["bytes"] :]
            requires = (*spec.requires, *part["requires"])
            modules.append(
                ShaderModule(
                    part["abi"], part_code, _by_address(requires) if part["abi"] == BDA else requires
                )
            )
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"an executable in format {spec.format!r} cannot be read: {error}") from error
    if rest or {module.abi for module in modules} - {BDA, DESCRIPTORS}:
        raise ArtifactError(f"an executable in format {spec.format!r} does not hold what it says")
    return modules


def _by_address(requires: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*requires, *ADDRESSES)))
