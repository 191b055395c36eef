"""How kernels receive their buffers: by address or by descriptor; executables may hold both.

``bda``: the argument table of `EntryPoint`, with 64-bit addresses. ``descriptors``: buffer ``i`` is the
storage buffer at binding ``i`` of set 0, and push constants hold the parameters alone, 8 bytes each.
``all``: two modules, of which a device takes the first whose requirements it meets; addresses come first.

``ptx``: a kernel for NVIDIA GPUs, in PTX. Its one parameter is a byte array that holds the argument table by
value. It is alone in an executable of the format ``spirv-ptx``, or beside a SPIR-V module of the same kernels
that takes addresses: then the device must meet the requirements of both, and the last parameter of a dispatch
says which of the two runs (0: SPIR-V).

``ptx-body``: a kernel as PTX statements, beside the SPIR-V module in an executable of the format
``spirv-body``. Devices with PTX may run them for a dispatch (`mansard.drivers.vulkan.shaders.persistent`),
others ignore them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mansard.drivers.vulkan.instance.features import PTX_SM_90A
from mansard.errors import ArtifactError
from mansard.hal.exchanges import NO_EXCHANGE, Exchange
from mansard.hal.executable import ExecutableSpec
from mansard.hal.weight_streams import (
    ALIGNMENT,
    MAX_OPERANDS,
    MAX_SLOT,
    SUBGROUPS,
    StreamOperand,
    WeightStream,
)

BDA, DESCRIPTORS, ALL, PTX, BODY = "bda", "descriptors", "all", "ptx", "ptx-body"
FORMATS: Mapping[str, str] = {BDA: "spirv", DESCRIPTORS: "spirv-descriptors", ALL: "spirv-all"}
"""The format of an executable, by the ABI that a target may ask for."""
PTX_FORMAT = "spirv-ptx"
"""The format of an executable with a PTX module."""
BODY_FORMAT = "spirv-body"
"""The format of an executable with a SPIR-V module and a body."""
ADDRESSES = ("buffer_device_address", "int64")
"""Features behind the first ABI."""


@dataclass(frozen=True)
class BodyInfo:
    """What a persistent kernel needs to know of a body."""

    shared: int
    """Bytes of shared memory of a workgroup."""
    writes: tuple[int, ...] = ()
    """The bindings that it writes."""
    stream: WeightStream | None = None
    """The weights that are copied ahead for it."""
    exchange: Exchange = NO_EXCHANGE
    """The values that it may pass on or wait for."""
    lookups: frozenset[int] = frozenset()
    """The bindings that are tables, of which it reads few elements."""


@dataclass(frozen=True)
class ShaderModule:
    """A module of kernels, its ABI (``bda``, ``descriptors``, ``ptx`` or ``ptx-body``) and what it needs of a
    device."""

    abi: str
    code: bytes
    """SPIR-V, or the text of a PTX module, with or without a zero byte at its end."""
    requires: tuple[str, ...]
    threads: int = 0
    """Of PTX: the invocations of a block, or those of a workgroup of a body, in one dimension."""
    body: BodyInfo | None = None
    """With the ABI ``ptx-body``."""


def device_formats(features: Mapping[str, bool]) -> tuple[str, ...]:
    """The formats that a device with these named features loads, best first."""
    by_ptx = (PTX_FORMAT,) if features.get(PTX_SM_90A, False) else ()
    by_address = (FORMATS[BDA], BODY_FORMAT) if all(features.get(name, False) for name in ADDRESSES) else ()
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


def join_body(body: ShaderModule, spirv: ShaderModule) -> tuple[str, bytes, tuple[str, ...]]:
    """Format, code and requirements of an executable with a SPIR-V module and the body of its one kernel."""
    assert body.body is not None
    info: dict[str, Any] = {"shared": body.body.shared, "writes": list(body.body.writes)}
    if (stream := body.body.stream) is not None:
        info["stream"] = [stream.rows, stream.parts, *map(list, stream.operands)]
        info["products"] = stream.products
    exchange = body.body.exchange
    info["exchange"] = [sorted(exchange.bindings), sorted(exchange.overwrites)]
    info["lookups"] = sorted(body.body.lookups)
    head: list[dict[str, Any]] = [
        {"abi": spirv.abi, "bytes": len(spirv.code), "requires": list(spirv.requires)},
        {"abi": body.abi, "bytes": len(body.code), "requires": [], "threads": body.threads, "body": info},
    ]
    return BODY_FORMAT, _packed(head, [spirv, body]), _needs(spirv.abi, spirv.requires)


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


def body_parts(spec: ExecutableSpec) -> tuple[ShaderModule, ShaderModule]:
    """The SPIR-V module of an executable with a body, and the body; raises ArtifactError for one that cannot
    be read."""
    by_abi = {module.abi: module for module in _unpacked(spec, (BDA, BODY), ())}
    if len(by_abi) < 2 or len(spec.entries) > 1 or not by_abi[BODY].code.isascii():
        raise _broken(spec)
    return by_abi[BDA], by_abi[BODY]


def spirv_modules(spec: ExecutableSpec) -> list[bytes]:
    """The SPIR-V modules of an executable in any Vulkan format; none in another format.

    Raises ArtifactError for one that cannot be read.
    """
    if spec.format == PTX_FORMAT:
        _, spirv = ptx_parts(spec)
        return [spirv.code] if spirv else []
    if spec.format == BODY_FORMAT:
        return [body_parts(spec)[0].code]
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
            requires, body = (*common, *map(str, part["requires"])), part.get("body")
            if abi not in abis or not 0 <= size <= len(rest) or (threads > 0) != (abi in (PTX, BODY)):
                raise _broken(spec)
            if (body is not None) != (abi == BODY):
                raise _broken(spec)
            info = _body_info(spec, body) if body is not None else None
            modules.append(ShaderModule(abi, rest[:size], _needs(abi, requires), threads, info))
            rest = rest[size:]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ArtifactError(f"an executable in format {spec.format!r} cannot be read: {error}") from error
    if rest or not modules or len({module.abi for module in modules}) < len(modules):
        raise _broken(spec)
    return modules


def _body_info(spec: ExecutableSpec, part: Mapping[str, Any]) -> BodyInfo:
    shared, writes = int(part["shared"]), tuple(map(int, part["writes"]))
    given = part.get("stream")
    stream = _stream(spec, given, int(part.get("products", 1))) if given is not None else None
    exchange = Exchange(*(frozenset(map(int, bindings)) for bindings in part.get("exchange", ())))
    lookups = frozenset(map(int, part.get("lookups", ())))
    numbers = {*writes, *exchange.bindings, *exchange.overwrites, *lookups}
    if shared < 0 or min(numbers, default=0) < 0 or not exchange.overwrites <= set(writes):
        raise _broken(spec)
    return BodyInfo(shared, writes, stream, exchange, lookups)


def _stream(spec: ExecutableSpec, part: Sequence[Any], products: int) -> WeightStream:
    rows, parts, *rest = part
    operands = tuple(StreamOperand(*map(int, operand)) for operand in rest)
    stream = WeightStream(int(rows), int(parts), operands, products)
    positive = min(stream.rows, stream.parts, len(operands), *(operand.part for operand in operands)) > 0
    if not positive or products < 1 or len(operands) % products or len(operands) > MAX_OPERANDS:
        raise _broken(spec)
    places = [(operand.part, operand.offset) for operand in operands]
    first = places[: stream.of_product]
    ends = [0, *itertools.accumulate(size for size, _ in first)]
    in_order = [offset for _, offset in first] == ends[:-1] and places == first * products
    aligned = not any(end % ALIGNMENT for end in ends) and ends[-1] <= MAX_SLOT
    bound = all(operand.binding >= 0 for operand in operands)
    whole = products == 1 or SUBGROUPS % (products * stream.parts) == 0
    if not (in_order and aligned and bound and whole):
        raise _broken(spec)
    return stream


def _broken(spec: ExecutableSpec) -> ArtifactError:
    return ArtifactError(f"an executable in format {spec.format!r} does not hold what it says")


def _needs(abi: str, requires: Sequence[str]) -> tuple[str, ...]:
    """What kernels with an ABI need, that included."""
    ptx = (*ADDRESSES, PTX_SM_90A)
    return tuple(dict.fromkeys((*requires, *{BDA: ADDRESSES, PTX: ptx, BODY: ptx}.get(abi, ()))))
