"""The parts of a dispatch with products and the rows that they read, such as a norm before a gated layer.

Before, as ops: ``[reduce_add map contraction contraction map]``. The parts are ``[reduce_add map]``, whose
result no buffer holds, and ``[contraction contraction map]``, which reads it. Between them may stand the
rounding of the rows to bytes (`mansard.passes.products.activations`): ``[reduce_max map map]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mansard.codegen.loop_nest import Nest
from mansard.dims import is_one
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.ir.dispatch import Dispatch, is_contraction
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.producers import backward_slice, base_of, is_view
from mansard.ir.rounded_rows import Rounded, matched
from mansard.ir.scalar import Arg
from mansard.ir.types import Value


@dataclass(frozen=True)
class Rounding:
    """The loop nest that rounds rows to bytes (`mansard.ir.rounded_rows`): over groups of elements, with a
    scale for each."""

    nest: Nest
    codes: Value
    scales: Value
    body: Rounded
    """The parts of a code's body."""


@dataclass(frozen=True)
class Parts:
    """The loop nests of a kernel; all have its buffers."""

    products: Nest
    rows: Nest | None
    """What computes `value`; None where all that is read of rows is in buffers."""
    value: Value | None
    rounding: Rounding | None = None
    """How the rows are rounded before the products read them."""


def parts_of(dispatch: Dispatch) -> Parts | None:
    """The parts of a dispatch with several products, or with one and the rows that it reads; None for any
    other."""
    products = [op for op in dispatch.ops if is_contraction(op)]
    reductions = [op for op in dispatch.ops if isinstance(op, Generic) and op.combiner]
    if not products or len(reductions) == 1 or not dispatch.is_nest:
        return None
    try:
        if len(reductions) == len(products):
            return Parts(Nest(dispatch), None, None)
        return _Split(dispatch, products).parts()
    except CodegenError:
        return None


class _Split:
    def __init__(self, dispatch: Dispatch, products: Sequence[Op]) -> None:
        self.dispatch, self.products = dispatch, products
        self.producers = {v: op for op in dispatch.ops for v in op.outputs}
        self.buffers = (*dispatch.inputs, *dispatch.outputs)

    def parts(self) -> Parts | None:
        read = {self._base(v) for op in self.products for v in op.inputs}
        computed = [v for v in read if _reduces(self._behind(v))]
        rounding, rows, value = None, None, None
        ops: set[Op] = set()
        values: tuple[Value, ...]
        if len(computed) == 2:
            found = self._rounding(computed)
            if found is None:
                return None
            codes, scales, body, value = found
            values = (codes, scales)
            ops = self._behind(codes) | self._behind(scales)
            ops -= self._behind(value) if value is not None else set()
            nest = self._nest(ops, values, () if value is None else (value,))
            rounding = Rounding(nest, codes, scales, body)
        elif len(computed) == 1:
            (value,) = computed
            values = (value,)
        else:
            return None
        if value is not None:
            behind = self._behind(value)
            if self.producers[value] not in behind:
                return None
            rows = self._nest(behind, (value,))
            ops |= behind
        if any(is_contraction(op) for op in ops) or not self._apart(ops, values):
            return None
        others = tuple(op for op in self.dispatch.ops if op not in ops or is_view(op, self.producers))
        main = replace(self.dispatch, ops=others, inputs=(*self.dispatch.inputs, *values))
        return Parts(Nest(main, self.buffers), rows, value, rounding)

    def _nest(self, ops: set[Op], results: tuple[Value, ...], read: tuple[Value, ...] = ()) -> Nest:
        """The nest of ops with one reduction or several over the same rows."""
        ordered = tuple(op for op in self.dispatch.ops if op in ops)
        first = next(op for op in ordered if isinstance(op, Generic) and op.combiner)
        domain = tuple(d for d in first.extents[: first.rank] if not is_one(d))
        inputs = (*self.dispatch.inputs, *read)
        return Nest(Dispatch(self.dispatch.name, ordered, inputs, results, domain), self.buffers)

    def _rounding(self, computed: Sequence[Value]) -> tuple[Value, Value, Rounded, Value | None] | None:
        """Codes and scales of the same rows, the parts of a code, and the rows where they are computed."""
        codes = next((v for v in computed if v.type.dtype is DType.I8), None)
        scales = next((v for v in computed if v.type.dtype is DType.F32), None)
        if codes is None or scales is None:
            return None
        code, scale = self.producers[codes], self.producers[scales]
        largest = self.producers.get(scale.inputs[0])
        if not isinstance(largest, Generic) or largest.combiner != "max" or len(largest.inputs) != 1:
            return None
        if not isinstance(code, Generic) or code.inputs != (largest.inputs[0], largest.output):
            return None
        body = matched(code.body, Arg(1, DType.F32), largest.body)
        if body is None or scale.inputs != (largest.output,):
            return None
        source = self._base(largest.inputs[0])
        return codes, scales, body, source if _reduces(self._behind(source)) else None

    def _apart(self, ops: set[Op], values: Sequence[Value]) -> bool:
        """Whether nothing but the products reads what these ops compute, and they only ``values`` of it, of
        which maps may read elements at computed places."""
        inner = {v for op in ops if not is_view(op, self.producers) for v in op.outputs if v not in values}
        for op in self.dispatch.ops:
            if op in ops:
                continue
            if any(v in inner for v in op.inputs):
                return False
            if isinstance(op, Reshape) or op in self.products:
                continue
            reads = [v for v in op.inputs if self._base(v) in values]
            if reads and not all(isinstance(op, Generic) and _gathers(op, v) for v in reads):
                return False
        return True

    def _base(self, value: Value) -> Value:
        return base_of(value, self.producers)

    def _behind(self, value: Value) -> set[Op]:
        return backward_slice(value, self.producers)


def _gathers(op: Generic, value: Value) -> bool:
    """Whether an op reads a value at computed places alone."""
    return all(m is None for v, m in zip(op.inputs, op.maps, strict=True) if v is value)


def _reduces(ops: set[Op]) -> bool:
    return any(isinstance(op, Generic) and op.combiner for op in ops)
