"""Scale a product instead of both of its factors.

Before (attention as ONNX exporters write it: the root of the scale on queries and on keys)::

    %a: 8x64xf32 = generic (d0:8, d1:64) {%q[d0, d1] * 0.35}
    %b: 8x64xf32 = generic (d0:8, d1:64) {%k[d0, d1] * 0.35}
    %s: 8x8xf32 = generic (d0:8, d1:8 | d2:64) add {%a[d0, d2] * %b[d1, d2]}

After::

    %s_1: 8x8xf32 = generic (d0:8, d1:8 | d2:64) add {%q[d0, d2] * %k[d1, d2]}
    %s: 8x8xf32 = generic (d0:8, d1:8) {%s_1[d0, d1] * 0.1225}

Only for f32, and where nothing else reads the scaled factors. What scales the product is part of its kernel.
"""

from __future__ import annotations

from dataclasses import replace

from mansard.dtypes import DType
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Arg, Const
from mansard.ir.types import IndexMap, Value


def factor_scales(graph: Graph) -> Graph:
    """Move the scales behind every product whose factors both have one; the same graph if there are none."""
    users, producers, live = graph.users(), graph.producers(), graph.live_outs()
    taken = {v.name for v in graph.values()}
    ops: list[Op] = []
    for op in graph.ops:
        scales = [_scale(producers.get(v)) for v in op.inputs] if _multiplies(op) else []
        read_here = all(v not in live and users[v] == [op] for v in op.inputs)
        if not isinstance(op, Generic) or len(scales) != 2 or None in scales or not read_here:
            ops.append(op)
            continue
        inputs, maps, factor = [], [], 1.0
        for value, index_map in zip(op.inputs, op.maps, strict=True):
            source = producers[value]
            assert isinstance(source, Generic) and source.maps[0] is not None and index_map is not None
            inputs.append(source.inputs[0])
            maps.append(source.maps[0].compose(index_map.results))
            factor *= _scale(source) or 0.0
        bare = Value(fresh_name(taken, op.output.name), op.output.type)
        ops.append(replace(op, inputs=tuple(inputs), maps=tuple(maps), outputs=(bare,)))
        body = Apply("mul", (Arg(0, DType.F32), Const(factor, DType.F32)), DType.F32)
        identity = (IndexMap.identity(op.rank),)
        ops.append(Generic((bare,), op.outputs, op.extents[: op.rank], identity, body, location=op.location))
    if len(ops) == len(graph.ops):
        return graph
    read = {v for op in ops for v in op.inputs} | set(live)
    return graph.with_ops([op for op in ops if any(v in read for v in op.outputs) or not op.outputs])


def _multiplies(op: Op) -> bool:
    """A sum of products of two different values, in f32."""
    if (
        not isinstance(op, Generic)
        or not is_contraction(op)
        or len(op.inputs) != 2
        or op.inputs[0] is op.inputs[1]
    ):
        return False
    body = op.body
    if not (isinstance(body, Apply) and body.op == "mul" and all(isinstance(a, Arg) for a in body.args)):
        return False
    plain = all(m is not None and m.fill is None for m in op.maps)
    return plain and all(v.type.dtype is DType.F32 for v in (*op.inputs, op.output))


def _scale(op: Op | None) -> float | None:
    """The number that a map multiplies its only operand with."""
    if not isinstance(op, Generic) or op.combiner is not None or len(op.inputs) != 1:
        return None
    index_map, body = op.maps[0], op.body
    if index_map is None or index_map.fill is not None or not isinstance(body, Apply) or body.op != "mul":
        return None
    numbers = [a.value for a in body.args if isinstance(a, Const)]
    if len(numbers) != 1 or not any(isinstance(a, Arg) for a in body.args):
        return None
    return float(numbers[0])
