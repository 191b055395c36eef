"""Target texts resolved into backends, kernel targets, profiles and support checks."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard.codegen.backend import Backend, KernelTarget
from mansard.compiler.limits import gpu_loop_iterations
from mansard.dtypes import DType
from mansard.errors import CompileError
from mansard.hal.device import DeviceInfo
from mansard.ir.ops import Generic
from mansard.ir.scalar import walk
from mansard.passes.dispatch import Dispatch
from mansard.placement import DeviceSlot, Placement
from mansard.targets import default_profile

GROUP = "mansard.targets"
RESIDENT = {"software": 1 << 6, "integrated": 1 << 12, "discrete": 1 << 16, "virtual": 1 << 16}
"""Invocations to give a kind of GPU at least; a discrete one holds 50,000 to 270,000 at a time."""
COMPUTE_UNITS = {"integrated": 8, "discrete": 64, "virtual": 64}
"""Cores of a kind of GPU, where neither the driver nor the table of products knows better."""
MOST_INVOCATIONS = 256
"""Larger workgroups bring nothing to the kernels there are, and fit fewer to a core."""
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


def resolve_targets(texts: Sequence[str], placement: Placement) -> list[CompileTarget]:
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
    kernel, *variants = _kernel_targets(driver, driver if rest.isdigit() else text)
    if device is not None and (not rest or rest.isdigit()):
        kernel = _at_hand(kernel, device)
    profile = default_profile(driver, device.kind if device else "")
    loops = device.limits.get("loop_iterations") if device else None
    slot = DeviceSlot(text, profile, _support(kernel, loops), fallback)
    return CompileTarget(text, driver, backend(driver), kernel, slot, tuple(variants))


def _kernel_targets(driver: str, text: str) -> list[KernelTarget]:
    """The variants that a target text names, the best first: of wider vectors, then of more features."""
    found = {kernel.name: kernel for kernel in map(backend(driver).parse_target, variant_texts(text))}
    return sorted(found.values(), key=lambda k: (k.vector_bits, len(k.features)), reverse=True)


def variant_texts(text: str) -> list[str]:
    """The targets a text lists: ``cpu:x86-64-v4,x86-64-v3,-fma`` is ``cpu:x86-64-v4`` and
    ``cpu:x86-64-v3,-fma``. What follows a comma and a sign is a feature, anything else another CPU."""
    driver, separator, rest = text.partition(":")
    if driver != "cpu" or not separator:
        return [text]
    parts = [part.removeprefix("cpu:") for part in re.split(r",(?![+-])", rest)]
    return [f"cpu:{part}" for part in parts]


def _present(driver: str, index: int) -> DeviceInfo | None:
    from mansard.hal import registry

    found = registry.drivers().get(driver)
    infos = [i for i in found.devices() if i.supported and i.index == index] if found else []
    return infos[0] if infos else None


def _at_hand(kernel: KernelTarget, device: DeviceInfo) -> KernelTarget:
    """The target with the features and limits of the device that is present."""
    if not kernel.is_gpu:
        return kernel
    features = frozenset(name for name, on in device.features.items() if on)
    limits = device.limits
    invocations = limits.get("workgroup_invocations", kernel.workgroup_invocations)
    # Kernels with many registers leave about half of the places empty; half of the others is enough.
    held = limits.get("resident_invocations", 0) // 4
    units = limits.get("compute_units") or COMPUTE_UNITS.get(device.kind, kernel.compute_units)
    least, most = kernel.subgroup
    return dataclasses.replace(
        kernel,
        features=features,
        workgroup_invocations=min(invocations, MOST_INVOCATIONS),
        shared_memory_bytes=limits.get("shared_memory", kernel.shared_memory_bytes),
        resident_invocations=held or RESIDENT.get(device.kind, kernel.resident_invocations),
        compute_units=units,
        subgroup=(limits.get("min_subgroup_size") or least, limits.get("max_subgroup_size") or most),
    )


def _support(kernel: KernelTarget, loops: int | None) -> Callable[[Dispatch], str | None]:
    def refuses(dispatch: Dispatch) -> str | None:
        used = {v.type.dtype for v in (*dispatch.inputs, *dispatch.outputs)}
        for op in dispatch.ops:
            if isinstance(op, Generic):
                used |= {n.dtype for n in walk(op.body)} - {DType.BOOL}
        packed = sorted(d.value for d in used if d.bits < 8)
        if packed:
            return f"no kernels for packed element type {', '.join(packed)}"
        if not kernel.is_gpu:
            return None
        stored = {v.type.dtype for v in (*dispatch.inputs, *dispatch.outputs)}
        for dtype in sorted(used, key=lambda d: d.value):
            wanted = _NEEDS.get(dtype, ()) if dtype in stored or dtype in (DType.F64, DType.I64) else ()
            missing = [name for name in wanted if name not in kernel.features]
            if missing:
                return f"{dtype.value} needs the device feature {', '.join(missing)}"
        longest = gpu_loop_iterations(dispatch)
        if loops is not None and longest > loops:
            return f"up to {longest} loop iterations in an invocation; the driver stops after {loops}"
        return None

    return refuses
