"""Target texts resolved into backends, kernel targets, profiles and support checks."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mansard.codegen.backend import Backend
from mansard.codegen.kernel_target import KernelTarget
from mansard.errors import CompileError, DeviceUnavailableError
from mansard.hal.device import HOST_DEVICE, DeviceInfo
from mansard.placement import DeviceSlot, PlacementOptions
from mansard.targets.calibrated import calibrated
from mansard.targets.profile import DeviceProfile

GROUP = "mansard.targets"
FOR_MODEL = 0.9
"""The part of a device's memory that a model and one call of it may take; the rest is for further calls."""
_PRESENT = re.compile(r"(?P<driver>[^:+,]+)(:(?P<index>\d+))?(?P<changes>([+]|,[+-]).*)?")
"""A device that is present: a driver, its number, and changes of the target it would be compiled for."""


@dataclass(frozen=True)
class CompileTarget:
    """A device slot of the compilation."""

    name: str
    driver: str
    backend: Backend
    kernel: KernelTarget
    slot: DeviceSlot
    variants: tuple[KernelTarget, ...] = ()
    """Lesser targets of the same driver for which there are kernels too; the best first."""
    largest_buffer: int | None = None
    """Bytes of one buffer; larger weights are split over several. None: as much as there is memory."""
    memory: int | None = None
    """Bytes that a model may take of its memory, by the placement's options or the device's own."""


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
    targets = [_target(text, fallback=False) for text in dict.fromkeys(texts)]
    names = [t.name for t in targets]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise CompileError(f"{', '.join(repeated)} is asked for more than once, with different changes")
    several = [t.name for t in targets if t.variants]
    if len(several) > 1:
        raise CompileError(f"only one target may have variants: join {' and '.join(several)} with a comma")
    if placement.fallback == HOST_DEVICE and not any(t.driver == HOST_DEVICE for t in targets):
        targets.append(_target(HOST_DEVICE, fallback=True))
    memory = dict(placement.memory)
    return [dataclasses.replace(t, memory=memory.get(t.name, t.slot.memory)) for t in targets]


def _target(text: str, *, fallback: bool) -> CompileTarget:
    """A device that is present (``vulkan``, ``vulkan:1``, ``vulkan+abi=all``), or any that a text
    describes."""
    named = _PRESENT.fullmatch(text)
    if named is not None:
        return _present_target(named["driver"], named["index"], named["changes"] or "", fallback)
    driver = text.partition(":")[0]
    compiler, device = backend(driver), _present(driver, 0)
    kernel, *variants = _kernel_targets(compiler, text)
    if device is not None and not compiler.product_names(kernel.name):
        # A target of no product in particular is likely to run on the device here: its driver's limit counts.
        limit = compiler.device_target(device).loop_iterations
        kernel = dataclasses.replace(kernel, loop_iterations=kernel.loop_iterations or limit)
    profile = compiler.profile(kernel.name, device)
    return _compile_target(text, compiler, [kernel, *variants], None, profile, fallback)


def _present_target(driver: str, index: str | None, changes: str, fallback: bool) -> CompileTarget:
    name = driver if index is None else f"{driver}:{index}"
    device = _present(driver, int(index or 0))
    if device is None and index is not None:
        _check_number(name, driver)
    compiler = backend(driver)
    kernel = compiler.parse_target(driver) if device is None else compiler.device_target(device)
    if changes:
        kernel = compiler.parse_target(kernel.name + changes)
    profile = compiler.profile(driver, device)
    if device is not None:
        profile = calibrated(device) or profile
    return _compile_target(name, compiler, [kernel], device, profile, fallback)


def _compile_target(
    name: str,
    compiler: Backend,
    kernels: Sequence[KernelTarget],
    device: DeviceInfo | None,
    profile: DeviceProfile,
    fallback: bool,
) -> CompileTarget:
    kernel, *variants = kernels
    room = _room(device) if device is not None and not profile.unified else None
    refuses = functools.partial(compiler.refuses, target=kernel)
    slot = DeviceSlot(name, profile, refuses, fallback, room, swaps=compiler.swaps_programs)
    largest = compiler.largest_buffer(kernel, device)
    return CompileTarget(name, compiler.name, compiler, kernel, slot, tuple(variants), largest)


def _room(device: DeviceInfo) -> int | None:
    """Bytes for a model in the device's own memory; None where the driver does not say how much it has."""
    local = sum(heap.size for heap in device.heaps if heap.device_local)
    return int(local * FOR_MODEL) or None


def _kernel_targets(compiler: Backend, text: str) -> list[KernelTarget]:
    """The variants that a target text names, the best first: of wider vectors, then of more features, then
    with more room for a workgroup and more cores."""
    kernels = {kernel.name: kernel for kernel in map(compiler.parse_target, variant_texts(text))}

    def rank(kernel: KernelTarget) -> tuple[int, ...]:
        room = (kernel.workgroup_invocations, kernel.shared_memory_bytes)
        return (kernel.vector_bits, len(kernel.features), *room, kernel.compute_units)

    return sorted(kernels.values(), key=rank, reverse=True)


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

    infos = (i for i in registry.devices(driver) if i.supported and i.index == index)
    return next(infos, None)


def _check_number(text: str, driver: str) -> None:
    """Raise DeviceUnavailableError for a device that is none of those of its driver here.

    Where the driver has none at all, the number is one of the machine that the model is compiled for.
    """
    from mansard.hal import registry

    present = [info.id for info in registry.devices(driver) if info.supported]
    if present:
        raise DeviceUnavailableError(
            f"no device {text!r}; devices of driver {driver!r}: {', '.join(present)}"
        )
