"""The rules of scalar bodies."""

from __future__ import annotations

from collections.abc import Mapping

from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.errors import VerificationError
from mansard.ir.ops import Generic
from mansard.ir.scalar import (
    COMPARE,
    OPS,
    UNARY,
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

FLOAT_ONLY = frozenset({
    "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log1p", "erf", "sin", "cos", "tan", "tanh",
    "sinh", "cosh", "asin", "acos", "atan", "atan2", "isnan", "isinf",
})  # fmt: skip
"""Ops on floats only."""
INT_ONLY = frozenset({"shl", "shr"})
"""Ops on integers only."""
BITS_ONLY = frozenset({"and", "or", "xor", "not"})
"""Ops on integers and bool."""
ANY = frozenset({"select", "eq", "ne", "lt", "le", "gt", "ge", "min", "max"}) | BITS_ONLY
"""Ops that take bool."""


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
    if node.op not in OPS:
        raise VerificationError(f"{node.op!r} is not a scalar op")
    arity = 1 if node.op in UNARY else 3 if node.op == "select" else 2
    if len(node.args) != arity:
        raise VerificationError(f"{node.op} has {len(node.args)} arguments, not {arity}")
    if node.op == "select" and node.args[0].dtype is not DType.BOOL:
        raise VerificationError(f"the condition of a select is {node.args[0].dtype.value}, not bool")
    operands = node.args[1:] if node.op == "select" else node.args
    taken = operands[0].dtype
    if any(a.dtype is not taken for a in operands):
        raise VerificationError(f"{node.op} has arguments of types {[a.dtype for a in operands]}")
    gives_bool = node.op in COMPARE or node.op in ("isnan", "isinf")
    if node.dtype is not (DType.BOOL if gives_bool else taken):
        raise VerificationError(f"{node.op} of {taken.value} is typed {node.dtype.value}")
    wrong = (
        (node.op in FLOAT_ONLY and not taken.is_float)
        or (node.op in INT_ONLY and not taken.is_int)
        or (node.op in BITS_ONLY and taken.is_float)
        or (taken is DType.BOOL and node.op not in ANY)
    )
    if wrong:
        raise VerificationError(f"{node.op} does not take {taken.value}")
