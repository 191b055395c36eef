"""The parts of a dispatch with products and the rows that they read, such as a norm before a gated layer.

Before, as ops: ``[reduce_add map contraction contraction map]``. The parts are ``[reduce_add map]``, whose
result no buffer holds, and ``[contraction contraction map]``, which reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mansard.codegen.loop_nest import Nest
from mansard.dims import is_one
from mansard.errors import CodegenError
from mansard.ir.dispatch import Dispatch, is_contraction
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.types import Value


@dataclass(frozen=True)
class Parts:
    """The loop nests of a kernel; both have its buffers."""

    products: Nest
    rows: Nest | None
    """What computes `value`; None where all that products read is in buffers."""
    value: Value | None


def parts_of(dispatch: Dispatch) -> Parts | None:
    """The parts of a dispatch with several products, or with one and the rows that it reads; None for any
    other."""
    products = [op for op in dispatch.ops if is_contraction(op)]
    reductions = [op for op in dispatch.ops if isinstance(op, Generic) and op.combiner]
    if not products or len(reductions) == 1 or not dispatch.is_nest:
        return None
    buffers = (*dispatch.inputs, *dispatch.outputs)
    try:
        if len(reductions) == len(products):
            return Parts(Nest(dispatch), None, None)
        value, ops = _computed_rows(dispatch, products)
        if value is None:
            return None
        others = tuple(op for op in dispatch.ops if op not in ops or _of_a_buffer(op, dispatch))
        main = replace(dispatch, ops=others, inputs=(*dispatch.inputs, value))
        first = next(op for op in ops if isinstance(op, Generic) and op.combiner)
        domain = tuple(d for d in first.extents[: first.rank] if not is_one(d))
        rows = Dispatch(dispatch.name, ops, dispatch.inputs, (value,), domain)
        return Parts(Nest(main, buffers), Nest(rows, buffers), value)
    except CodegenError:
        return None


def _computed_rows(dispatch: Dispatch, products: Sequence[Op]) -> tuple[Value | None, tuple[Op, ...]]:
    """The one result of a reduction that the products read, and the ops behind it, read by nothing else."""
    producers = {v: op for op in dispatch.ops for v in op.outputs}

    def base(value: Value) -> Value:
        while isinstance(op := producers.get(value), Reshape):
            value = op.inputs[0]
        return value

    def behind(value: Value) -> set[Op]:
        ops: set[Op] = set()
        stack = [value]
        while stack:
            op = producers.get(stack.pop())
            if op is not None and op not in ops:
                ops.add(op)
                stack += op.inputs
        return ops

    def reduces(ops: set[Op]) -> bool:
        return any(isinstance(op, Generic) and op.combiner for op in ops)

    read = {base(v) for op in products for v in op.inputs}
    computed = [v for v in read if reduces(behind(v))]
    if len(computed) != 1:
        return None, ()
    (value,) = computed
    ops = behind(value)
    if any(is_contraction(op) for op in ops) or producers[value] not in ops:
        return None, ()
    inner = {v for op in ops if not _of_a_buffer(op, dispatch) for v in op.outputs if v is not value}
    for op in dispatch.ops:
        if op not in ops and any(v in inner for v in op.inputs):
            return None, ()
        reads_value = any(base(v) is value for v in op.inputs)
        if op not in ops and reads_value and not isinstance(op, Reshape) and op not in products:
            return None, ()
    return value, tuple(op for op in dispatch.ops if op in ops)


def _of_a_buffer(op: Op, dispatch: Dispatch) -> bool:
    """Whether an op is a reshape of an operand of the dispatch."""
    producers = {v: op for op in dispatch.ops for v in op.outputs}
    while isinstance(op, Reshape):
        source = producers.get(op.inputs[0])
        if source is None:
            return True
        op = source
    return False
