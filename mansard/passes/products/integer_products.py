"""Demotion of integer products to 8-bit operands and 32-bit sums, as dot-product instructions require.

Frameworks widen 8-bit operands before they multiply, and some sum in 64 bits. Before::

    %a: 8x64xi32 = generic (d0:8, d1:64) {i32(%x[d0, d1])}                        %x: 8x64xi8
    %y: 8x16xi64 = generic (d0:8, d1:16 | d2:64) add {i64(%a[d0, d2]) * i64(%w[d2, d1])}    %w: i32 constant

After (all of the constant's values are 8-bit; a sum of 64 products of 16 bits fits 32)::

    %y.sum: 8x16xi32 = generic (d0:8, d1:16 | d2:64) add {i32(%x[d0, d2]) * i32(%w.demoted[d2, d1])}
    %y: 8x16xi64 = generic (d0:8, d1:16) {i64(%y.sum[d0, d1])}

A zero point is moved out of the product if the other operand is constant: the sum of (x + z) * w is the sum
of x * w, plus z times the sum of w, which constant folding then computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mansard import dims
from mansard.analysis.operands import with_reads
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.interpreter.graph import load
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Arg, Cast, Const, Scalar
from mansard.ir.types import Constant, IndexMap, TensorType, Value

BYTES = (DType.I8, DType.U8)
_RANGES = {DType.I8: (-128, 127), DType.U8: (0, 255)}
LARGEST = 255
"""The largest magnitude of an 8-bit value."""


@dataclass(frozen=True)
class _Side:
    """A factor: an 8-bit value, its index map in the product, and the number to add to its elements."""

    value: Value
    reads: IndexMap
    shift: int


def demote_integers(graph: Graph) -> Graph:
    """Rewrite every integer product whose operands hold 8-bit values; the same graph if there are none."""
    return _Demotion(graph).run()


class _Demotion:
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
        if self._is_demoted(op, body):
            return (op,)
        left, right = (self._demoted(op, side) for side in body.args)
        if left is None or right is None:
            return (op,)
        shift, other = (left.shift, right) if left.shift else (right.shift, left)
        terms = dims.bounds(dims.product(op.extents[d] for d in op.reduced))[1]
        if terms * LARGEST * (LARGEST + abs(shift)) >= 2**31:
            return (op,)
        if not shift:
            return tuple(self._finished(op, [self._product(op, left, right)], None, 0))
        weights = self._sums(op, other)
        if weights is None:
            return (op,)
        return tuple(self._finished(op, [self._product(op, left, right), weights], other, shift))

    def _product(self, op: Generic, left: _Side, right: _Side) -> Generic:
        sides = (left, right)
        casts = tuple(Cast(Arg(i, side.value.type.dtype), DType.I32) for i, side in enumerate(sides))
        body = Apply("mul", casts, DType.I32)
        total = self._new(op, op.output.type.shape)
        inputs, maps = [side.value for side in sides], [side.reads for side in sides]
        return with_reads(replace(op, outputs=(total,)), inputs, maps, body)

    def _new(self, op: Generic, shape: Sequence[DimLike]) -> Value:
        name = fresh_name(self.taken, f"{op.output.name}.sum")
        return Value(name, TensorType(tuple(shape), DType.I32))

    def _sums(self, op: Generic, side: _Side) -> Generic | None:
        """The sums of a constant factor over the reduced dims, for each parallel dim that indexes it; or
        None."""
        walked = side.reads.plain_dims
        if side.value not in self.constants or side.shift or walked is None or None in walked:
            return None
        if not set(op.reduced) <= set(walked) or len(set(walked)) != len(walked):
            return None
        kept = sorted(d for d in walked if d is not None)
        extents = tuple(op.extents[d] for d in kept)
        out = self._new(op, extents[: len(kept) - len(op.reduced)])
        reads = IndexMap.of_dims(tuple(kept.index(d) for d in walked if d is not None))
        body = Cast(Arg(0, side.value.type.dtype), DType.I32)
        return Generic((side.value,), (out,), extents, (reads,), body, "add", location=op.location)

    def _finished(self, op: Generic, ops: list[Generic], other: _Side | None, shift: int) -> list[Generic]:
        """The ops and one more that defines the result: the sum, shifted and extended to its original
        width."""
        dtype = op.output.type.dtype
        if other is None and dtype is DType.I32:
            return [replace(ops[0], outputs=op.outputs)]
        maps = [IndexMap.identity(op.rank)]
        body: Scalar = Arg(0, DType.I32)
        if other is not None:
            walked = sorted(d for d in other.reads.plain_dims or () if d is not None and d < op.rank)
            maps.append(IndexMap.of_dims(tuple(walked)))
            scaled = Apply("mul", (Arg(1, DType.I32), Const(shift, DType.I32)), DType.I32)
            body = Apply("add", (body, scaled), DType.I32)
        body = body if dtype is DType.I32 else Cast(body, dtype)
        inputs = tuple(o.output for o in ops)
        shape = op.output.type.shape
        return [*ops, Generic(inputs, op.outputs, shape, tuple(maps), body, location=op.location)]

    def _is_demoted(self, op: Generic, body: Apply) -> bool:
        """Whether the product is already demoted."""
        casts = [a.arg for a in body.args if isinstance(a, Cast)]
        return body.dtype is DType.I32 and len(casts) == 2 and all(a.dtype in BYTES for a in casts)

    def _demoted(self, op: Generic, side: Scalar) -> _Side | None:
        """The 8-bit source of one factor, and its index map in the product."""
        while isinstance(side, Cast) and _widens(side):
            side = side.arg
        if not isinstance(side, Arg):
            return None
        index_map = op.maps[side.index]
        if index_map is None or index_map.fill is not None:
            return None
        value, shift = self._shifted(op.inputs[side.index])
        source = self._source(value)
        return None if source is None else _Side(source, index_map, shift)

    def _shifted(self, value: Value) -> tuple[Value, int]:
        """``value`` as another value of the same shape plus a constant, which may take several additions."""
        total = 0
        while (step := self._addition(value)) is not None:
            value, total = step[0], total + step[1]
        return value, total

    def _addition(self, value: Value) -> tuple[Value, int] | None:
        """``value`` as another value of the same shape plus a constant; None if no addition makes it."""
        producer = self.producers.get(value)
        if not isinstance(producer, Generic) or producer.combiner is not None:
            return None
        body = producer.body
        if not isinstance(body, Apply) or body.op not in ("add", "sub"):
            return None
        moved, number = body.args
        if not isinstance(number, Const) or not number.dtype.is_int:
            return None
        while isinstance(moved, Cast) and _widens(moved):
            moved = moved.arg
        if not isinstance(moved, Arg) or producer.maps[moved.index] != IndexMap.identity(value.type.rank):
            return None
        shift = int(number.value) if body.op == "add" else -int(number.value)
        return producer.inputs[moved.index], shift

    def _source(self, value: Value) -> Value | None:
        """An 8-bit value equal to ``value`` element by element, or None."""
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
        fits = [d for d, (lowest, highest) in _RANGES.items() if lowest <= low and high <= highest]
        if not fits:
            return None
        dtype = fits[0]

        def demoted() -> npt.NDArray[np.generic]:
            return load(value, source).astype(dtype.numpy)

        stored = Value(fresh_name(self.taken, f"{value.name}.demoted"), replace(value.type, dtype=dtype))
        self.constants[stored] = Constant(f"{source.key}.{dtype.value}", demoted)
        return stored


def _widens(node: Cast) -> bool:
    """Whether a cast between integers preserves every value."""
    source, target = node.arg.dtype, node.dtype
    if not (source.is_int and target.is_int):
        return False
    signs = source.is_signed == target.is_signed or not source.is_signed
    return target.bits > source.bits and signs
