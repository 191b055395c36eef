"""Regions of a graph from the ops that a device takes: as large as convexity and memory allow.

::

    raised = raise_graph(graph)
    partition = partition_raised(graph, raised, refuses, Limits(constants=most, memory=memory))

A backend says of each named op why it does not take it. What remains becomes the largest convex regions;
those that hold more constants than a program may have are cut in the order of the ops, those of a graph that
does not fit the device's memory into parts of which several do, and those without a product are left to
others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph
from mansard.ir.ops import Op, Reshape
from mansard.ir.producers import base_of
from mansard.ir.region import Partition, Region, extract
from mansard.ir.types import Value
from mansard.regions.named.builder import VIEWS
from mansard.regions.named.graph import NamedGraph
from mansard.regions.named.ops import NamedOp
from mansard.regions.raising import Raised

Support = Callable[[NamedOp, NamedGraph], str | None]
"""Why a device does not take an op of a graph; None where it does."""
PARTS = 8
"""Regions that fit a device's memory where it does not hold all: finer ones fill it better, and overlap
better while they take turns; each has a launch and values of its own."""
NO_PRODUCT = "it takes regions with a product in them, and here is none"


@dataclass(frozen=True)
class Limits:
    """What a region may hold."""

    constants: int | None = None
    """Bytes of constants; None: as many as there are."""
    memory: int | None = None
    """Bytes of the device's memory. Where the regions of a graph have more constants, each is cut to a
    `PARTS`-th of it, as far as its ops can be divided: then some stay in the memory while others take turns
    there (`mansard.placement.swapping`), or are left to other devices. None: there is enough."""
    products: bool = True
    """Whether regions without a product (a matrix product or convolution) are left to other devices ..."""
    worth: Callable[[Graph], str | None] | None = None
    """... but for those, as graphs of their own, of which this says no reason against them: what their
    handoff costs beside what they save."""


def partition_raised(
    graph: Graph, raised: Raised, refuses: Support, limits: Limits | None = None
) -> Partition:
    """The regions of a graph whose named ops a device takes, and why other ops are in none."""
    reasons = refusals(raised, refuses)
    return partition(graph, reasons, limits, units(raised.graph))


def refusals(raised: Raised, refuses: Support) -> dict[Op, str]:
    """Why ops of the Graph are not taken: those without a named form, and those whose named form is refused.

    What one named op stands for is refused as a whole.
    """
    reasons = dict(raised.reasons)
    for named in raised.graph.ops:
        reason = refuses(named, raised.graph)
        if reason is not None:
            for op in named.sources:
                reasons.setdefault(op, reason)
    changed = True
    while changed:
        changed = False
        for unit in units(raised.graph):
            reason = next((reasons[op] for op in unit if op in reasons), None)
            for op in unit if reason is not None else ():
                changed |= op not in reasons
                reasons.setdefault(op, reason or "")
    return reasons


def units(named: NamedGraph) -> list[frozenset[Op]]:
    """Ops of the Graph that have one named form together, such as a product of integers and what makes 8-bit
    numbers of its sums. They are in one region or in none."""
    several = (op.sources for op in named.ops if not isinstance(op, VIEWS) and len(op.sources) > 1)
    return list(dict.fromkeys(several))


def partition(
    graph: Graph,
    refused: Mapping[Op, str],
    limits: Limits | None = None,
    together: Iterable[Collection[Op]] = (),
) -> Partition:
    """The largest convex regions of the ops that are not refused. Ops of one set in ``together`` are not
    divided."""
    limits = limits or Limits()
    reasons = {op: reason for op, reason in refused.items() if not isinstance(op, Reshape)}
    reasons = _state_refusals(graph, reasons) | reasons
    unit_of = _united(graph, together)
    regions: list[Region] = []
    whole = convex_regions(graph, reasons.keys())
    preferred = limits.constants
    if limits.memory is not None and sum(constant_bytes(graph, ops) for ops in whole) > limits.memory:
        preferred = min(limits.memory // PARTS, preferred or limits.memory)
    for ops in whole:
        for part in _cut(graph, ops, unit_of, limits.constants, preferred, reasons):
            reason = None
            if limits.products and not any(is_contraction(op) for op in part):
                reason = limits.worth(extract(graph, part, "region")) if limits.worth else NO_PRODUCT
            if reason is None:
                regions.append(Region(frozenset(part)))
            else:
                reasons |= dict.fromkeys(part, reason)
    return Partition(tuple(regions), reasons)


def _state_refusals(graph: Graph, refused: Mapping[Op, str]) -> dict[Op, str]:
    """Ops that share a state with one that is refused, and why: a state is on one device, and its users with
    it, which would keep the rest of their region away."""
    producers, users = graph.producers(), graph.users()
    reasons: dict[Op, str] = {}
    for state in graph.states:
        values, sharing = [state.before, state.after], set[Op]()
        for value in values:
            for op in (producers.get(value), *users.get(value, [])):
                if isinstance(op, Reshape):
                    values += [v for v in (op.output, *op.inputs) if v not in values]
                elif op is not None:
                    sharing.add(op)
        if any(op in refused for op in sharing):
            text = f"it shares the state {state.before.name!r} with an op that is not taken"
            reasons |= {op: text for op in sharing if op not in refused}
    return reasons


def convex_regions(graph: Graph, refused: Collection[Op]) -> list[list[Op]]:
    """The ops that are not refused in convex sets, each connected: those that have as many refused stretches
    behind them. A path that leaves a set through a refused op comes back in a later set."""
    outside, producers = set(refused), graph.producers()
    level: dict[Op, int] = {}
    joined: dict[Op, list[Op]] = {}
    for op in graph.ops:
        before = [producers[v] for v in op.inputs if v in producers]
        if op in outside:
            level[op] = max((level[p] + (p not in outside) for p in before), default=0)
            continue
        level[op] = max((level[p] for p in before), default=0)
        joined[op] = [op]
        for other in before:
            if other not in outside and level[other] == level[op] and joined[other] is not joined[op]:
                small, large = sorted((joined[other], joined[op]), key=len)
                large += small
                joined |= dict.fromkeys(small, large)
    distinct = {id(ops): ops for ops in joined.values()}
    place = {op: number for number, op in enumerate(graph.ops)}
    regions = [[op for op in ops if not isinstance(op, Reshape)] for ops in distinct.values()]
    return [sorted(ops, key=place.__getitem__) for ops in regions if ops]


def constant_bytes(graph: Graph, ops: Iterable[Op]) -> int:
    """Bytes of the constants that ops read, each once."""
    return sum(_bytes(value) for value in _constants(graph, ops))


def _constants(graph: Graph, ops: Iterable[Op]) -> set[Value]:
    """The constants that ops read, also through reshapes."""
    producers = graph.producers()
    read = set()
    for op in ops:
        for value in op.inputs:
            if (base := base_of(value, producers)) in graph.constants:
                read.add(base)
    return read


def _bytes(value: Value) -> int:
    size = value.type.bytes
    assert isinstance(size, int), value
    return size


def _united(graph: Graph, together: Iterable[Collection[Op]]) -> dict[Op, list[Op]]:
    """For ops that are not divided from others: all of them, in order."""
    unit_of: dict[Op, set[Op]] = {}
    for ops in together:
        merged = set(ops)
        for op in ops:
            merged |= unit_of.get(op, set())
        unit_of.update(dict.fromkeys(merged, merged))
    place = {op: number for number, op in enumerate(graph.ops)}
    ordered: dict[int, list[Op]] = {}
    for unit in unit_of.values():
        ordered.setdefault(id(unit), sorted(unit, key=place.__getitem__))
    return {op: ordered[id(unit)] for op, unit in unit_of.items()}


def _cut(
    graph: Graph,
    ops: Sequence[Op],
    unit_of: Mapping[Op, Sequence[Op]],
    limit: int | None,
    preferred: int | None,
    reasons: dict[Op, str],
) -> list[list[Op]]:
    """A region in parts whose constants are at most the ``preferred`` bytes, or those of one unit: ops in
    order, those of a unit where its last one stands.

    A unit of more than ``limit`` goes to ``reasons``.
    """
    if preferred is None or constant_bytes(graph, ops) <= preferred:
        return [list(ops)]
    parts: list[list[Op]] = []
    part: list[Op] = []
    held: set[Value] = set()
    for unit in _in_order(ops, unit_of):
        read = _constants(graph, unit)
        alone = sum(map(_bytes, read))
        if limit is not None and alone > limit:
            text = f"its constants have {alone} bytes, and the device's regions may have {limit}"
            reasons |= dict.fromkeys(unit, text)
            parts, part, held = [*parts, part], [], set()
            continue
        # What reads no further constants stays with what computes its operands.
        if held and read - held and sum(map(_bytes, held | read)) > preferred:
            parts, part, held = [*parts, part], [], set()
        part.extend(unit)
        held |= read
    return [piece for piece in (*parts, part) if piece]


def _in_order(ops: Sequence[Op], unit_of: Mapping[Op, Sequence[Op]]) -> list[Sequence[Op]]:
    """The units of a region, each once all its ops have been reached: an order of execution, since nothing of
    a unit is needed outside it before its end."""
    inside, order = set(ops), list[Sequence[Op]]()
    for op in ops:
        unit = [other for other in unit_of.get(op, (op,)) if other in inside]
        if op is unit[-1]:
            order.append(unit)
    return order
