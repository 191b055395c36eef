"""Arithmetic, comparisons and selection."""

from __future__ import annotations

import math

from mansard.codegen.kernel import Inst, KType, KValue
from mansard.codegen.math import rounding
from mansard.codegen.spirv.casts import normalized
from mansard.codegen.spirv.function import KernelEmitter
from mansard.codegen.spirv.words import Id
from mansard.dtypes import DType
from mansard.errors import CodegenError

_FLOAT_BINARY = {"add": "OpFAdd", "sub": "OpFSub", "mul": "OpFMul", "div": "OpFDiv"}
_INT_BINARY = {
    "add": "OpIAdd", "sub": "OpISub", "mul": "OpIMul", "and": "OpBitwiseAnd", "or": "OpBitwiseOr",
    "xor": "OpBitwiseXor", "shl": "OpShiftLeftLogical",
}  # fmt: skip
_BOOL_BINARY = {"and": "OpLogicalAnd", "or": "OpLogicalOr", "xor": "OpLogicalNotEqual"}
FLOAT_COMPARE = {
    "eq": "OpFOrdEqual", "ne": "OpFUnordNotEqual", "lt": "OpFOrdLessThan", "le": "OpFOrdLessThanEqual",
    "gt": "OpFOrdGreaterThan", "ge": "OpFOrdGreaterThanEqual",
}  # fmt: skip
_INT_COMPARE = {"lt": "LessThan", "le": "LessThanEqual", "gt": "GreaterThan", "ge": "GreaterThanEqual"}
ROUNDING = {
    "floor": "Floor", "ceil": "Ceil", "round": "RoundEven", "trunc": "Trunc", "sqrt": "Sqrt",
    "exp2_native": "Exp2",
}  # fmt: skip
_WRAPS = frozenset({"add", "sub", "mul", "shl", "div"})


def result_type(inst: Inst) -> KType:
    """The type of the result, which must be there."""
    if inst.result is None:
        raise CodegenError(f"instruction {inst.op!r} has no result")
    return inst.result.type


def emit_arithmetic(f: KernelEmitter, inst: Inst) -> None:
    """add, sub, mul, div, and, or, xor or shl."""
    type_ = result_type(inst)
    left, right = (f.id(a) for a in inst.args)
    with_zero = _with_literal_zero(f, inst)
    if with_zero is not None:
        f.bind(inst.result, with_zero)
        return
    same = _cancelled(f, inst)
    if same is not None:
        f.bind(inst.result, f.id(same))
        if same.id in f.widened and inst.result is not None:
            f.widened[inst.result.id] = f.widened[same.id]
        return
    if inst.op == "div" and type_.dtype is DType.F32:
        left, right = _scaled_down(f, inst, left, right)
    f.bind(inst.result, binary(f, inst.op, type_, left, right, exact=bool(inst.attrs.get("exact"))))
    if inst.op == "add" and inst.result is not None and type_.dtype in (DType.I32, DType.I64):
        f.set_sum(inst.result, *inst.args)


def _cancelled(f: KernelEmitter, inst: Inst) -> KValue | None:
    """``a`` of ``(a + c) - c`` with a literal: drivers find that too, and then `_in_32_bits` does not."""
    if inst.op != "sub" or result_type(inst).dtype not in (DType.I32, DType.I64):
        return None
    subtracted = f.constant(inst.args[1])
    part, added = f.without_literal(inst.args[0])
    return part if subtracted is not None and added and added == subtracted else None


def _with_literal_zero(f: KernelEmitter, inst: Inst) -> Id | None:
    """A product with a literal zero, or a quotient of one, by selects; None for any other arithmetic.

    Of an fma it is the product.

    Drivers shorten both to 0, also where the operand is NaN, or infinite, or the divisor zero: Mesa's
    llvmpipe does so whatever the module asks to preserve.
    """
    left, right = (f.constant(a) for a in inst.args[:2])
    if not result_type(inst).dtype.is_float:
        return None
    if left == 0 and inst.op in ("mul", "div", "fma"):
        return _zero_by(f, inst.op, float(left), inst.args[1])
    if right == 0 and inst.op in ("mul", "fma"):
        return _zero_by(f, inst.op, float(right), inst.args[0])
    return None


def _scaled_down(f: KernelEmitter, inst: Inst, left: Id, right: Id) -> tuple[Id, Id]:
    """Dividend and divisor of an f32 division, both multiplied by 2**-64 where the divisor is large.

    Vulkan asks nothing of a division by more than 2**126 ("Precision and operation of SPIR-V instructions"):
    drivers multiply by a reciprocal that underflows to 0, and infinity divided by 3e38 becomes NaN. A result
    that the factor makes underflow is below the smallest normal number in any case, as is that of a literal
    of at most 1.
    """
    dividend, divisor = (f.constant(a) for a in inst.args)
    if divisor is not None or (dividend is not None and abs(dividend) <= 1):
        return left, right
    b, y = f.expansion(), inst.args[1]
    one, factor, limit = (b.const(c, DType.F32, y.type.lanes) for c in (1.0, 2.0**-64, 2.0**64))
    scale = f.inline(b, b.select(b.compare("ge", b.unary("abs", y), limit), factor, one))
    type_ = f.type(y.type)
    return f.op("OpFMul", type_, left, scale), f.op("OpFMul", type_, right, scale)


