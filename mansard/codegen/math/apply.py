"""Scalar ops of `mansard.ir.scalar_ops` as kernel IR instructions."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.codegen.kernel import KernelBuilder, KType, KValue
from mansard.codegen.math import basic, exponential, integers, logarithm, trigonometry
from mansard.codegen.math.lowering import scalar_lowering
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.ir import combiners
from mansard.ir.scalar_ops import COMPARE, result_dtype

LOWERINGS = (basic, exponential, integers, logarithm, trigonometry)
"""The modules whose functions enter the table."""
_NARROW = frozenset({DType.F16, DType.BF16, DType.F8})


def apply(b: KernelBuilder, op: str, args: Sequence[KValue]) -> KValue:
    """``op`` on f32, f64, integers or bool, of any lanes; scalars are splatted to match.

    Floats narrower than f32 are computed in f32: cast before and after. Each function's docstring
    states its error; all are for f32 and f64 alike.

    Raises:
        CodegenError: naming the op and the type it is not defined on.
    """
    if op == "select":
        return b.select(*args)
    dtype = args[-1].type.dtype
    if dtype in _NARROW:
        raise CodegenError(f"scalar op {op!r} on {dtype.value}: cast to f32 first")
    if op in COMPARE:
        return b.compare(op, *args)
    lowering = scalar_lowering(op, dtype)
    if dtype.is_float and not lowering.contractible:
        with b.exactly():
            return lowering.expand(b, *args)
    return lowering.expand(b, *args)


def apply_in_body(b: KernelBuilder, op: str, args: Sequence[KValue]) -> KValue:
    """``op`` as a body of a graph means it: by the instruction of its name where the kernel IR has one."""
    if op == "select":
        return b.select(*args)
    if op in COMPARE:
        return b.compare(op, *args)
    lowering = scalar_lowering(op, args[-1].type.dtype)
    if lowering.instruction:
        return b.unary(op, *args) if len(args) == 1 else b.binary(op, *args)
    lanes = max(a.type.lanes for a in args)
    return apply(b, op, [b.splat(a, lanes) for a in args])


def neutral(combiner: str, dtype: DType) -> float | int | bool:
    """The value that leaves the other operand of a combiner as it is: the start of a reduction."""
    if combiner not in combiners.UFUNCS:
        raise CodegenError(f"no combiner {combiner!r}; known: {', '.join(combiners.UFUNCS)}")
    return combiners.neutral(combiner, dtype)


def result_type(op: str, args: Sequence[KValue]) -> KType:
    """The type `apply` returns."""
    return KType(result_dtype(op, args[-1].type.dtype), max(a.type.lanes for a in args))
