"""The rules of scalar bodies."""

from __future__ import annotations

from collections.abc import Mapping

from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.errors import VerificationError
from mansard.ir.ops import Generic
from mansard.ir.scalar import (
    Apply,
    Arg,
    Bitcast,
    Cast,
    Const,
    DimValue,
    Gather,
    Index,
    Scalar,
    walk,
)
from mansard.ir.scalar_ops import find_scalar_op


def check_body(op: Generic, symbols: Mapping[str, Dim]) -> None:
    """Check the body of ``op``; ``symbols`` are those the graph binds. Raises VerificationError."""
    for node in walk(op.body):
        _check_node(op, node, symbols)


def check_literal(value: float | int | bool, dtype: DType) -> None:
    """Check that a Python number is a literal of ``dtype``. Raises VerificationError."""
    if dtype is DType.BOOL:
        good = isinstance(value, bool)
    elif dtype.is_float:
        good = isinstance(value, (float, int)) and not isinstance(value, bool)
    else:
        low = -(2 ** (dtype.bits - 1)) if dtype.is_signed else 0
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value < low + 2**dtype.bits
    if not good:
        raise VerificationError(f"{value!r} ({type(value).__name__}) is not a literal of {dtype.value}")


def _check_node(op: Generic, node: Scalar, symbols: Mapping[str, Dim]) -> None:
    match node:
        case Arg():
            _operand(op, node.index, node.dtype)
            if op.maps[node.index] is None:
                raise VerificationError(f"the body reads operand {node.index}, which has no index map")
        case Gather():
            _operand(op, node.operand, node.dtype)
            rank = op.inputs[node.operand].type.rank
            if len(node.indices) != rank:
                raise VerificationError(
                    f"gather from operand {node.operand} of rank {rank} has {len(node.indices)} indices"
                )
            if any(i.dtype is not DType.I64 for i in node.indices):
                raise VerificationError(f"an index of the gather from operand {node.operand} is not i64")
        case Index():
            if not 0 <= node.dim < len(op.extents):
                raise VerificationError(f"index of dim {node.dim} of {len(op.extents)} iteration dims")
            _is_i64(node.dtype)
        case DimValue():
            for s in () if isinstance(node.value, int) else node.value.symbols():
                if symbols.get(s.name) != s:
                    raise VerificationError(f"the body uses {s}, which no input or state binds")
            _is_i64(node.dtype)
        case Const():
            check_literal(node.value, node.dtype)
        case Bitcast():
            if node.arg.dtype.bits != node.dtype.bits:
                raise VerificationError(f"bitcast from {node.arg.dtype.value} to {node.dtype.value}")
        case Cast():
            pass
        case Apply():
            _check_apply(node)
        case _:
            raise VerificationError(f"{node!r} is not a scalar node")


def _is_i64(dtype: DType) -> None:
    if dtype is not DType.I64:
        raise VerificationError(f"an index is {dtype.value}, not i64")


def _operand(op: Generic, index: int, dtype: DType) -> None:
    if not 0 <= index < len(op.inputs):
        raise VerificationError(f"the body reads operand {index} of {len(op.inputs)}")
    value = op.inputs[index]
    if value.type.dtype is not dtype:
        raise VerificationError(f"the body reads {value} as {dtype.value}, it is {value.type.dtype.value}")


def _check_apply(node: Apply) -> None:
    op = find_scalar_op(node.op)
    if op is None:
        raise VerificationError(f"{node.op!r} is not a scalar op")
    if len(node.args) != op.arity:
        raise VerificationError(f"{node.op} has {len(node.args)} arguments, not {op.arity}")
    if op.conditional and node.args[0].dtype is not DType.BOOL:
        raise VerificationError(f"the condition of a {node.op} is {node.args[0].dtype.value}, not bool")
    operands = node.args[1:] if op.conditional else node.args
    taken = operands[0].dtype
    if any(a.dtype is not taken for a in operands):
        raise VerificationError(f"{node.op} has arguments of types {[a.dtype for a in operands]}")
    if node.dtype is not op.result_dtype(taken):
        raise VerificationError(f"{node.op} of {taken.value} is typed {node.dtype.value}")
    if not op.accepts(taken):
        raise VerificationError(f"{node.op} does not take {taken.value}")
