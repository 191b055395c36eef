"""Let attention unpack the caches that it reads, instead of storing them unpacked for every call.

Before (keys kept as bytes with a scale for each position and head)::

    %k: 1x8x4096x64xf32 = generic (b, h, s, d) {f32(%keys[b, s, h, d]) * %scales[b, s, h]}
    %scores: … = generic (b, h, g, q, s | d) add {%q[b, h, g, q, d] * %k[b, h, s, d]}

After::

    %scores: … = generic (b, h, g, q, s | d) add {%q[…] * (f32(%keys[b, s, h, d]) * %scales[b, s, h])}

A map over the whole cache would cost its capacity in each step, however little of it is in use; kernels of
attention stop at the last position.
"""

from __future__ import annotations

from collections.abc import Mapping

from mansard.analysis.attention import find_attention
from mansard.analysis.operands import inlined, is_light
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op, Reshape, Scatter
from mansard.ir.scalar import Gather, walk
from mansard.ir.types import Value

UNPACKING_OPS = 3
"""The most arithmetic of a map that is inlined."""


def unpack_states(graph: Graph) -> Graph:
    """Inline maps of states into the products of attention that alone read them; the same graph if there are
    none."""
    producers, users, live = graph.producers(), graph.users(), graph.live_outs()
    products = {
        product
        for op in graph.ops
        if (form := find_attention(op, producers)) is not None
        for product in (form.scores, form.weighted)
    }
    kept = {state.before for state in graph.states}
    packed = {
        op.output: op
        for op in graph.ops
        if isinstance(op, Generic)
        and op.output not in live
        and all(user in products for user in users.get(op.output, ()))
        and _unpacks(op, producers, kept)
    }
    if not packed:
        return graph
    return graph.with_ops(
        [inlined(op, packed) if isinstance(op, Generic) and op in products else op for op in graph.ops]
    )


def _unpacks(op: Generic, producers: Mapping[Value, Op], kept: set[Value]) -> bool:
    """Whether an op makes wider elements of what states hold."""
    if op.combiner is not None or not op.inputs or not is_light(op.body, UNPACKING_OPS):
        return False
    if any(m is None or m.fill is not None for m in op.maps):
        return False
    if any(isinstance(node, Gather) for node in walk(op.body)):
        return False
    states = [v for v in op.inputs if _is_state(v, producers, kept)]
    return len(states) == len(op.inputs) and any(
        v.type.dtype.bits < op.output.type.dtype.bits for v in states
    )


def _is_state(value: Value, producers: Mapping[Value, Op], kept: set[Value]) -> bool:
    """Whether a value is a state, with rows written into it or not."""
    while (op := producers.get(value)) is not None and isinstance(op, (Reshape, Scatter)):
        value = op.inputs[0]
    return value in kept
