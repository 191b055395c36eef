"""Let readers of numbers that bytes stand for read the bytes.

Before (a residual addition, and a maximum over a window)::

    %x: 1x8x8x32xf32 = generic (...) {(f32(%q[d0, d1, d2, d3]) - 3.0) * 0.0177}                %q: u8
    %y: 1x8x8x32xf32 = generic (...) {%x[d0, d1, d2, d3] + %other[d0, d1, d2, d3]}
    %m: 1x4x4x32xf32 = generic (... | d4:2, d5:2) max {%x[d0, (2)*d1 + d4, (2)*d2 + d5, d3]}

After::

    %y: 1x8x8x32xf32 = generic (...) {(f32(%q[d0, d1, d2, d3]) - 3.0) * 0.0177 + %other[d0, d1, d2, d3]}
    %n: 1x4x4x32xu8 = generic (... | d4:2, d5:2) max {%q[d0, (2)*d1 + d4, (2)*d2 + d5, d3]}
    %m: 1x4x4x32xf32 = generic (...) {(f32(%n[d0, d1, d2, d3]) - 3.0) * 0.0177}

Otherwise the numbers would be stored beside the bytes. Results are the same to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from mansard.dtypes import DType
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Arg, Cast, Const, Scalar, rewrite, walk
from mansard.ir.types import IndexMap, TensorType, Value

F32 = DType.F32
LEAST = {DType.I8: -128, DType.U8: 0}
CHEAP = 4
"""Operations of a map that is computed where it is read."""


def read_bytes(graph: Graph) -> Graph:
    """Compute what bytes stand for where it is read; the same graph where nothing is."""
    producers, taken = graph.producers(), {v.name for v in graph.values()}
    ops: list[Op] = []
    for op in graph.ops:
        if isinstance(op, Generic):
            largest = _largest(op, producers, taken)
            ops.extend(largest)
            producers |= {new.output: new for new in largest}
            if largest:
                continue
            op = _reads_bytes(op, producers)
        ops.append(op)
    if len(ops) == len(graph.ops) and all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


def _largest(op: Generic, producers: Mapping[Value, Op], taken: set[str]) -> list[Generic]:
    """A maximum of numbers as that of the bytes, which they grow with, and what this stands for."""
    producer = producers.get(op.inputs[0]) if len(op.inputs) == 1 else None
    if op.combiner != "max" or op.body != Arg(0, F32) or not _is_cheap(producer):
        return []
    assert isinstance(producer, Generic)
    (index_map,), source = op.maps, producer.inputs[0]
    if index_map is None or index_map.fill not in (None, -math.inf) or not _grows(producer.body):
        return []
    if index_map.fill is not None and not _meets(op, index_map, source):
        return []
    dtype, output = source.type.dtype, op.output
    fill = None if index_map.fill is None else LEAST[dtype]
    bytes_ = Value(fresh_name(taken, f"{output.name}.bytes"), TensorType(output.type.shape, dtype))
    reads = (IndexMap(index_map.results, fill),)
    largest = replace(op, inputs=(source,), outputs=(bytes_,), maps=reads, body=Arg(0, dtype))
    shape, identity = output.type.shape, IndexMap.identity(output.type.rank)
    return [largest, replace(producer, inputs=(bytes_,), outputs=(output,), extents=shape, maps=(identity,))]


def _grows(body: Scalar) -> bool:
    """Whether a chain of literals added and multiplied by never falls as its argument grows."""
    while isinstance(body, Apply):
        inner, literal = body.args
        if body.op not in ("add", "sub", "mul") or not isinstance(literal, Const):
            return False
        if not math.isfinite(literal.value) or (body.op == "mul" and literal.value < 0):
            return False
        body = inner
    return isinstance(body, Cast) and isinstance(body.arg, Arg)


def _meets(op: Generic, index_map: IndexMap, source: Value) -> bool:
    """Whether every window over a padded value has a point inside."""
    for at, size in zip(index_map.results, source.type.shape, strict=True):
        inner = [(c, op.extents[d]) for d, c in at.terms if d >= op.rank]
        outer = [(c, op.extents[d]) for d, c in at.terms if d < op.rank]
        known = [size, at.offset, *(n for pair in (*inner, *outer) for n in pair)]
        if not all(isinstance(n, int) for n in known) or any(int(str(c)) < 0 for c, _ in (*inner, *outer)):
            return False
        reach, last = (sum(int(str(c)) * (int(str(n)) - 1) for c, n in pairs) for pairs in (inner, outer))
        offset, extent = int(str(at.offset)), int(str(size))
        steps = [int(str(c)) for c, n in inner if n != 1]
        if offset + reach < 0 or offset + last >= extent or any(step > extent for step in steps):
            return False
    return True


def _reads_bytes(op: Generic, producers: dict[Value, Op]) -> Generic:
    inputs, maps = list(op.inputs), list(op.maps)
    bodies: dict[int, Scalar] = {}
    if op.combiner is not None:
        return op
    for i, (value, index_map) in enumerate(zip(op.inputs, op.maps, strict=True)):
        producer = producers.get(value)
        if index_map is None or index_map.fill is not None or not _is_cheap(producer):
            continue
        assert isinstance(producer, Generic)
        inputs[i], bodies[i] = producer.inputs[0], producer.body
    if not bodies:
        return op

    def inlined(node: Scalar) -> Scalar:
        if not isinstance(node, Arg) or node.index not in bodies:
            return node
        place, dtype = node.index, inputs[node.index].type.dtype
        return rewrite(bodies[place], lambda inner: Arg(place, dtype) if isinstance(inner, Arg) else inner)

    return replace(op, inputs=tuple(inputs), maps=tuple(maps), body=rewrite(op.body, inlined))


def _is_cheap(op: Op | None) -> bool:
    """Whether an op computes numbers from bytes alone, element by element."""
    if not isinstance(op, Generic) or op.combiner is not None or len(op.inputs) != 1:
        return False
    if op.inputs[0].type.dtype not in LEAST or op.output.type.dtype is not F32:
        return False
    nodes = list(walk(op.body))
    plain = all(isinstance(n, (Arg, Cast, Const, Apply)) for n in nodes)
    cheap = sum(isinstance(n, Apply) for n in nodes) <= CHEAP
    steps = all(n.op in ("add", "sub", "mul") for n in nodes if isinstance(n, Apply))
    return plain and cheap and steps and op.maps[0] == IndexMap.identity(op.rank)
