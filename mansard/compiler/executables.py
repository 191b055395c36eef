"""The executables of a compiled model: every distinct kernel once per device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mansard.cache import Counts, Folder
from mansard.codegen.backend import CompiledDispatch
from mansard.codegen.parameters import Parameters
from mansard.compiler.contracts import kernel_contract
from mansard.compiler.kernels import Choose, KernelCompiler, distinct
from mansard.compiler.operand_slices import slice_operands
from mansard.compiler.planning.inputs import KernelRef
from mansard.compiler.regions import compile_region
from mansard.compiler.sources import KernelSource
from mansard.compiler.targets import CompileTarget
from mansard.compiler.tuned import tuned_here
from mansard.hal.executable import ExecutableSpec
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.ir.panels import Panels
from mansard.ir.types import Value
from mansard.plan.plan import ExecutableRef, KernelContract


@dataclass(frozen=True)
class Executables:
    """``refs`` are the executables of every device, ``blobs`` their code by artifact entry, ``packed``
    the layout in which kernels want constants."""

    kernels: dict[Dispatch, KernelRef] = field(default_factory=dict)
    refs: list[tuple[ExecutableRef, ...]] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    packed: dict[Value, Panels] = field(default_factory=dict)
    sources: list[KernelSource] = field(default_factory=list)
    cache: Counts = field(default_factory=Counts)
    """Kernels found in the cache, and kernels compiled."""


@dataclass(frozen=True)
class KernelSettings:
    """How kernels are made. ``folder`` keeps them between runs; with it, kernels that were tuned on a
    device of this machine get the parameters that were found."""

    folder: Folder | None = None
    progress: Callable[[int, int], None] | None = None
    dump: Callable[[str, str], None] | None = None


def build_executables(
    graph: DispatchGraph,
    device_of: Mapping[Dispatch, int],
    targets: Sequence[CompileTarget],
    settings: KernelSettings,
) -> Executables:
    """Compile the kernels of a placed dispatch graph."""
    result = Executables(cache=settings.folder.counts if settings.folder else Counts())
    for number, target in enumerate(targets):
        mine = [d for d in graph.dispatches if device_of[d] == number]
        sliced = {d: slice_operands(d, target.kernel.operand_alignment) for d in mine if not d.is_region}
        first, key_of = distinct([s.dispatch for s in sliced.values()])
        compiler = KernelCompiler(target.backend, target.kernel, settings.folder)
        compiled = compiler.compile_all(first, _choice(target, settings), settings.progress)
        if settings.dump:
            _dump(settings.dump, target, first, compiled)
        specs = target.backend.join([kernel.spec for kernel in compiled.values()]) if compiled else []
        regions = {d: compile_region(d, graph, target) for d in mine if d.is_region}
        specs += [region.spec for region in regions.values()]
        pairs = [*((first[key], kernel) for key, kernel in compiled.items()), *regions.items()]
        contracts = {kernel.name: kernel_contract(dispatch, kernel) for dispatch, kernel in pairs}
        result.refs.append(tuple(add_executables(result.blobs, number, target.driver, specs, contracts)))
        places = {entry.name: i for i, spec in enumerate(specs) for entry in spec.entries}
        for dispatch in mine:
            if dispatch in sliced:
                seen = sliced[dispatch]
                kernel, offsets = compiled[key_of[seen.dispatch]], seen.offsets
            else:
                kernel, offsets = regions[dispatch], ()
            place = places[kernel.name]
            result.kernels[dispatch] = KernelRef(place, kernel.name, kernel.params, kernel.grid, offsets)
            result.packed.update({dispatch.inputs[i]: panels for i, panels in kernel.packed.items()})
        result.sources.extend(
            KernelSource(number, kernel.name, key, kernel.parameters, kernel.packed)
            for key, kernel in compiled.items()
        )
    if settings.folder:
        settings.folder.trim()
    else:
        result.cache.misses = len(result.sources)
    return result


def _choice(target: CompileTarget, settings: KernelSettings) -> Choose:
    results = tuned_here(target.backend, target.kernel) if settings.folder else None

    def choose(key: str) -> Parameters | None:
        tuned = results.get(key) if results else None
        return tuned.parameters if tuned else None

    return choose


def add_executables(
    blobs: dict[str, bytes],
    number: int,
    driver: str,
    specs: Sequence[ExecutableSpec],
    contracts: Mapping[str, KernelContract],
) -> list[ExecutableRef]:
    """Executables as entries of an artifact, with the ``contracts`` of their kernels by name: their code goes
    to ``blobs``."""
    refs = []
    for i, spec in enumerate(specs):
        entry = f"kernels/{number}-{driver}/{i}.bin"
        blobs[entry] = bytes(spec.code)
        rows = tuple((e.name, e.bindings, e.params, e.workgroup, e.offset) for e in spec.entries)
        named = tuple(contracts[e.name] for e in spec.entries)
        refs.append(ExecutableRef(entry, spec.format, spec.target, spec.requires, rows, named))
    return refs


def _dump(
    dump: Callable[[str, str], None],
    target: CompileTarget,
    first: Mapping[str, Dispatch],
    compiled: Mapping[str, CompiledDispatch],
) -> None:
    """What was compiled, in the forms that the backend can show."""
    if not compiled:
        return
    pairs = [(first[key], kernel) for key, kernel in compiled.items()]
    for form, text in target.backend.listings(pairs, target.kernel).items():
        dump(f"{form}-{target.backend.name}", text)
