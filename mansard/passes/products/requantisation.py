"""Round sums of products, and of bytes, to bytes with one scale for each and one shift.

Before (a bias in f32, the zero point of the image, a scale for each channel; all but ``%t`` are constants)::

    %a: 1x8x8x32xf32 = generic (...) {f32(%t[d0, d1, d2, d3] - %sums[d3] * 131) * (%scales[d3] * 0.034)}
    %b: 1x8x8x32xf32 = generic (...) {%a[d0, d1, d2, d3] + %bias[d3]}
    %q: 1x8x8x32xu8 = generic (...) {u8(min(max(round(%b[d0, d1, d2, d3] / 0.0177) + 3.0, 0.0), 255.0))}

After::

    %q: 1x8x8x32xu8 = generic (...)
          {u8(min(max(round(f32(%t[d0, d1, d2, d3]) * %q.scale[d3] + %q.shift[d3]) + 3.0, 0.0), 255.0))}

Scale and shift are computed in double precision; a result differs from before where a quotient is within
rounding of the middle between two bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mansard.analysis.byte_rounding import byte_rounding, rounded_to_byte
from mansard.analysis.operands import inlined, with_body, with_reads
from mansard.dtypes import DType
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.interpreter.graph import load
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Arg, Cast, Const, Scalar, rewrite, walk
from mansard.ir.types import Constant, IndexMap, TensorType, Value

F32, I32 = DType.F32, DType.I32
BYTES = (DType.I8, DType.U8)
FEW = 1 << 16
"""Constants of more elements are no scales."""
_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Affine:
    """The sum of ``value * scale`` over ``terms``, plus ``shift``; arrays have the op's rank. Values are sums
    of products and bytes; without any it is a constant."""

    terms: tuple[tuple[Value, _Array], ...]
    shift: _Array

    def times(self, factor: _Array) -> _Affine:
        """The product with a constant."""
        return _Affine(tuple((value, scale * factor) for value, scale in self.terms), self.shift * factor)


def fold_requantisation(graph: Graph, *, join: bool = True) -> Graph:
    """Fold what happens between a sum of products and bytes; the same graph where nothing does.

    With ``join``, bytes that only one other rounding reads are computed there, without being narrowed.
    """
    return _Folding(graph, join).run()


class _Folding:
    def __init__(self, graph: Graph, join: bool) -> None:
        self.join = join
        self.graph, self.producers, self.users = graph, graph.producers(), graph.users()
        self.live = set(graph.live_outs())
        self.taken = {v.name for v in graph.values()}
        self.constants = dict(graph.constants)

    def run(self) -> Graph:
        ops = [self._folded(op) if isinstance(op, Generic) else op for op in self.graph.ops]
        ops = self._chained(ops) if self.join else ops
        if all(a is b for a, b in zip(ops, self.graph.ops, strict=True)):
            return self.graph
        return self.graph.with_ops(ops, constants=self.constants)

    def _folded(self, op: Generic) -> Op:
        if op.combiner is not None or not isinstance(op.body, Cast):
            return op
        rounding = byte_rounding(op.body)
        if rounding is None:
            return op
        form = self._form(op, rounding.x)
        if form is None or not form.terms or self._steps(op, rounding.x) <= 2 * len(form.terms):
            return op
        inputs = [value for value, _ in form.terms]
        maps = [IndexMap.identity(op.rank) for _ in inputs]

        def applied(x: Scalar, step: str, factor: Value | Const, index_map: IndexMap) -> Scalar:
            if isinstance(factor, Const):
                return x if factor.value == (step == "mul") else Apply(step, (x, factor), F32)
            inputs.append(factor)
            maps.append(index_map)
            return Apply(step, (x, Arg(len(inputs) - 1, F32)), F32)

        x: Scalar | None = None
        shift = self._placed(op, "shift", form.shift)
        for i, (value, scale) in enumerate(form.terms):
            factor = self._placed(op, "scale", scale)
            if factor is None or shift is None:
                return op
            term = applied(Cast(Arg(i, value.type.dtype), F32), "mul", *factor)
            # The shift comes first, so that each addition is one with a product.
            x = applied(term, "add", *shift) if x is None else Apply("add", (x, term), F32)
        assert x is not None
        body = rounded_to_byte(replace(rounding, x=x), op.body.dtype)
        return with_reads(op, inputs, maps, body)

    def _chained(self, ops: list[Op]) -> list[Op]:
        """The ops with bytes that only one other rounding reads as numbers of its body: they are rounded and
        limited as before, but not narrowed in between."""
        folded = {op.outputs[0]: op for op, old in zip(ops, self.graph.ops, strict=True) if op is not old}
        sums = {
            value: op
            for value, op in folded.items()
            if isinstance(op, Generic) and all(v.type.dtype in (I32, F32) for v in op.inputs)
        }
        return [self._joined(op, sums) if isinstance(op, Generic) else op for op in ops]

    def _joined(self, op: Generic, sums: Mapping[Value, Generic]) -> Generic:
        if op.combiner is not None or not isinstance(op.body, Cast) or byte_rounding(op.body) is None:
            return op
        sources = {
            v: sums[v]
            for v, m in zip(op.inputs, op.maps, strict=True)
            if v in sums
            and m == IndexMap.identity(op.rank)
            and len(self.users[v]) == 1
            and v not in self.live
        }
        if not sources:
            return op

        def widened(node: Scalar) -> Scalar:
            narrow = node.arg if isinstance(node, Cast) and node.dtype is F32 else None
            return narrow.arg if isinstance(narrow, Cast) and byte_rounding(narrow) is not None else node

        joined = inlined(op, sources)
        body = rewrite(joined.body, widened)
        assert isinstance(body, Cast)
        return with_body(joined, _without_limits_between(body))

    def _steps(self, op: Generic, node: Scalar) -> int:
        """Operations from the sum to a node, those in other ops included; a division counts as two."""
        count = 0
        for part in walk(node):
            count += isinstance(part, Apply) + (isinstance(part, Apply) and part.op == "div")
            producer = self.producers.get(op.inputs[part.index]) if isinstance(part, Arg) else None
            if isinstance(producer, Generic) and producer.combiner is None:
                count += self._steps(producer, producer.body)
        return count

    def _placed(self, op: Generic, name: str, array: _Array) -> tuple[Value | Const, IndexMap] | None:
        """A factor as a number, or as a constant along one dim of an op."""
        axes = [a for a, extent in enumerate(array.shape) if extent != 1]
        data = array.astype(np.float32)
        if not np.isfinite(data).all() or len(axes) > 1:
            return None
        if not axes:
            return Const(float(data.reshape(())), F32), IndexMap(())
        (axis,) = axes
        if array.shape[axis] != op.extents[axis]:
            return None
        data = data.reshape(-1)
        value = Value(fresh_name(self.taken, f"{op.output.name}.{name}"), TensorType(data.shape, F32))
        digest = hashlib.sha256(data.tobytes()).hexdigest()[:16]
        self.constants[value] = Constant.of(data, f"requantised:{digest}")
        return value, IndexMap.of_dims((axis,))

    # Affine forms -----------------------------------------------------------------------------
    def _form(self, op: Generic, node: Scalar) -> _Affine | None:
        """A part of an op's body as an affine function of a sum, or as a constant."""
        one: _Array = np.ones((1,) * op.rank)
        if isinstance(node, Const):
            return _Affine((), one * float(node.value))
        if node.dtype not in (F32, I32) and not (isinstance(node, Arg) and node.dtype in BYTES):
            return None
        if isinstance(node, Cast):
            return None if node.dtype is I32 and node.arg.dtype is F32 else self._form(op, node.arg)
        if isinstance(node, Arg):
            return self._read(op, node.index)
        if not isinstance(node, Apply) or node.op not in ("add", "sub", "mul", "div"):
            return None
        left, right = (self._form(op, arg) for arg in node.args)
        if left is None or right is None:
            return None
        return _combined(node.op, left, right, is_float=node.dtype is F32)

    def _read(self, op: Generic, number: int) -> _Affine | None:
        value, index_map = op.inputs[number], op.maps[number]
        if index_map is None or index_map.fill is not None:
            return None
        if value in self.graph.constants:
            return self._constant(op, value, index_map)
        if index_map != IndexMap.identity(op.rank):
            return None
        one: _Array = np.ones((1,) * op.rank)
        if value.type.dtype in BYTES:
            return _Affine(((value, one),), one * 0.0)
        producer = self.producers.get(value)
        if not isinstance(producer, Generic):
            return None
        if producer.combiner is not None:
            summed = producer.combiner == "add" and value.type.dtype is I32
            return _Affine(((value, one),), one * 0.0) if summed else None
        if len(self.users[value]) > 1 or value in self.live or producer.rank != op.rank:
            return None
        return self._form(producer, producer.body)

    def _constant(self, op: Generic, value: Value, index_map: IndexMap) -> _Affine | None:
        walked, elements = index_map.plain_dims, value.type.elements
        if walked is None or not isinstance(elements, int) or elements > FEW:
            return None
        data = load(value, self.graph.constants[value]).astype(np.float64)
        kept = [d for d in walked if d is not None]
        data = data[tuple(0 if d is None else slice(None) for d in walked)] if elements else data
        if kept != sorted(set(kept)) or not elements:
            return None
        shape = [1] * op.rank
        for d, extent in zip(kept, data.shape, strict=True):
            shape[d] = extent
        return _Affine((), data.reshape(shape))


