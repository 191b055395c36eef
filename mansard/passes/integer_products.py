"""Integer products over 8-bit operands, as dot-product instructions take them.

Frameworks widen 8-bit operands before they multiply, and some sum in 64 bits. Before::

    %a: 8x64xi32 = generic (d0:8, d1:64) {i32(%x[d0, d1])}                        %x: 8x64xi8
    %y: 8x16xi64 = generic (d0:8, d1:16 | d2:64) add {i64(%a[d0, d2]) * i64(%w[d2, d1])}    %w: i32 constant

After (all of the constant's values are 8-bit; 64 products of 16 bits cannot leave 32)::

    %y.sum: 8x16xi32 = generic (d0:8, d1:16 | d2:64) add {i32(%x[d0, d2]) * i32(%w.narrow[d2, d1])}
    %y: 8x16xi64 = generic (d0:8, d1:16) {i64(%y.sum[d0, d1])}
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mansard import dims
from mansard.dtypes import DType
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.interpreter import load
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Arg, Cast, Scalar
from mansard.ir.types import Constant, IndexMap, TensorType, Value
from mansard.passes.dispatch import is_contraction
from mansard.passes.operands import with_reads

BYTES = (DType.I8, DType.U8)
_RANGES = {DType.I8: (-128, 127), DType.U8: (0, 255)}
LARGEST_PRODUCT = 255 * 255


def narrow_integers(graph: Graph) -> Graph:
    """Rewrite every integer product whose operands hold 8-bit values; the same graph without any."""
    return _Narrowing(graph).run()


class _Narrowing:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.producers = graph, graph.producers()
        self.taken = {v.name for v in graph.values()}
        self.constants = dict(graph.constants)
        self.stored: dict[Value, Value | None] = {}

    def run(self) -> Graph:
        ops: list[Op] = []
        for op in self.graph.ops:
            ops.extend(self._rewritten(op))
        if len(ops) == len(self.graph.ops) and all(a is b for a, b in zip(ops, self.graph.ops, strict=True)):
            return self.graph
        return self.graph.with_ops(ops, constants=self.constants)

    def _rewritten(self, op: Op) -> tuple[Op, ...]:
        if not isinstance(op, Generic) or not is_contraction(op):
            return (op,)
        body = op.body
        if not isinstance(body, Apply) or body.op != "mul" or body.dtype not in (DType.I32, DType.I64):
            return (op,)
        terms = dims.bounds(dims.product(op.extents[d] for d in op.reduced))[1]
        if terms * LARGEST_PRODUCT >= 2**31 or self._is_narrow(op, body):
            return (op,)
        left, right = (self._narrow(op, side) for side in body.args)
        if left is None or right is None:
            return (op,)
        inputs, maps = (left[0], right[0]), (left[1], right[1])
        product = Apply(
            "mul", tuple(Cast(Arg(i, v.type.dtype), DType.I32) for i, v in enumerate(inputs)), DType.I32
        )
        out = op.output
        if body.dtype is DType.I32:
            return (with_reads(op, inputs, maps, product),)
        name = fresh_name(self.taken, f"{out.name}.sum")
        total = Value(name, TensorType(out.type.shape, DType.I32))
        summed = with_reads(replace(op, outputs=(total,)), inputs, maps, product)
        identity = IndexMap.identity(out.type.rank)
        wide = Generic((total,), (out,), out.type.shape, (identity,), Cast(Arg(0, DType.I32), DType.I64))
        return (summed, wide)

    def _is_narrow(self, op: Generic, body: Apply) -> bool:
        """Whether there is nothing left to do."""
        casts = [a.arg for a in body.args if isinstance(a, Cast)]
        return body.dtype is DType.I32 and len(casts) == 2 and all(a.dtype in BYTES for a in casts)

    def _narrow(self, op: Generic, side: Scalar) -> tuple[Value, IndexMap] | None:
        """The 8-bit value behind one factor, and how the product reads it."""
        while isinstance(side, Cast) and _widens(side):
            side = side.arg
        if not isinstance(side, Arg):
            return None
        index_map = op.maps[side.index]
        found = self._source(op.inputs[side.index])
        return None if index_map is None or found is None else (found, index_map)

    def _source(self, value: Value) -> Value | None:
        """An 8-bit value with the elements of ``value``."""
        if value.type.dtype in BYTES:
            return value
        if value in self.graph.constants:
            if value not in self.stored:
                self.stored[value] = self._store(value)
            return self.stored[value]
        producer = self.producers.get(value)
        if not isinstance(producer, Generic) or producer.combiner is not None:
            return None
        body = producer.body
        if not isinstance(body, Cast) or not _widens(body) or not isinstance(body.arg, Arg):
            return None
        source = producer.inputs[body.arg.index]
        if producer.maps[body.arg.index] != IndexMap.identity(value.type.rank):
            return None
        return self._source(source)

    def _store(self, value: Value) -> Value | None:
        """A constant in 8 bits, if its values fit."""
        source = self.graph.constants[value]
        data = load(value, source)
        if data.dtype.kind not in "iu" or data.size == 0:
            return None
        low, high = int(data.min()), int(data.max())
        fits = [d for d, (least, most) in _RANGES.items() if least <= low and high <= most]
        if not fits:
            return None
        dtype = fits[0]

        def narrowed() -> npt.NDArray[np.generic]:
            return load(value, source).astype(dtype.numpy)

        stored = Value(fresh_name(self.taken, f"{value.name}.narrow"), replace(value.type, dtype=dtype))
        self.constants[stored] = Constant(f"{source.key}.{dtype.value}", narrowed)
        return stored


def _widens(node: Cast) -> bool:
    """Whether a cast between integers keeps every value."""
    source, target = node.arg.dtype, node.dtype
    if not (source.is_int and target.is_int):
        return False
    signs = source.is_signed == target.is_signed or not source.is_signed
    return target.bits > source.bits and signs
