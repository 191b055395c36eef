"""One rule per instruction of the kernel IR."""

from __future__ import annotations

import math
from collections.abc import Callable

from mansard.codegen.kernel import Inst, KType, KValue
from mansard.codegen.math import rounding
from mansard.codegen.math.narrow import code
from mansard.codegen.spirv import descriptors
from mansard.codegen.spirv.casts import emit_bitcast, emit_cast, normalized
from mansard.codegen.spirv.function import KernelEmitter
from mansard.codegen.spirv.matrix import (
    emit_fill,
    emit_matrix_load,
    emit_matrix_multiply,
    emit_matrix_scale,
    emit_matrix_store,
)
from mansard.codegen.spirv.matrix_elements import emit_matrix_convert, emit_matrix_map, emit_matrix_reduce
from mansard.codegen.spirv.memory import emit_atomic, emit_barrier, emit_load, emit_store, emit_store_lane
from mansard.codegen.spirv.packed import emit_dot_bytes, emit_load_words, emit_unpack
from mansard.codegen.spirv.words import INCLUSIVE_SCAN, REDUCE, SCOPE, Id, Operand
from mansard.dtypes import DType
from mansard.errors import CodegenError

_Rule = Callable[[KernelEmitter, Inst], None]

_FLOAT_BINARY = {"add": "OpFAdd", "sub": "OpFSub", "mul": "OpFMul", "div": "OpFDiv"}
_INT_BINARY = {
    "add": "OpIAdd", "sub": "OpISub", "mul": "OpIMul", "and": "OpBitwiseAnd", "or": "OpBitwiseOr",
    "xor": "OpBitwiseXor", "shl": "OpShiftLeftLogical",
}  # fmt: skip
_BOOL_BINARY = {"and": "OpLogicalAnd", "or": "OpLogicalOr", "xor": "OpLogicalNotEqual"}
_FLOAT_COMPARE = {
    "eq": "OpFOrdEqual", "ne": "OpFUnordNotEqual", "lt": "OpFOrdLessThan", "le": "OpFOrdLessThanEqual",
    "gt": "OpFOrdGreaterThan", "ge": "OpFOrdGreaterThanEqual",
}  # fmt: skip
_INT_COMPARE = {"lt": "LessThan", "le": "LessThanEqual", "gt": "GreaterThan", "ge": "GreaterThanEqual"}
_ROUNDING = {
    "floor": "Floor", "ceil": "Ceil", "round": "RoundEven", "trunc": "Trunc", "sqrt": "Sqrt",
    "exp2_native": "Exp2",
}  # fmt: skip
_WRAPS = frozenset({"add", "sub", "mul", "shl", "div"})


def emit_inst(f: KernelEmitter, inst: Inst) -> None:
    """Emit one instruction into ``f``."""
    rule = _RULES.get(inst.op)
    if rule is None:
        raise CodegenError(f"kernel {f.kernel.name!r}: no SPIR-V for instruction {inst.op!r}")
    if inst.op in _BY_LANE and _is_wide(inst):
        _lane_by_lane(f, inst, rule)
    else:
        rule(f, inst)


def _is_wide(inst: Inst) -> bool:
    """Whether vectors of 64-bit integers take part."""
    values = [*inst.args, *([inst.result] if inst.result is not None else [])]
    return any(v.type.dtype is DType.I64 and v.type.lanes > 1 for v in values)


def _lane_by_lane(f: KernelEmitter, inst: Inst, rule: _Rule) -> None:
    """An instruction on each lane by itself, and the vector of the results.

    NVIDIA's compiler (driver 580) gives every lane of such vectors the result of the last one.
    """
    type_, results = _type(inst), []
    for lane in range(type_.lanes):
        args = tuple(f.scalar(arg, lane) for arg in inst.args)
        results.append(f.fresh(type_.with_lanes(1)))
        rule(f, Inst(inst.op, args, results[-1], inst.attrs))
    f.uses_f16(type_)
    f.bind(inst.result, f.op("OpCompositeConstruct", f.type(type_), *map(f.id, results)))
    if inst.result is not None and all(r.id in f.widened for r in results):
        short = f.type(KType(DType.I32, type_.lanes))
        held = (f.widened[r.id] for r in results)
        f.widened[inst.result.id] = f.op("OpCompositeConstruct", short, *held)


