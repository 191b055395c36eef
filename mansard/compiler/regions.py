"""The regions that devices take of a graph: asked for, checked, priced and compiled by their backends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from mansard.analysis.topology import region_on_cycle
from mansard.codegen.backend import Backend, CompiledDispatch
from mansard.compiler.targets import CompileTarget
from mansard.dims import symbol
from mansard.errors import CompileError, MansardError
from mansard.hal.executable import EntryPoint, ExecutableSpec
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.ir.graph import Graph
from mansard.ir.ops import Assert, Op, Reshape
from mansard.ir.region import Partition, Region, extract, symbols

_Result = TypeVar("_Result")


def partition_graph(graph: Graph, targets: Sequence[CompileTarget]) -> Mapping[str, Partition]:
    """The regions of a graph by device, for the devices that take regions.

    Where regions of two devices overlap without being equal, or could not both run as one step each, those of
    the later device are left out. Raises CompileError for a backend that fails, or whose regions are no
    partition.
    """
    partitions: dict[str, Partition] = {}
    taken: list[Region] = []
    for target in targets:
        partition = _partition(graph, target)
        if partition is None:
            continue
        regions, reasons = [], dict(partition.reasons)
        for region in partition.regions:
            conflict = _conflict(graph, region, taken)
            if conflict is None:
                regions.append(_priced(graph, region, target))
            else:
                reasons.update(dict.fromkeys(region.ops, conflict))
        taken += regions
        partitions[target.name] = dataclasses.replace(partition, regions=tuple(regions), reasons=reasons)
    return partitions


def compile_region(dispatch: Dispatch, graph: DispatchGraph, target: CompileTarget) -> CompiledDispatch:
    """The executable of a region dispatch, called by its name: bindings are its inputs and outputs, params
    the values of its symbols in the order of their names."""
    backend = target.backend
    part = extract(graph.graph, dispatch.ops, dispatch.name)
    what = f"compile region {dispatch.name!r} of {len(_computing(dispatch.ops))} ops"
    code = _call(backend, what, lambda: backend.compile_region(part, target.kernel))
    if not isinstance(code, bytes):
        raise CompileError(f"backend {backend.name!r} gave a {type(code).__name__} for the bytes of a region")
    params = tuple(symbol(dim) for dim in symbols(part).values())
    bindings = len(dispatch.inputs) + len(dispatch.outputs)
    entry = EntryPoint(dispatch.name, bindings, len(params))
    spec = ExecutableSpec(backend.region_format, target.kernel.name, code, (entry,))
    return CompiledDispatch(spec, params)


def _call(backend: Backend, what: str, function: Callable[[], _Result]) -> _Result:
    """What a backend answers; its failures are CompileErrors that name it."""
    try:
        return function()
    except MansardError as error:
        raise CompileError(f"backend {backend.name!r} cannot {what}: {error}") from error
    except Exception as error:
        raise CompileError(f"backend {backend.name!r} failed to {what}: {error!r}") from error


def _partition(graph: Graph, target: CompileTarget) -> Partition | None:
    backend, kernel = target.backend, dataclasses.replace(target.kernel, memory=target.memory)
    partition = _call(backend, "partition the graph", lambda: backend.partition(graph, kernel))
    if partition is not None and (problem := _invalid(graph, partition)):
        raise CompileError(f"backend {backend.name!r}: {problem}")
    return partition


def _priced(graph: Graph, region: Region, target: CompileTarget) -> Region:
    """A region with what its backend says of it."""
    part, backend = extract(graph, region.ops, "region"), target.backend
    seconds = _call(backend, "price a region", lambda: backend.estimate_region(part, target.kernel))
    if seconds is not None and not 0 <= seconds < float("inf"):
        raise CompileError(f"backend {backend.name!r} prices a region at {seconds} seconds")
    note = _call(backend, "describe a region", lambda: backend.describe_region(part, target.kernel))
    size = _call(backend, "size a region", lambda: backend.region_bytes(part, target.kernel))
    if not isinstance(size, int) or size < 0:
        raise CompileError(f"backend {backend.name!r} says that a region's program has {size!r} bytes")
    return dataclasses.replace(region, seconds=seconds, note=note, bytes=size)


def _invalid(graph: Graph, partition: Partition) -> str | None:
    """Why regions are no disjoint parts of a graph that can run as one step each."""
    known, seen = set(graph.ops), set[Op]()
    for region in partition.regions:
        if not _computing(region.ops):
            return "a region has no op that computes anything"
        for op in region.ops:
            if op not in known:
                return f"a region holds {_named(op)}, which is no op of the graph"
            if isinstance(op, Assert):
                return "a region holds an assert, which the host checks"
            if op in seen:
                return f"{_named(op)} is in two regions"
            seen.add(op)
    cyclic = region_on_cycle(graph, partition.regions)
    if cyclic is None:
        return None
    names = ", ".join(_named(op) for op in graph.ops if op in cyclic.ops and not isinstance(op, Reshape))
    return (
        f"the region of {names} cannot run as one step, since it needs what other ops or regions make of its "
        f"own results (it is not convex)"
    )


def _conflict(graph: Graph, region: Region, taken: Sequence[Region]) -> str | None:
    """Why a region cannot be offered beside those of other devices."""
    others = [other for other in taken if other.ops != region.ops]
    if any(other.ops & region.ops for other in others):
        return "its region overlaps a region of another device"
    if region_on_cycle(graph, [*others, region]):
        return "its region and one of another device would wait for each other"
    return None


def _computing(ops: Sequence[Op] | frozenset[Op]) -> list[Op]:
    return [op for op in ops if not isinstance(op, Reshape)]


def _named(op: Op) -> str:
    return f"{op.name} {', '.join(v.name for v in op.outputs)}".strip()
