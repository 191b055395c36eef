"""Replaces kernels of a compiled model, with its plan, code and packed weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mansard.artifact.resources import Resources, WeightBlock
from mansard.codegen.backend import Backend, CompiledDispatch
from mansard.codegen.parameters import Parameters
from mansard.compiler.contracts import kernel_contract
from mansard.compiler.executables import add_executables
from mansard.compiler.kernels import KernelCompiler
from mansard.compiler.sources import KernelSource, sources_to_bytes
from mansard.ir.panels import Panels
from mansard.ir.types import Value
from mansard.plan.plan import DeviceProgram, DispatchStep, Plan, Segment, Step, WeightSpec

Bytes = npt.NDArray[np.uint8]


class ChangedResources(Resources):
    """Resources of a model with some parts replaced; the others come from ``base``."""

    def __init__(self, base: Resources, sources: bytes) -> None:
        self._base, self._sources = base, sources
        self.blobs: dict[str, bytes] = {}
        self.repacked: dict[str, Callable[[], Bytes]] = {}

    def code(self, entry: str) -> bytes | memoryview:
        """A new executable, or one from ``base``."""
        return self.blobs[entry] if entry in self.blobs else self._base.code(entry)

    def blocks(self, wanted: Sequence[WeightSpec]) -> list[WeightBlock]:
        """Blocks of ``base``, and one for every changed weight."""
        kept = [spec for spec in wanted if spec.entry not in self.repacked]
        changed = [spec for spec in wanted if spec.entry in self.repacked]
        return [*self._base.blocks(kept), *(WeightBlock(self.load(s), {s.entry: 0}) for s in changed)]

    def load(self, spec: WeightSpec) -> Bytes:
        """The bytes of one weight, repacked if its kernel needs another layout."""
        make = self.repacked.get(spec.entry)
        return self._base.load(spec) if make is None else make()

    def sources(self) -> bytes | None:
        """The sources with the new parameters."""
        return self._sources

    @property
    def assets(self) -> Sequence[str]:
        """Those of ``base``."""
        return self._base.assets

    def asset(self, name: str) -> bytes:
        """From ``base``."""
        return self._base.asset(name)

    def close(self) -> None:
        """Close ``base``."""
        self._base.close()


def with_parameters(
    plan: Plan,
    resources: Resources,
    sources: Sequence[KernelSource],
    chosen: Mapping[tuple[int, str], Parameters | None],
    compilers: Mapping[int, KernelCompiler],
) -> tuple[Plan, Resources]:
    """The model with recompiled kernels in all slots that have a compiler.

    ``chosen`` gives the parameters of kernels by slot and name; others keep theirs.
    """
    latest: dict[tuple[int, str], tuple[KernelSource, CompiledDispatch]] = {}
    updated = []
    for source in sources:
        if source.device not in compilers:
            updated.append(source)
            continue
        key = source.device, source.name
        parameters = chosen.get(key, source.parameters)
        kernel = compilers[source.device].compile(source.dispatch(), source.source, parameters)
        latest[key] = source, kernel
        updated.append(replace(source, name=kernel.name, parameters=parameters, packed=kernel.packed))
    changed = ChangedResources(resources, sources_to_bytes(updated))
    for slot, compiler in compilers.items():
        kernels = {name: pair for (device, name), pair in latest.items() if device == slot}
        plan = _with_kernels(plan, changed, resources, slot, compiler.backend, kernels)
    names = ", ".join(plan.devices[slot].name for slot in compilers)
    return replace(plan, info={**plan.info, "tuned": names}), changed


def _with_kernels(
    plan: Plan,
    resources: ChangedResources,
    base: Resources,
    slot: int,
    backend: Backend,
    kernels: Mapping[str, tuple[KernelSource, CompiledDispatch]],
) -> Plan:
    """The plan with the kernels of one device slot replaced under their old names.

    Changed code and weights are added to ``resources``; ``base`` has the old ones.
    """
    device = plan.devices[slot]
    specs = backend.join([kernel.spec for _, kernel in kernels.values()])
    contracts = {
        kernel.name: kernel_contract(source.dispatch(), kernel) for source, kernel in kernels.values()
    }
    refs = add_executables(resources.blobs, slot, device.driver, specs, contracts)
    # Regions have no schedule to tune: their executables stay.
    kept = [n for n, ref in enumerate(device.executables) if not kernels.keys() & {k[0] for k in ref.kernels}]
    place_of = {old: len(refs) + new for new, old in enumerate(kept)}
    refs += [device.executables[n] for n in kept]
    places = {entry.name: i for i, spec in enumerate(specs) for entry in spec.entries}
    weights, values = list(plan.weights), {value.id: value for value in plan.values}

    def changed(step: Step) -> Step:
        if not isinstance(step, DispatchStep):
            return step
        if step.entry not in kernels:
            return replace(step, executable=place_of[step.executable])
        source, kernel = kernels[step.entry]
        for place in sorted({*source.packed, *kernel.packed}):
            old, new = source.packed.get(place), kernel.packed.get(place)
            value = values[step.bindings[place].value]
            if old == new or value.weight is None:
                continue
            before = plan.weights[value.weight]
            dense = source.dispatch().inputs[place]
            after = replace(before, shape=_stored_shape(dense, new))
            weights[value.weight] = after
            size = math.prod(after.shape) * after.dtype.itemsize
            values[value.id] = replace(value, bytes=size)
            resources.repacked[after.entry] = _repacking(base, before, dense, old, new)
        return replace(
            step,
            executable=places[kernel.name],
            entry=kernel.name,
            params=kernel.params,
            grid=kernel.grid,
        )

    segments = tuple(Segment(s.wait, tuple(changed(step) for step in s.steps)) for s in device.segments)
    devices: list[DeviceProgram] = list(plan.devices)
    devices[slot] = replace(device, executables=tuple(refs), segments=segments)
    return replace(
        plan, devices=tuple(devices), weights=tuple(weights), values=tuple(values[v.id] for v in plan.values)
    )


def _stored_shape(dense: Value, panels: Panels | None) -> tuple[int, ...]:
    if panels is not None:
        return panels.shape
    return tuple(int(extent) for extent in dense.type.shape if isinstance(extent, int))


def _repacking(
    base: Resources, spec: WeightSpec, dense: Value, old: Panels | None, new: Panels | None
) -> Callable[[], Bytes]:
    shape = _stored_shape(dense, None)

    def make() -> Bytes:
        stored = base.load(spec).view(spec.dtype.numpy).reshape(spec.shape)
        flat = stored if old is None else unpack(old, stored, math.prod(shape))
        data = flat.reshape(shape) if new is None else new.pack(flat.reshape(shape))
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)

    return make


def unpack(panels: Panels, packed: npt.NDArray[np.generic], size: int) -> npt.NDArray[np.generic]:
    """The inverse of `Panels.pack`: the ``size`` elements of the flat dense constant from ``packed``."""
    # Packing element numbers yields the position of each element; 0 is padding.
    kind = np.uint32 if size < 2**32 - 1 else np.uint64
    places = panels.pack(np.arange(1, size + 1, dtype=kind)).reshape(-1)
    used = places != 0
    flat = np.empty(size, packed.dtype)
    flat[places[used] - 1] = packed.reshape(-1)[used]
    return flat
