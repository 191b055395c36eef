"""Target texts resolved into backends, kernel targets, profiles and support checks."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard.analysis.packed_reads import only_reads_packed
from mansard.codegen.backend import Backend, KernelTarget
from mansard.codegen.library import LibraryBackend
from mansard.codegen.schedules.common.attention_nest import attention_form
from mansard.compiler.limits import gpu_loop_iterations
from mansard.dtypes import DType
from mansard.errors import CompileError, DeviceUnavailableError
from mansard.hal.device import DeviceInfo
from mansard.ir.dispatch import Dispatch
from mansard.ir.ops import Generic
from mansard.ir.scalar import walk
from mansard.placement import DeviceSlot, PlacementOptions
from mansard.targets.calibrated import calibrated

GROUP = "mansard.targets"
FOR_MODEL = 0.9
"""The part of a device's memory that a model and one call of it may take; the rest is for further calls."""
LEAST_RANGE = 1 << 27
"""Bytes that a descriptor may name on every Vulkan device (the least maxStorageBufferRange)."""
_NEEDS = {
    DType.F64: ("float64",),
    DType.I64: ("int64",),
    DType.F16: ("storage16",),
    DType.BF16: ("storage16",),
    DType.I16: ("storage16",),
    DType.F8: ("storage8",),
    DType.I8: ("storage8",),
    DType.U8: ("storage8",),
    DType.BOOL: ("storage8",),
    DType.I4: ("storage8",),
    DType.U4: ("storage8",),
}


@dataclass(frozen=True)
class CompileTarget:
    """A device slot of the compilation."""

    name: str
    driver: str
    backend: Backend
    kernel: KernelTarget
    slot: DeviceSlot
    variants: tuple[KernelTarget, ...] = ()
    """CPUs with less than ``kernel`` has, for which there are kernels too; the best first."""
    descriptor_range: int | None = None
    """Bytes that one descriptor names, for kernels that take descriptors instead of addresses."""
    largest_buffer: int | None = None
    """Bytes of one buffer; larger weights are split over several. None: as much as there is memory."""


@functools.cache
def backend(driver: str) -> Backend:
    """The compiler half of a backend, by driver name (entry-point group ``mansard.targets``).

    Raises CompileError naming the known ones, or why one cannot be loaded.
    """
    entries = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    if driver not in entries:
        raise CompileError(f"no compiler for target {driver!r}; known: {', '.join(sorted(entries))}")
    try:
        loaded = entries[driver].load()
    except ImportError as error:
        raise CompileError(f"backend {driver!r} cannot be loaded: {error}") from error
    if not isinstance(loaded, Backend):
        raise CompileError(f"backend {driver!r} ({entries[driver].value}) is not a mansard Backend object")
    return loaded


def resolve_targets(texts: Sequence[str], placement: PlacementOptions) -> list[CompileTarget]:
    """One CompileTarget per text; with ``fallback="cpu"`` the CPU is added behind other devices.

    Raises CompileError when more than one target has variants.
    """
    unique = list(dict.fromkeys(texts))
    targets = [_target(text, fallback=False) for text in unique]
    several = [t.name for t in targets if t.variants]
    if len(several) > 1:
        raise CompileError(f"only one target may have variants: join {' and '.join(several)} with a comma")
    if placement.fallback == "cpu" and not any(t.driver == "cpu" for t in targets):
        targets.append(_target("cpu", fallback=True))
    return targets


def _target(text: str, *, fallback: bool) -> CompileTarget:
    driver, _, rest = text.partition(":")
    device = _present(driver, int(rest)) if rest.isdigit() else _present(driver, 0)
    if device is None and rest.isdigit():
        _check_number(text, driver)
    kernel, *variants = _kernel_targets(driver, driver if rest.isdigit() else text)
    at_hand = not rest or rest.isdigit()
    profile = backend(driver).profile(driver if at_hand else kernel.name, device)
    if device is not None and at_hand:
        profile = calibrated(device) or profile
    if device is not None and at_hand:
        kernel = _at_hand(kernel, device)
    # What is made for other devices than the one present is not bound by its limits.
    elsewhere = not at_hand and backend(driver).made_for(kernel.name)
    loops = device.limits.get("loop_iterations") if device and not elsewhere else None
    room = _room(device) if device is not None and at_hand and not profile.unified else None
    slot = DeviceSlot(text, profile, _support(backend(driver), kernel, loops), fallback, room)
    if not kernel.is_gpu:
        return CompileTarget(text, driver, backend(driver), kernel, slot, tuple(variants))
    limits = device.limits if device is not None and at_hand else {}
    named = limits.get("storage_range", LEAST_RANGE)
    largest = limits.get("max_allocation") or backend(driver).largest_buffer(kernel.name) or named
    if "buffer_device_address" not in kernel.features:
        largest = min(largest, named)
    return CompileTarget(text, driver, backend(driver), kernel, slot, tuple(variants), named, largest)


