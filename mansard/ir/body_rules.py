"""The rules of scalar bodies."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.dtypes import DType
from mansard.ir.op_check import OpCheck
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
from mansard.ir.types import IndexMap


def check_body(check: OpCheck, body: Scalar, maps: Sequence[IndexMap | None], loops: int) -> None:
    """Check a body over ``loops`` iteration dims that reads the op's operands through ``maps``."""
    for node in walk(body):
        _check_node(check, node, maps, loops)


def _check_node(check: OpCheck, node: Scalar, maps: Sequence[IndexMap | None], loops: int) -> None:
    match node:
        case Arg():
            _operand(check, node.index, node.dtype)
            if maps[node.index] is None:
                raise check.fail(f"the body reads operand {node.index}, which has no index map")
        case Gather():
            _operand(check, node.operand, node.dtype)
            rank = check.inputs[node.operand].type.rank
            if len(node.indices) != rank:
                raise check.fail(
                    f"gather from operand {node.operand} of rank {rank} has {len(node.indices)} indices"
                )
            if any(i.dtype is not DType.I64 for i in node.indices):
                raise check.fail(f"an index of the gather from operand {node.operand} is not i64")
        case Index():
            if not 0 <= node.dim < loops:
                raise check.fail(f"index of dim {node.dim} of {loops} iteration dims")
            _is_i64(check, node.dtype)
        case DimValue():
            for s in () if isinstance(node.value, int) else node.value.symbols():
                if check.symbols.get(s.name) != s:
                    raise check.fail(f"the body uses {s}, which no input or state binds")
            _is_i64(check, node.dtype)
        case Const():
            check.literal(node.value, node.dtype)
        case Bitcast():
            if node.arg.dtype.bits != node.dtype.bits:
                raise check.fail(f"bitcast from {node.arg.dtype.value} to {node.dtype.value}")
        case Cast():
            pass
        case Apply():
            _check_apply(check, node)
        case _:
            raise check.fail(f"{node!r} is not a scalar node")


def _is_i64(check: OpCheck, dtype: DType) -> None:
    if dtype is not DType.I64:
        raise check.fail(f"an index is {dtype.value}, not i64")


def _operand(check: OpCheck, index: int, dtype: DType) -> None:
    if not 0 <= index < len(check.inputs):
        raise check.fail(f"the body reads operand {index} of {len(check.inputs)}")
    value = check.inputs[index]
    if value.type.dtype is not dtype:
        raise check.fail(f"the body reads {value} as {dtype.value}, it is {value.type.dtype.value}")


def _check_apply(check: OpCheck, node: Apply) -> None:
    op = find_scalar_op(node.op)
    if op is None:
        raise check.fail(f"{node.op!r} is not a scalar op")
    if len(node.args) != op.arity:
        raise check.fail(f"{node.op} has {len(node.args)} arguments, not {op.arity}")
    if op.conditional and node.args[0].dtype is not DType.BOOL:
        raise check.fail(f"the condition of a {node.op} is {node.args[0].dtype.value}, not bool")
    operands = node.args[1:] if op.conditional else node.args
    taken = operands[0].dtype
    if any(a.dtype is not taken for a in operands):
        raise check.fail(f"{node.op} has arguments of types {[a.dtype for a in operands]}")
    if node.dtype is not op.result_dtype(taken):
        raise check.fail(f"{node.op} of {taken.value} is typed {node.dtype.value}")
    if not op.accepts(taken):
        raise check.fail(f"{node.op} does not take {taken.value}")