def _zero_by(f: KernelEmitter, op: str, zero: float, x: KValue) -> Id:
    """``zero * x``, or ``zero / x`` where ``op`` is "div"."""
    b, type_ = f.expansion(), x.type
    magnitude, none = b.unary("abs", x), b.const(0.0, type_.dtype, type_.lanes)
    signed = rounding.copysign(b, none, x)
    if math.copysign(1.0, zero) < 0:
        signed = b.unary("neg", signed)
    if op != "div":
        regular = b.compare("lt", magnitude, b.const(math.inf, type_.dtype, type_.lanes))
    else:
        regular = b.compare("gt", magnitude, none)
    return f.inline(b, b.select(regular, signed, b.const(math.nan, type_.dtype, type_.lanes)))


def binary(f: KernelEmitter, op: str, type_: KType, left: Id, right: Id, *, exact: bool = False) -> Id:
    """add, sub, mul, div, and, or, xor or shl of two ids."""
    dtype = type_.dtype
    if dtype is DType.BOOL:
        return f.op(_BOOL_BINARY[op], f.type(type_), left, right)
    if dtype.is_float:
        value = f.op(_FLOAT_BINARY[op], f.type(type_), left, right)
        if exact:
            f.module.forbid_contraction(value)
        return value
    if op == "div":
        return normalized(f, _quotient(f, type_, left, right), type_)
    value = f.op(_INT_BINARY[op], f.type(type_), left, right)
    return normalized(f, value, type_) if op in _WRAPS else value


def _quotient(f: KernelEmitter, type_: KType, left: Id, right: Id) -> Id:
    """Truncating integer division."""
    return f.op("OpSDiv" if type_.dtype.is_signed else "OpUDiv", f.type(type_), left, right)


def emit_shr(f: KernelEmitter, inst: Inst) -> None:
    """By signedness: arithmetic or logical."""
    type_ = result_type(inst)
    op = "OpShiftRightArithmetic" if type_.dtype.is_signed else "OpShiftRightLogical"
    f.bind(inst.result, f.op(op, f.type(type_), *(f.id(a) for a in inst.args)))


def emit_rem(f: KernelEmitter, inst: Inst) -> None:
    """Of floats as fmod, of integers truncating."""
    type_ = result_type(inst)
    left, right = inst.args
    if type_.dtype.is_float:
        builder = f.expansion()
        f.bind(inst.result, f.inline(builder, rounding.fmod(builder, left, right)))
        return
    # Not OpSRem, which Vulkan leaves undefined for negative operands.
    quotient = _quotient(f, type_, f.id(left), f.id(right))
    product = f.op("OpIMul", f.type(type_), quotient, f.id(right))
    f.bind(inst.result, f.op("OpISub", f.type(type_), f.id(left), product))


def emit_neg(f: KernelEmitter, inst: Inst) -> None:
    """Of floats or signed integers."""
    type_ = result_type(inst)
    op = "OpFNegate" if type_.dtype.is_float else "OpSNegate"
    f.bind(inst.result, normalized(f, f.op(op, f.type(type_), f.id(inst.args[0])), type_))


def emit_abs(f: KernelEmitter, inst: Inst) -> None:
    """Of floats or signed integers."""
    type_, arg = result_type(inst), f.id(inst.args[0])
    if type_.dtype.is_float:
        f.bind(inst.result, f.glsl("FAbs", f.type(type_), arg))
        return
    negative = f.op("OpSLessThan", _bools(f, type_), arg, f.int_literal(0, type_))
    negated = f.op("OpSNegate", f.type(type_), arg)
    f.bind(inst.result, normalized(f, f.op("OpSelect", f.type(type_), negative, negated, arg), type_))


def _bools(f: KernelEmitter, type_: KType) -> Id:
    return f.module.vector_type(f.module.bool_type(), type_.lanes)


def extreme(f: KernelEmitter, op: str, type_: KType, left: Id, right: Id, *, numeric: bool = False) -> Id:
    """min or max; ``numeric`` says that ``left`` is not NaN, or may lose it."""
    name = f.type(type_)
    if type_.dtype.is_float:
        compare = "OpFOrdLessThan" if op == "min" else "OpFOrdGreaterThan"
        picked = f.op("OpSelect", name, f.op(compare, _bools(f, type_), left, right), left, right)
        if numeric:
            return picked
        # The comparison is false for NaN, which picks the right one: only a left NaN is missing.
        unordered = f.op("OpFUnordNotEqual", _bools(f, type_), left, left)
        return f.op("OpSelect", name, unordered, left, picked)
    sign = "S" if type_.dtype.is_signed else "U"
    if type_.dtype is not DType.I64:
        return f.glsl(f"{sign}{op.capitalize()}", name, left, right)
    compare = "OpSLessThan" if op == "min" else "OpSGreaterThan"
    return f.op("OpSelect", name, f.op(compare, _bools(f, type_), left, right), left, right)


