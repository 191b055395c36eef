"""Mark scatters whose indices are computed so that no two rows are written to the same place.

Before::

    %after = scatter %cache, %where, %rows

After (``%where`` counts positions from ``%position`` on)::

    %after = scatter %cache, %where, %rows unique

The order of the rows then does not matter, so that kernels write all of them at once.
"""

from __future__ import annotations

from dataclasses import replace

from mansard.analysis.distinct import distinct_rows
from mansard.ir.graph import Graph
from mansard.ir.ops import Scatter


def mark_unique_indices(graph: Graph) -> Graph:
    """Mark scatters; the same graph when none can be."""
    candidates = [op for op in graph.ops if isinstance(op, Scatter) and not op.unique]
    if not candidates:
        return graph
    producers = graph.producers()
    unique = {op for op in candidates if distinct_rows(op.inputs[1], producers, graph.constants)}
    if not unique:
        return graph
    return graph.with_ops([replace(op, unique=True) if op in unique else op for op in graph.ops])
