"""Mark the constants of each dispatch, and those that its schedule may pack (`mansard.ir.panels`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import replace

from mansard.ir.dispatch import DispatchGraph
from mansard.ir.quantised_weight import CODES
from mansard.ir.types import Value


def mark_packable(graph: DispatchGraph, shared: AbstractSet[str] = frozenset()) -> DispatchGraph:
    """Set `Dispatch.packable`: constants that are read by a single dispatch, once, and that are not
    outputs.

    Of constants with a key in ``shared``, which other methods of the model read, those of quantised weights
    alone: every kernel wants them in the same panels.
    """
    live = {graph.base(v) for v in graph.graph.live_outs()}
    readers = Counter(v for dispatch in graph.dispatches for v in dispatch.inputs)
    exclusive = {v for v in graph.graph.constants if readers[v] == 1 and v not in live}
    quantised = _quantised(graph) if shared else set()
    exclusive = {v for v in exclusive if v in quantised or not graph.graph.constants[v].holds(shared)}
    marked = [replace(d, packable=frozenset(exclusive & set(d.inputs))) for d in graph.dispatches]
    return replace(graph, dispatches=tuple(marked))


def mark_constants(graph: DispatchGraph) -> DispatchGraph:
    """Set `Dispatch.constants`."""
    constants = set(graph.graph.constants)
    marked = [replace(d, constants=frozenset(constants.intersection(d.inputs))) for d in graph.dispatches]
    return replace(graph, dispatches=tuple(marked))


def _quantised(graph: DispatchGraph) -> set[Value]:
    """The codes of quantised weights, and the constants that are read with them."""
    constants = graph.graph.constants
    together = ([v for v in op.inputs if v in constants] for op in graph.graph.ops)
    return {v for values in together if any(o.type.dtype in CODES for o in values) for v in values}
