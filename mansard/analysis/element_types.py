"""Element types of a dispatch: those it computes with, and where packed 4-bit integers are only read."""

from __future__ import annotations

from mansard.dtypes import DType
from mansard.ir.dispatch import Dispatch
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.scalar import Arg, Cast, Gather, children, walk


def stored_types(dispatch: Dispatch) -> set[DType]:
    """Element types of the buffers a dispatch reads and writes."""
    return {v.type.dtype for v in (*dispatch.inputs, *dispatch.outputs)}


def element_types(dispatch: Dispatch) -> set[DType]:
    """Element types of a dispatch's buffers and of what it computes on the way."""
    used = stored_types(dispatch)
    for op in dispatch.ops:
        if isinstance(op, Generic):
            used |= {node.dtype for node in walk(op.body)} - {DType.BOOL}
    return used


def only_reads_packed(dispatch: Dispatch) -> bool:
    """Whether every 4-bit value of a dispatch is read from a buffer and cast before anything else.

    No result is packed, no arithmetic is done in 4 bits, and no read is padded.
    """
    if any(_packed(v.type.dtype) for v in dispatch.outputs):
        return False
    return all(isinstance(op, Reshape) or _reads_only(op) for op in dispatch.ops)


def _reads_only(op: Op) -> bool:
    if not isinstance(op, Generic):
        return not any(_packed(v.type.dtype) for v in (*op.inputs, *op.outputs))
    padded = [v for v, m in zip(op.inputs, op.maps, strict=True) if m is not None and m.fill is not None]
    if any(_packed(v.type.dtype) for v in padded) or (op.combiner and _packed(op.body.dtype)):
        return False
    for node in walk(op.body):
        if _packed(node.dtype) and not isinstance(node, (Arg, Gather)):
            return False
        if not isinstance(node, Cast) and any(_packed(child.dtype) for child in children(node)):
            return False
    return True


def _packed(dtype: DType) -> bool:
    return dtype.bits < 8
