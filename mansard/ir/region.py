"""Regions: parts of a Graph that a device compiles, and runs as one step each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from mansard.dims import Dim, DimLike, representative
from mansard.ir.graph import Graph
from mansard.ir.ops import Op, Reshape
from mansard.ir.producers import base_of


@dataclass(frozen=True, eq=False)
class Region:
    """Ops of a graph that run as one. No path between two of them leads through ops outside.

    Reshapes are views: they belong to whoever reads them, and to no region.
    """

    ops: frozenset[Op]
    seconds: float | None = None
    """Predicted seconds of a run, by the backend that compiles it; None: by the cost model."""
    note: str = ""
    """What the backend says of the region, for those who read decisions."""
    bytes: int = 0
    """Of the device's memory that its program takes while it is loaded, by the backend that compiles it."""

    def holds(self, ops: Collection[Op]) -> bool:
        """Whether all of ``ops`` that compute anything are in the region."""
        return all(op in self.ops for op in ops if not isinstance(op, Reshape))


@dataclass(frozen=True)
class Partition:
    """What a device takes of a graph: disjoint regions, and why other ops are in none."""

    regions: tuple[Region, ...] = ()
    reasons: Mapping[Op, str] = field(default_factory=dict)
    embeds_constants: bool = True
    """Whether the code of a region holds the constants that it reads; else they are inputs of its step."""

    def region_of(self, ops: Collection[Op]) -> Region | None:
        """The region that holds all of ``ops``, if one does."""
        return next((region for region in self.regions if region.holds(ops)), None)


def extract(graph: Graph, ops: Collection[Op], name: str) -> Graph:
    """The part of a graph with these ops: its inputs are what they read from outside, its outputs what others
    read of them; both lie in buffers of their own, behind reshapes. Constants stay constants."""
    producers = graph.producers()
    computed = {op for op in ops if not isinstance(op, Reshape)}

    kept = set(computed)
    for op in computed:
        for value in op.inputs:
            while isinstance(view := producers.get(value), Reshape):
                kept.add(view)
                value = view.inputs[0]
    inside = tuple(op for op in graph.ops if op in kept)
    defined = {v for op in computed for v in op.outputs}
    read = dict.fromkeys(base_of(v, producers) for op in inside for v in op.inputs)
    outside = [op for op in graph.ops if op not in computed and not isinstance(op, Reshape)]
    needed = [*(v for op in outside for v in op.inputs), *graph.live_outs()]
    wanted = {base_of(v, producers) for v in needed}
    outputs = tuple(v for op in inside if op in computed for v in op.outputs if v in wanted)
    part = Graph(
        name,
        tuple(v for v in read if v not in defined and v not in graph.constants),
        outputs,
        inside,
        {v: graph.constants[v] for v in read if v in graph.constants},
        (),
        tuple(v.name for v in outputs),
    )
    bound = part.dims()
    free = {name: dim for name, dim in symbols(part).items() if name not in bound}
    return replace(part, parameters=tuple(free.values()))


def constant_bytes(region: Graph) -> int:
    """Bytes of the constants of an extracted region."""
    return sum(representative(value.type.bytes) for value in region.constants)


def symbols(graph: Graph) -> dict[str, Dim]:
    """The symbols that sizes of a graph depend on, by name and sorted by it."""
    used: list[DimLike] = [extent for value in graph.values() for extent in value.type.shape]
    for op in graph.ops:
        used += getattr(op, "extents", ())
    by_name = {s.name: s for extent in used if not isinstance(extent, int) for s in extent.symbols()}
    return dict(sorted(by_name.items()))
