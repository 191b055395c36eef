"""Read through reshapes that add, drop or move dims of one element only, where that makes an attention.

Before (scores of attention with a dim for groups of heads, as JAX has them)::

    %b: 1x2x8x8xf32 = reshape %a            # %a: 2x8x1x8xf32
    %c: 1x2x8x8xf32 = generic (d0:1, d1:2, d2:8, d3:8) {exp(%b[d0, d1, d2, d3])}

After::

    %c: 1x2x8x8xf32 = generic (d0:1, d1:2, d2:8, d3:8) {exp(%a[d1, d2, 0, d3])}

An attention is recognised as one chain of ops (`mansard.analysis.attention`). Other ops stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mansard import dims
from mansard.analysis.attention import find_attention
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.types import IndexMap, Linear, Value


def read_through_unit_dims(graph: Graph) -> Graph:
    """Read the sources of such reshapes in every attention that then is one; the same graph if none is."""
    producers = graph.producers()
    through = {op: _through(op, producers) for op in graph.ops}
    if all(new is op for op, new in through.items()):
        return graph
    then = {v: new for new in through.values() for v in new.outputs}
    chains = {
        v
        for op, new in through.items()
        if (form := find_attention(new, then)) is not None and find_attention(op, producers) is None
        for member in form.ops
        for v in member.outputs
    }
    if not chains:
        return graph
    ops = [new if chains.intersection(op.outputs) else op for op, new in through.items()]
    live, read = set(graph.live_outs()), {v for op in ops for v in op.inputs}
    kept = [op for op in ops if not isinstance(op, Reshape) or op.output in read or op.output in live]
    return graph.with_ops(kept)


def _through(op: Op, producers: Mapping[Value, Op]) -> Op:
    if not isinstance(op, Generic):
        return op
    inputs, maps = list(op.inputs), list(op.maps)
    for i, (value, index_map) in enumerate(zip(op.inputs, op.maps, strict=True)):
        view = producers.get(value)
        if index_map is None or index_map.fill is not None or not isinstance(view, Reshape):
            continue
        source = view.inputs[0]
        if isinstance(producers.get(source), Generic) and _kept(source) == _kept(value):
            read = iter(
                [r for r, d in zip(index_map.results, value.type.shape, strict=True) if not dims.is_one(d)]
            )
            inputs[i] = source
            maps[i] = IndexMap(tuple(Linear() if dims.is_one(d) else next(read) for d in source.type.shape))
    if all(a is b for a, b in zip(inputs, op.inputs, strict=True)):
        return op
    return replace(op, inputs=tuple(inputs), maps=tuple(maps))


def _kept(value: Value) -> list[dims.DimLike]:
    return [d for d in value.type.shape if not dims.is_one(d)]