def _in_32_bits(f: KernelEmitter, left: KValue, right: KValue) -> tuple[Id, Id] | None:
    """Two i64 values as 32-bit registers, when both were extended from, or are literals of, 32 bits.

    Cheaper on every GPU. And Mesa 22.3 compares an extended value with a literal wrongly.
    """
    if left.type.dtype is not DType.I64 or not {left.id, right.id} & f.widened.keys():
        return None
    widened = []
    for value in (left, right):
        literal = f.constant(value)
        if value.id in f.widened:
            widened.append(f.widened[value.id])
        elif literal is not None and -(2**31) <= literal < 2**31:
            widened.append(f.int_literal(int(literal), KType(DType.I32, value.type.lanes)))
        else:
            return None
    return widened[0], widened[1]


def emit_minmax(f: KernelEmitter, inst: Inst) -> None:
    """min or max; NaN where either is NaN."""
    left, right = inst.args
    narrow = _in_32_bits(f, left, right)
    if narrow is not None:
        small = KType(DType.I32, left.type.lanes)
        picked = extreme(f, inst.op, small, *narrow)
        f.bind(inst.result, f.op("OpSConvert", f.type(left.type), picked))
        if inst.result is not None:
            f.widened[inst.result.id] = picked
        return
    if f.constant(right) is not None and left.type.dtype.is_float:
        left, right = right, left
    value = f.constant(left)
    numeric = inst.attrs.get("loses_nan", False) or (value is not None and not math.isnan(value))
    f.bind(inst.result, extreme(f, inst.op, result_type(inst), f.id(left), f.id(right), numeric=numeric))


def emit_fma(f: KernelEmitter, inst: Inst) -> None:
    """One Fma, or a product and a sum."""
    product = _with_literal_zero(f, inst)
    if product is not None:
        f.bind(inst.result, binary(f, "add", result_type(inst), product, f.id(inst.args[2])))
        return
    if inst.attrs.get("exact"):
        # A decoration on Fma is not seen by every driver; on the two steps it is.
        a, b, c = (f.id(arg) for arg in inst.args)
        product = binary(f, "mul", result_type(inst), a, b, exact=True)
        f.bind(inst.result, binary(f, "add", result_type(inst), product, c, exact=True))
        return
    f.bind(inst.result, f.glsl("Fma", f.type(result_type(inst)), *(f.id(a) for a in inst.args)))


_ROUNDING_F64 = {"round": rounding.round_even_by_floor, "trunc": rounding.trunc_by_floor}
"""What llvmpipe gets wrong of f64 where the host's vectors have fewer than 512 bits: it gives 1 for 1.5
rounded to even, and 0 for -0.5."""


def emit_rounded(f: KernelEmitter, inst: Inst) -> None:
    """sqrt, floor, ceil, round, trunc or exp2_native."""
    if result_type(inst).dtype is DType.F64 and inst.op in _ROUNDING_F64:
        builder = f.expansion()
        f.bind(inst.result, f.inline(builder, _ROUNDING_F64[inst.op](builder, inst.args[0])))
        return
    f.bind(inst.result, f.glsl(ROUNDING[inst.op], f.type(result_type(inst)), f.id(inst.args[0])))


def emit_not(f: KernelEmitter, inst: Inst) -> None:
    """Of integers or bool."""
    type_ = result_type(inst)
    op = "OpLogicalNot" if type_.dtype is DType.BOOL else "OpNot"
    f.bind(inst.result, normalized(f, f.op(op, f.type(type_), f.id(inst.args[0])), type_))


def emit_compare(f: KernelEmitter, inst: Inst) -> None:
    """eq, ne, lt, le, gt or ge."""
    type_ = inst.args[0].type
    narrow = _in_32_bits(f, *inst.args)
    left, right = narrow or (f.id(a) for a in inst.args)
    to = _bools(f, type_)
    if type_.dtype is DType.BOOL:
        f.bind(inst.result, _compare_bools(f, inst.op, to, left, right))
        return
    if type_.dtype.is_float:
        op = FLOAT_COMPARE[inst.op]
    elif inst.op in ("eq", "ne"):
        op = "OpIEqual" if inst.op == "eq" else "OpINotEqual"
    else:
        op = f"Op{'S' if type_.dtype.is_signed else 'U'}{_INT_COMPARE[inst.op]}"
    f.bind(inst.result, f.op(op, to, left, right))


def _compare_bools(f: KernelEmitter, op: str, to: Id, left: Id, right: Id) -> Id:
    if op in ("eq", "ne"):
        return f.op("OpLogicalEqual" if op == "eq" else "OpLogicalNotEqual", to, left, right)
    if op in ("gt", "ge"):
        left, right = right, left
    negated = f.op("OpLogicalNot", to, left)
    return f.op("OpLogicalAnd" if op in ("lt", "gt") else "OpLogicalOr", to, negated, right)


def emit_select(f: KernelEmitter, inst: Inst) -> None:
    """By a condition of as many lanes, or a scalar one."""
    type_ = result_type(inst)
    f.uses_f16(type_)
    f.bind(inst.result, f.op("OpSelect", f.type(type_), *(f.id(a) for a in inst.args)))
