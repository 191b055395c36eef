"""The table of scalar ops; `register_scalar_op` adds to it, from inside the package and from outside."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from mansard.dtypes import DType
from mansard.errors import CompileError
from mansard.ir.scalar_ops.declaration import Domain, ScalarOp

_OPS: dict[str, ScalarOp] = {}

# What begins a scalar in the text form and is no op (`mansard.ir.text.body_printer`).
_RESERVED = re.compile(r"(t|d|in)\d+|dim|true|false|inf|nan|bitcast_\w+|" + "|".join(d.value for d in DType))


def register_scalar_op(op: ScalarOp) -> ScalarOp:
    """Add an op to the vocabulary and return it.

    Verifier, interpreter, printer, parser and costs know the op from then on; kernels need a lowering
    (`mansard.codegen.math.register_scalar_lowering`), a frontend the name of the framework's op.

    Raises CompileError for a name that is taken or cannot be one, and for a declaration that contradicts
    itself.
    """
    if problem := _problem(op):
        raise CompileError(f"scalar op {op.name!r}: {problem}")
    _OPS[op.name] = op
    return op


def scalar_op(name: str) -> ScalarOp:
    """The op of a name. Raises CompileError for a name that no op has."""
    op = _OPS.get(name)
    if op is None:
        raise CompileError(f"{name!r} is not a scalar op; known: {', '.join(sorted(_OPS))}")
    return op


def find_scalar_op(name: str) -> ScalarOp | None:
    """The op of a name, if there is one."""
    return _OPS.get(name)


def scalar_ops() -> Sequence[ScalarOp]:
    """Every op, in the order of registration."""
    return tuple(_OPS.values())


def result_dtype(name: str, operand: DType) -> DType:
    """The type of an op's result, for (last) operands of a type."""
    return scalar_op(name).result_dtype(operand)


def _problem(op: ScalarOp) -> str:
    """Why a declaration is not accepted; empty where it is."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", op.name) or _RESERVED.fullmatch(op.name):
        return "the name has to be a word in lower case that the text form does not use otherwise"
    if op.name in _OPS:
        return "an op of this name is declared already"
    if op.arity < 1 or (op.conditional and op.arity < 2):
        return f"an op of {op.arity} operands cannot be"
    if not op.reference:
        return "no domain is stated on which it is defined"
    for domain, function in op.reference.items():
        if not isinstance(domain, Domain):
            return f"{domain!r} is not a domain"
        if not _takes(function, op.arity):
            return f"the reference on {domain.value} does not take {op.arity} arrays"
    if op.operations < 1:
        return f"it cannot cost {op.operations} operations"
    if op.infix is not None:
        if op.arity != 2:
            return f"{op.infix.symbol!r} stands between two operands, not {op.arity}"
        if any(o.infix is not None and o.infix.symbol == op.infix.symbol for o in _OPS.values()):
            return f"another op is written {op.infix.symbol!r}"
    return ""


def _takes(function: Any, arity: int) -> bool:
    if isinstance(function, np.ufunc):
        return function.nin == arity
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*[None] * arity)
    except TypeError:
        return False
    except ValueError:  # a built-in that does not tell its parameters
        return True
    return True