def _combined(op: str, left: _Affine, right: _Affine, *, is_float: bool) -> _Affine | None:
    if op in ("add", "sub"):
        right = right if op == "add" else right.times(np.array(-1.0))
        both = {value for value, _ in left.terms} & {value for value, _ in right.terms}
        return None if both else _Affine((*left.terms, *right.terms), left.shift + right.shift)
    if op == "mul" and not left.terms:
        left, right = right, left
    if right.terms or (op == "div" and not is_float):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        return left.times(right.shift if op == "mul" else 1.0 / right.shift)


def _without_limits_between(body: Cast) -> Cast:
    """A rounding of codes that were rounded to a byte before, ``round(q * 2.0 - 250.0)``: limits of q that
    those behind it make redundant are left out, and q's zero point is part of the shift."""
    second = byte_rounding(body)
    assert second is not None
    factor, shift, x = 1.0, 0.0, second.x
    while isinstance(x, Apply) and x.op in ("mul", "add", "sub") and isinstance(x.args[1], Const):
        by = float(x.args[1].value)
        if x.op == "mul":
            factor *= by
        else:
            shift += factor * (by if x.op == "add" else -by)
        x = x.args[0]
    found = (byte_rounding(Cast(x, dtype)) for dtype in BYTES)
    first = next((rounding for rounding in found if rounding is not None), None)
    if first is None or not 0 < factor < np.inf:
        return body
    codes: Scalar = Apply("round", (first.x,), F32)
    least, largest = (np.rint(code * factor + shift) + second.zero for code in (first.low, first.high))
    if least > second.low:
        codes = Apply("max", (codes, Const(float(first.low - first.zero), F32)), F32)
    if largest < second.high:
        codes = Apply("min", (codes, Const(float(first.high - first.zero), F32)), F32)
    scaled = Apply("mul", (codes, Const(float(np.float32(factor)), F32)), F32)
    moved = Const(float(np.float32(shift + factor * first.zero)), F32)
    return rounded_to_byte(replace(second, x=Apply("add", (scaled, moved), F32)), body.dtype)
