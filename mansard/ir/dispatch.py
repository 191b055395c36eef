"""The dispatch graph: what fusion leaves, one kernel per node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mansard.dims import DimLike
from mansard.ir.graph import Graph
from mansard.ir.ops import Assert, Generic, Op, Reshape, Scatter
from mansard.ir.region import Partition
from mansard.ir.types import Value


@dataclass(frozen=True, eq=False)
class Dispatch:
    """Ops that become one kernel.

    ``inputs`` are the buffers it reads and ``outputs`` those it writes (graph values; a value seen
    through reshapes is listed as its base). ``ops`` hold every op in order, reshapes included.
    ``domain`` are the parallel loop extents shared by all ops (empty for special ops); a Generic in
    ``ops`` computes at a domain point, or at a domain point times inner dims.
    """

    name: str
    ops: tuple[Op, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    domain: tuple[DimLike, ...]
    packable: frozenset[Value] = frozenset()
    """Inputs that are constants nothing else reads: the schedule may choose their layout in memory."""
    in_place: frozenset[Value] = frozenset()
    """Inputs whose buffer the output takes (`mansard.passes.fusion.in_place`)."""
    constants: frozenset[Value] = frozenset()
    """Inputs that are constants, as far as `mansard.passes.fusion.packable.mark_constants` says so: nothing
    waits for them in a persistent kernel."""
    is_region: bool = False
    """Whether it is a region of the graph, which its device's backend compiles as a whole."""
    parts: tuple[Dispatch, ...] = ()
    """The independent dispatches that it consists of, each for workgroups of its own; empty for one alone.
    Their operands and ops, in order, are then its own, and it has no domain."""

    @property
    def is_nest(self) -> bool:
        """Whether its kernel is a loop nest: Generics, whose rows a Scatter at most writes into a state."""
        nested = any(isinstance(op, Generic) for op in self.ops) and not self.parts
        return nested and all(isinstance(op, (Generic, Reshape, Scatter)) for op in self.ops)

    @property
    def location(self) -> str:
        """Where the first op with a known place comes from."""
        return next((op.location.text for op in self.ops if op.location.text), "")

    @property
    def summary(self) -> str:
        """Op names for reports, such as ``generic×3 reduce``."""
        names = [_kind(op) for op in self.ops]
        return " ".join(f"{n}×{names.count(n)}" if names.count(n) > 1 else n for n in dict.fromkeys(names))


def _kind(op: Op) -> str:
    if isinstance(op, Generic):
        if op.combiner is None:
            return "map"
        return "contraction" if is_contraction(op) else f"reduce_{op.combiner}"
    return op.name


def is_contraction(op: Op) -> bool:
    """Whether an op is a sum of products with reuse (`Generic.is_contraction`)."""
    return isinstance(op, Generic) and op.is_contraction


@dataclass(frozen=True)
class DispatchGraph:
    """Dispatches in execution order over the values of ``graph``; ``bases`` maps a reshaped value to
    the value that holds its memory."""

    graph: Graph
    dispatches: tuple[Dispatch, ...]
    bases: Mapping[Value, Value]
    asserts: tuple[Assert, ...] = ()
    slices: Mapping[Value, tuple[Value, DimLike]] = field(default_factory=dict)
    """Values that are a part of another one's memory, from a byte of it on, which dispatches read."""
    joins: Mapping[Value, tuple[tuple[Value, DimLike], ...]] = field(default_factory=dict)
    """Values whose memory is that of others, which dispatches write, each from a byte of it on."""
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    """The regions that devices take of the graph, by device slot; no dispatch lies in a region in part."""

    def base(self, value: Value) -> Value:
        """The value whose buffer holds ``value``."""
        return self.bases.get(value, value)

    def whole(self, value: Value) -> Value:
        """The value of which one is a slice, or itself."""
        base = self.base(value)
        return self.whole(self.slices[base][0]) if base in self.slices else base

    def sources(self, value: Value) -> tuple[Value, ...]:
        """The buffers behind a value, each the result of a dispatch, an input, a constant or a state."""
        base = self.whole(value)
        return tuple(part for part, _ in self.joins[base]) if base in self.joins else (base,)

    def __str__(self) -> str:
        from mansard.ir.printer import print_dispatches

        return print_dispatches(self)