def _room(device: DeviceInfo) -> int | None:
    """Bytes for a model in the device's own memory; None where the driver does not say how much it has."""
    own = sum(heap.size for heap in device.heaps if heap.device_local)
    return int(own * FOR_MODEL) or None


def _kernel_targets(driver: str, text: str) -> list[KernelTarget]:
    """The variants that a target text names, the best first: of wider vectors, then of more features, then
    with more room for a workgroup and more cores."""
    found = {kernel.name: kernel for kernel in map(backend(driver).parse_target, variant_texts(text))}

    def rank(kernel: KernelTarget) -> tuple[int, ...]:
        room = (kernel.workgroup_invocations, kernel.shared_memory_bytes) if kernel.is_gpu else ()
        return (kernel.vector_bits, len(kernel.features), *room, kernel.compute_units)

    return sorted(found.values(), key=rank, reverse=True)


def variant_texts(text: str) -> list[str]:
    """The targets a text lists: ``cpu:x86-64-v4,x86-64-v3,-fma`` is ``cpu:x86-64-v4`` and
    ``cpu:x86-64-v3,-fma``. What follows a comma and a sign is a feature, anything else another target."""
    driver, separator, rest = text.partition(":")
    if not separator:
        return [text]
    parts = [part.removeprefix(f"{driver}:") for part in re.split(r",(?![+-])", rest)]
    return [f"{driver}:{part}" for part in parts]


def _present(driver: str, index: int) -> DeviceInfo | None:
    from mansard.hal import registry

    found = registry.drivers().get(driver)
    infos = [i for i in found.devices() if i.supported and i.index == index] if found else []
    return infos[0] if infos else None


def _check_number(text: str, driver: str) -> None:
    """Raise DeviceUnavailableError for a device that is none of those of its driver here.

    Where the driver has none at all, the number is one of the machine that the model is compiled for.
    """
    from mansard.hal import registry

    found = registry.drivers().get(driver)
    present = [info.id for info in found.devices() if info.supported] if found else []
    if present:
        raise DeviceUnavailableError(
            f"no device {text!r}; devices of driver {driver!r}: {', '.join(present)}"
        )


def _at_hand(kernel: KernelTarget, device: DeviceInfo) -> KernelTarget:
    """The target with the features and limits of the device that is present."""
    made = backend(device.driver)
    return made.parse_target(made.describe_device(device)) if kernel.is_gpu else kernel


def _support(made: Backend, kernel: KernelTarget, loops: int | None) -> Callable[[Dispatch], str | None]:
    if isinstance(made, LibraryBackend):
        return functools.partial(made.refuses, target=kernel)

    def refuses(dispatch: Dispatch) -> str | None:
        used = {v.type.dtype for v in (*dispatch.inputs, *dispatch.outputs)}
        for op in dispatch.ops:
            if isinstance(op, Generic):
                used |= {n.dtype for n in walk(op.body)} - {DType.BOOL}
        packed = sorted(d.value for d in used if d.bits < 8)
        if packed and not (kernel.is_gpu and only_reads_packed(dispatch)):
            what = "no kernels that compute with or store" if kernel.is_gpu else "no CPU kernels for"
            return f"{what} packed element type {', '.join(packed)}"
        if not kernel.is_gpu:
            form = attention_form(dispatch)
            partial = form is not None and form.partial is not None
            return "no CPU kernel for a part of the keys of an attention" if partial else None
        stored = {v.type.dtype for v in (*dispatch.inputs, *dispatch.outputs)}
        for dtype in sorted(used, key=lambda d: d.value):
            wanted = _NEEDS.get(dtype, ()) if dtype in stored or dtype in (DType.F64, DType.I64) else ()
            missing = [name for name in wanted if name not in kernel.features]
            if missing:
                return f"{dtype.value} needs the device feature {', '.join(missing)}"
        longest = gpu_loop_iterations(dispatch, kernel)
        if loops is not None and longest > loops:
            return f"up to {longest} loop iterations in an invocation; the driver stops after {loops}"
        return None

    return refuses
