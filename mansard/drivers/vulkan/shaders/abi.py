"""How kernels receive their buffers: by address or by descriptor; executables may hold both.

``bda``: the argument table of `EntryPoint`, with 64-bit addresses. ``descriptors``: buffer ``i`` is the
storage buffer at binding ``i`` of set 0, and push constants hold the parameters alone, 8 bytes each.
``all``: two modules, of which a device takes the first whose requirements it meets; addresses come first.

``ptx``: a kernel for NVIDIA GPUs, in PTX. Its one parameter is a byte array that holds the argument table by
value. It is alone in an executable of the format ``spirv-ptx``, or beside a SPIR-V module of the same kernels
that takes addresses: then the device must meet the requirements of both, and the last parameter of a dispatch
says which of the two runs (0: SPIR-V).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.drivers.vulkan.instance.features import PTX_SM_90A
from mansard.errors import ArtifactError
from mansard.hal.executable import ExecutableSpec

BDA, DESCRIPTORS, ALL, PTX = "bda", "descriptors", "all", "ptx"
FORMATS: Mapping[str, str] = {BDA: "spirv", DESCRIPTORS: "spirv-descriptors", ALL: "spirv-all"}
"""The format of an executable, by the ABI that a target may ask for."""
PTX_FORMAT = "spirv-ptx"
"""The format of an executable with a PTX module."""
ADDRESSES = ("buffer_device_address", "int64")
"""Features behind the first ABI."""


@dataclass(frozen=True)
class ShaderModule:
    """A module of kernels, its ABI (``bda``, ``descriptors`` or ``ptx``) and what it needs of a device."""

    abi: str
    code: bytes
    """SPIR-V, or the text of a PTX module, with or without a zero byte at its end."""
    requires: tuple[str, ...]
    threads: int = 0
    """Of a PTX module: the invocations of a block, which has one dimension."""


def device_formats(features: Mapping[str, bool]) -> tuple[str, ...]:
    """The formats that a device with these named features loads, best first."""
    by_ptx = (PTX_FORMAT,) if features.get(PTX_SM_90A, False) else ()
    by_address = (FORMATS[BDA],) if all(features.get(name, False) for name in ADDRESSES) else ()
    return (*by_ptx, *by_address, FORMATS[ALL], FORMATS[DESCRIPTORS])


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
    return FORMATS[ALL], _packed(head, modules), common


def join_ptx(ptx: ShaderModule, spirv: ShaderModule | None) -> tuple[str, bytes, tuple[str, ...]]:
    """Format, code and requirements of an executable with a PTX module, and a SPIR-V one beside it.

    A line of JSON in front says how long they are and what each needs; the executable needs all of that.
    """
    modules = [ptx] if spirv is None else [spirv, ptx]
    head: list[dict[str, Any]] = [
        {"abi": m.abi, "bytes": len(m.code), "requires": list(m.requires)} for m in modules
    ]
    head[-1]["threads"] = ptx.threads
    requires = dict.fromkeys(name for module in modules for name in _needs(module.abi, module.requires))
    return PTX_FORMAT, _packed(head, modules), tuple(requires)


def modules_of(spec: ExecutableSpec) -> list[ShaderModule]:
    """The modules of an executable without PTX, of which a device takes one: best first.

    Raises ArtifactError for one that cannot be read.
    """
    if spec.format in (FORMATS[BDA], FORMATS[DESCRIPTORS]):
        abi = BDA if spec.format == FORMATS[BDA] else DESCRIPTORS
        return [ShaderModule(abi, bytes(spec.code), _needs(abi, spec.requires))]
    return _unpacked(spec, (BDA, DESCRIPTORS), spec.requires)


def ptx_parts(spec: ExecutableSpec) -> tuple[ShaderModule, ShaderModule | None]:
    """The PTX module of an executable, and the SPIR-V module beside it if there is one; a device takes both.

    Raises ArtifactError for one that cannot be read.
    """
    by_abi = {module.abi: module for module in _unpacked(spec, (BDA, PTX), ())}
    if PTX not in by_abi:
        raise _broken(spec)
    return by_abi[PTX], by_abi.get(BDA)


def spirv_modules(spec: ExecutableSpec) -> list[bytes]:
    """The SPIR-V modules of an executable in any Vulkan format; none in another format.

    Raises ArtifactError for one that cannot be read.
    """
    if spec.format == PTX_FORMAT:
        _, spirv = ptx_parts(spec)
        return [spirv.code] if spirv else []
    return [module.code for module in modules_of(spec)] if spec.format in FORMATS.values() else []


def _packed(head: object, modules: Sequence[ShaderModule]) -> bytes:
    return json.dumps(head).encode() + b"\n" + b"".join(module.code for module in modules)


def _unpacked(spec: ExecutableSpec, abis: tuple[str, ...], common: tuple[str, ...]) -> list[ShaderModule]:
    """The modules behind a line of JSON, at most one of each ABI; ``common`` is what all of them need."""
    text, _, rest = bytes(spec.code).partition(b"\n")
    modules = []
    try:
        for part in json.loads(text):
            abi, size, threads = part["abi"], int(part["bytes"]), int(part.get("threads", 0))
            requires = (*common, *map(str, part["requires"]))
            if abi not in abis or not 0 <= size <= len(rest) or (threads > 0) != (abi == PTX):
                raise _broken(spec)
            modules.append(ShaderModule(abi, rest[:size], _needs(abi, requires), threads))
            rest = rest[size:]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ArtifactError(f"an executable in format {spec.format!r} cannot be read: {error}") from error
    if rest or not modules or len({module.abi for module in modules}) < len(modules):
        raise _broken(spec)
    return modules


def _broken(spec: ExecutableSpec) -> ArtifactError:
    return ArtifactError(f"an executable in format {spec.format!r} does not hold what it says")


def _needs(abi: str, requires: Sequence[str]) -> tuple[str, ...]:
    """What kernels with an ABI need, that included."""
    by_abi = {BDA: ADDRESSES, PTX: (*ADDRESSES, PTX_SM_90A)}.get(abi, ())
    return tuple(dict.fromkeys((*requires, *by_abi)))