def _type(inst: Inst) -> KType:
    if inst.result is None:
        raise CodegenError(f"instruction {inst.op!r} has no result")
    return inst.result.type


def _const(f: KernelEmitter, inst: Inst) -> None:
    type_, value = _type(inst), inst.attrs["value"]
    if type_.matrix is not None:
        emit_fill(f, inst)
        return
    m, dtype = f.module, type_.dtype
    f.type(type_)
    if dtype is DType.BOOL:
        scalar = m.bool_constant(bool(value))
    elif dtype in (DType.F32, DType.F64):
        scalar = m.float_constant(rounding.rounded(float(value), dtype), dtype.bits)
    elif dtype is DType.F16:
        f.uses_f16(type_)
        scalar = m.half_constant(code(float(value), dtype))
    elif dtype.is_float:
        scalar = m.int_constant(code(float(value), dtype))
    else:
        scalar = m.int_constant(_wrapped(int(value), dtype), max(32, dtype.bits))
    f.bind(inst.result, m.splat(scalar, f.scalar_type(dtype), type_.lanes))
    if inst.result is not None:
        f.set_constant(inst.result, value)


def _wrapped(value: int, dtype: DType) -> int:
    """An integer reduced to the range of its type."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.is_signed and value >> (dtype.bits - 1) else value


def _from_word(f: KernelEmitter, word: Id, type_: KType) -> Id:
    if type_.dtype is DType.I64:
        return word
    return normalized(f, f.op("OpUConvert", f.type(type_), word), type_)


def _param(f: KernelEmitter, inst: Inst) -> None:
    if f.descriptors:
        param = descriptors.param(f, inst.attrs["index"], _type(inst).dtype)
        f.bind(inst.result, normalized(f, param, _type(inst)))
        return
    word = f.word(len(f.kernel.bindings) + inst.attrs["index"])
    f.bind(inst.result, _from_word(f, word, _type(inst)))


def _builtin(name: str) -> _Rule:
    def rule(f: KernelEmitter, inst: Inst) -> None:
        value = f.builtin(name, inst.attrs["axis"])
        type_ = _type(inst)
        wide = type_.dtype is DType.I64
        f.bind(inst.result, f.op("OpUConvert", f.type(type_), value) if wide else value)

    return rule


def _arithmetic(f: KernelEmitter, inst: Inst) -> None:
    type_ = _type(inst)
    left, right = (f.id(a) for a in inst.args)
    f.bind(inst.result, _binary(f, inst.op, type_, left, right, exact=bool(inst.attrs.get("exact"))))
    if inst.op == "add" and inst.result is not None and type_.dtype in (DType.I32, DType.I64):
        f.set_sum(inst.result, *inst.args)


def _binary(f: KernelEmitter, op: str, type_: KType, left: Id, right: Id, *, exact: bool = False) -> Id:
    """add, sub, mul, div, and, or, xor or shl of two ids."""
    dtype = type_.dtype
    if dtype is DType.BOOL:
        return f.op(_BOOL_BINARY[op], f.type(type_), left, right)
    if dtype.is_float:
        value = f.op(_FLOAT_BINARY[op], f.type(type_), left, right)
        if exact:
            f.module.decorate(value, "NoContraction")
        return value
    if op == "div":
        return normalized(f, _quotient(f, type_, left, right), type_)
    value = f.op(_INT_BINARY[op], f.type(type_), left, right)
    return normalized(f, value, type_) if op in _WRAPS else value


def _quotient(f: KernelEmitter, type_: KType, left: Id, right: Id) -> Id:
    """Truncating integer division."""
    return f.op("OpSDiv" if type_.dtype.is_signed else "OpUDiv", f.type(type_), left, right)


def _shr(f: KernelEmitter, inst: Inst) -> None:
    type_ = _type(inst)
    op = "OpShiftRightArithmetic" if type_.dtype.is_signed else "OpShiftRightLogical"
    f.bind(inst.result, f.op(op, f.type(type_), *(f.id(a) for a in inst.args)))


def _rem(f: KernelEmitter, inst: Inst) -> None:
    type_ = _type(inst)
    left, right = inst.args
    if type_.dtype.is_float:
        builder = f.expansion()
        f.bind(inst.result, f.inline(builder, rounding.fmod(builder, left, right)))
        return
    # Not OpSRem, which Vulkan leaves undefined for negative operands.
    quotient = _quotient(f, type_, f.id(left), f.id(right))
    product = f.op("OpIMul", f.type(type_), quotient, f.id(right))
    f.bind(inst.result, f.op("OpISub", f.type(type_), f.id(left), product))


def _neg(f: KernelEmitter, inst: Inst) -> None:
    type_ = _type(inst)
    op = "OpFNegate" if type_.dtype.is_float else "OpSNegate"
    f.bind(inst.result, normalized(f, f.op(op, f.type(type_), f.id(inst.args[0])), type_))


def _abs(f: KernelEmitter, inst: Inst) -> None:
    type_, arg = _type(inst), f.id(inst.args[0])
    if type_.dtype.is_float:
        f.bind(inst.result, f.glsl("FAbs", f.type(type_), arg))
        return
    negative = f.op("OpSLessThan", _bools(f, type_), arg, f.int_literal(0, type_))
    negated = f.op("OpSNegate", f.type(type_), arg)
    f.bind(inst.result, normalized(f, f.op("OpSelect", f.type(type_), negative, negated, arg), type_))


def _bools(f: KernelEmitter, type_: KType) -> Id:
    return f.module.vector_type(f.module.bool_type(), type_.lanes)


def _pick(f: KernelEmitter, op: str, type_: KType, left: Id, right: Id, *, numeric: bool = False) -> Id:
    """min or max; ``numeric`` says that ``left`` is a literal that is not NaN."""
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


def _minmax(f: KernelEmitter, inst: Inst) -> None:
    left, right = inst.args
    narrow = _in_32_bits(f, left, right)
    if narrow is not None:
        small = KType(DType.I32, left.type.lanes)
        picked = _pick(f, inst.op, small, *narrow)
        f.bind(inst.result, f.op("OpSConvert", f.type(left.type), picked))
        if inst.result is not None:
            f.widened[inst.result.id] = picked
        return
    if f.constant(right) is not None and left.type.dtype.is_float:
        left, right = right, left
    value = f.constant(left)
    numeric = value is not None and not math.isnan(value)
    f.bind(inst.result, _pick(f, inst.op, _type(inst), f.id(left), f.id(right), numeric=numeric))


def _fma(f: KernelEmitter, inst: Inst) -> None:
    if inst.attrs.get("exact"):
        # A decoration on Fma is not seen by every driver; on the two steps it is.
        a, b, c = (f.id(arg) for arg in inst.args)
        product = _binary(f, "mul", _type(inst), a, b, exact=True)
        f.bind(inst.result, _binary(f, "add", _type(inst), product, c, exact=True))
        return
    f.bind(inst.result, f.glsl("Fma", f.type(_type(inst)), *(f.id(a) for a in inst.args)))


def _rounded(f: KernelEmitter, inst: Inst) -> None:
    f.bind(inst.result, f.glsl(_ROUNDING[inst.op], f.type(_type(inst)), f.id(inst.args[0])))


def _not(f: KernelEmitter, inst: Inst) -> None:
    type_ = _type(inst)
    op = "OpLogicalNot" if type_.dtype is DType.BOOL else "OpNot"
    f.bind(inst.result, normalized(f, f.op(op, f.type(type_), f.id(inst.args[0])), type_))


def _compare(f: KernelEmitter, inst: Inst) -> None:
    type_ = inst.args[0].type
    narrow = _in_32_bits(f, *inst.args)
    left, right = narrow or (f.id(a) for a in inst.args)
    to = _bools(f, type_)
    if type_.dtype is DType.BOOL:
        f.bind(inst.result, _compare_bools(f, inst.op, to, left, right))
        return
    if type_.dtype.is_float:
        op = _FLOAT_COMPARE[inst.op]
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


def _select(f: KernelEmitter, inst: Inst) -> None:
    type_ = _type(inst)
    f.uses_f16(type_)
    f.bind(inst.result, f.op("OpSelect", f.type(type_), *(f.id(a) for a in inst.args)))


def _splat(f: KernelEmitter, inst: Inst) -> None:
    type_, arg = _type(inst), f.id(inst.args[0])
    if type_.lanes == 1:
        f.bind(inst.result, arg)
        return
    f.uses_f16(type_)
    f.bind(inst.result, f.op("OpCompositeConstruct", f.type(type_), *[arg] * type_.lanes))


def _extract(f: KernelEmitter, inst: Inst) -> None:
    arg = inst.args[0]
    if arg.type.lanes == 1:
        f.bind(inst.result, f.id(arg))
        return
    f.uses_f16(arg.type)
    f.bind(inst.result, f.op("OpCompositeExtract", f.type(_type(inst)), f.id(arg), inst.attrs["lane"]))


def _insert(f: KernelEmitter, inst: Inst) -> None:
    vector, scalar = inst.args
    if vector.type.lanes == 1:
        f.bind(inst.result, f.id(scalar))
        return
    f.uses_f16(vector.type)
    operands = (f.id(scalar), f.id(vector), inst.attrs["lane"])
    f.bind(inst.result, f.op("OpCompositeInsert", f.type(vector.type), *operands))


def _shuffle(f: KernelEmitter, inst: Inst) -> None:
    a, b = inst.args
    if min(a.type.lanes, _type(inst).lanes) == 1:
        raise CodegenError("shuffle takes and gives vectors")
    f.uses_f16(a.type)
    f.bind(inst.result, f.op("OpVectorShuffle", f.type(_type(inst)), f.id(a), f.id(b), *inst.attrs["lanes"]))


def _iota(f: KernelEmitter, inst: Inst) -> None:
    type_ = _type(inst)
    lanes = [f.int_literal(i, type_.with_lanes(1)) for i in range(type_.lanes)]
    if type_.lanes == 1:
        f.bind(inst.result, lanes[0])
        return
    f.bind(inst.result, f.module.declare("OpConstantComposite", f.type(type_), *lanes))


def _combine(f: KernelEmitter, combiner: str, type_: KType, left: Id, right: Id) -> Id:
    if combiner in ("min", "max"):
        return _pick(f, combiner, type_, left, right)
    return _binary(f, combiner, type_, left, right)


def _reduce(f: KernelEmitter, inst: Inst) -> None:
    arg, scalar = inst.args[0], _type(inst)
    if arg.type.lanes == 1:
        f.bind(inst.result, f.id(arg))
        return
    lanes = [f.op("OpCompositeExtract", f.type(scalar), f.id(arg), i) for i in range(arg.type.lanes)]
    while len(lanes) > 1:
        pairs = [lanes[i : i + 2] for i in range(0, len(lanes), 2)]
        lanes = [_combine(f, inst.attrs["combiner"], scalar, *p) if len(p) == 2 else p[0] for p in pairs]
    f.bind(inst.result, lanes[0])


_SUBGROUP_PLACES = {
    "subgroup_id": "SubgroupId", "subgroup_count": "NumSubgroups",
    "subgroup_lane": "SubgroupLocalInvocationId", "subgroup_size": "SubgroupSize",
}  # fmt: skip


def _subgroup_place(f: KernelEmitter, inst: Inst) -> None:
    value = f.subgroup_builtin(_SUBGROUP_PLACES[inst.op])
    type_ = _type(inst)
    f.bind(inst.result, f.op("OpUConvert", f.type(type_), value) if type_.dtype is DType.I64 else value)


def _subgroup_combine(f: KernelEmitter, inst: Inst) -> None:
    type_, arg, combiner = _type(inst), f.id(inst.args[0]), inst.attrs["combiner"]
    f.module.capabilities |= {"GroupNonUniform", "GroupNonUniformArithmetic"}
    how = INCLUSIVE_SCAN if inst.op == "subgroup_scan" else REDUCE
    if type_.dtype is DType.I64:
        f.module.capabilities.add("SubgroupExtendedTypes")  # a feature of the device, not a capability
    value = _group(f, _group_op(combiner, type_.dtype), f.type(type_), how, arg)
    if type_.dtype.is_float and combiner in ("min", "max") and not inst.attrs.get("loses_nan"):
        boolean = f.module.bool_type()
        unordered = f.op("OpFUnordNotEqual", boolean, arg, arg)
        somewhere = _group(f, "OpGroupNonUniformLogicalOr", boolean, how, unordered)
        value = f.op("OpSelect", f.type(type_), somewhere, f.float_literal(math.nan, type_), value)
    f.bind(inst.result, normalized(f, value, type_))


def _group(f: KernelEmitter, op: str, type_: Id, *operands: Operand) -> Id:
    return f.op(op, type_, f.module.int_constant(SCOPE["Subgroup"]), *operands)


def _group_op(combiner: str, dtype: DType) -> str:
    if combiner in ("and", "or"):
        return f"OpGroupNonUniform{'Logical' if dtype is DType.BOOL else 'Bitwise'}{combiner.capitalize()}"
    kind = "F" if dtype.is_float else "I"
    if combiner in ("min", "max") and not dtype.is_float:
        kind = "S" if dtype.is_signed else "U"
    return f"OpGroupNonUniform{kind}{combiner.capitalize()}"


_BY_LANE = frozenset(
    ("add", "sub", "mul", "div", "rem", "neg", "abs", "min", "max", "and", "or", "xor", "not", "shl", "shr")
) | {"eq", "ne", "lt", "le", "gt", "ge", "select", "cast"}
"""Instructions whose lanes do not see each other."""

_RULES: dict[str, _Rule] = {
    "const": _const,
    "param": _param,
    "workgroup_id": _builtin("WorkgroupId"),
    "local_id": _builtin("LocalInvocationId"),
    "dot_bytes": emit_dot_bytes,
    "load_words": emit_load_words,
    "unpack": emit_unpack,
    "load": emit_load,
    "store": emit_store,
    "atomic": emit_atomic,
    "store_lane": emit_store_lane,
    "barrier": emit_barrier,
    **dict.fromkeys(("add", "sub", "mul", "div", "and", "or", "xor", "shl"), _arithmetic),
    "shr": _shr,
    "rem": _rem,
    "neg": _neg,
    "abs": _abs,
    "min": _minmax,
    "max": _minmax,
    "fma": _fma,
    **dict.fromkeys(_ROUNDING, _rounded),
    "not": _not,
    **dict.fromkeys(_FLOAT_COMPARE, _compare),
    "select": _select,
    "cast": emit_cast,
    "bitcast": emit_bitcast,
    "splat": _splat,
    "extract": _extract,
    "insert": _insert,
    "shuffle": _shuffle,
    "iota": _iota,
    "reduce": _reduce,
    "matrix_load": emit_matrix_load,
    "matrix_store": emit_matrix_store,
    "matrix_multiply": emit_matrix_multiply,
    "matrix_scale": emit_matrix_scale,
    "matrix_map": emit_matrix_map,
    "matrix_reduce": emit_matrix_reduce,
    "matrix_convert": emit_matrix_convert,
    **dict.fromkeys(("subgroup_reduce", "subgroup_scan"), _subgroup_combine),
    **dict.fromkeys(_SUBGROUP_PLACES, _subgroup_place),
}
