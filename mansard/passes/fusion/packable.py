"""Mark the constants of each dispatch that its schedule may pack (`mansard.ir.panels`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from mansard.ir.dispatch import DispatchGraph


def mark_packable(graph: DispatchGraph) -> DispatchGraph:
    """Set `Dispatch.packable`: constants that are read by a single dispatch, once, and that are not
    outputs."""
    live = {graph.base(v) for v in graph.graph.live_outs()}
    readers = Counter(v for dispatch in graph.dispatches for v in dispatch.inputs)
    exclusive = {v for v in graph.graph.constants if readers[v] == 1 and v not in live}
    marked = [replace(d, packable=frozenset(exclusive & set(d.inputs))) for d in graph.dispatches]
    return replace(graph, dispatches=tuple(marked))
