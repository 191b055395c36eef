"""Dead code elimination: remove ops and constants without readers.

Before::

    const  %w: 4xf32
    %a: 4xf32 = generic (d0:4) {-%x[d0]}
    %b: 4xf32 = generic (d0:4) {abs(%x[d0])}
    return %b

After::

    %b: 4xf32 = generic (d0:4) {abs(%x[d0])}
    return %b

Ops with a side effect (Assert) are kept.
"""

from __future__ import annotations

from mansard.ir.graph import Graph


def eliminate_dead(graph: Graph) -> Graph:
    """Drop ops and constants without a reader; the same graph when there are none."""
    live = set(graph.live_outs())
    kept = []
    for op in reversed(graph.ops):
        if op.has_effect or any(v in live for v in op.outputs):
            kept.append(op)
            live.update(op.inputs)
    constants = {v: c for v, c in graph.constants.items() if v in live}
    if len(kept) == len(graph.ops) and len(constants) == len(graph.constants):
        return graph
    return graph.with_ops(kept[::-1], constants=constants)
