"""Numeric conversions."""

from __future__ import annotations

from mansard.codegen.kernel import Inst, KType, KValue
from mansard.codegen.math import narrow
from mansard.codegen.spirv.function import KernelEmitter
from mansard.codegen.spirv.words import Id
from mansard.dtypes import DType
from mansard.errors import CodegenError

_NARROW = frozenset({DType.F16, DType.BF16, DType.F8})
_WRAPPING = {DType.I8: 24, DType.I16: 16}
_MASKS = {DType.U8: 0xFF, DType.U16: 0xFFFF}
_WIDE_UNSIGNED = (DType.U32, DType.U64)
"""Types whose registers hold numbers beyond those of the signed type."""


def normalized(f: KernelEmitter, id_: Id, type_: KType) -> Id:
    """Bring a 32-bit register that holds a narrower integer back into that integer's range."""
    if type_.dtype in _MASKS:
        return f.op("OpBitwiseAnd", f.type(type_), id_, f.int_literal(_MASKS[type_.dtype], type_))
    if type_.dtype not in _WRAPPING:
        return id_
    shift = f.int_literal(_WRAPPING[type_.dtype], type_)
    left = f.op("OpShiftLeftLogical", f.type(type_), id_, shift)
    return f.op("OpShiftRightArithmetic", f.type(type_), left, shift)


def emit_cast(f: KernelEmitter, inst: Inst) -> None:
    """Any conversion of the instruction table."""
    if inst.result is None:
        raise CodegenError("cast without a result")
    arg, result = inst.args[0], inst.result
    if result.type.matrix is not None:
        from mansard.codegen.spirv.matrix import emit_matrix_cast

        emit_matrix_cast(f, inst)
        return
    f.bind(result, _cast(f, arg, result.type))
    narrow_source = arg.type.dtype.is_int and arg.type.dtype.bits <= 32 and arg.type.dtype is not DType.U32
    if result.type.dtype is DType.I64 and narrow_source:
        f.widened[result.id] = f.id(arg)


def _cast(f: KernelEmitter, arg: KValue, target: KType) -> Id:
    source = arg.type.dtype
    if source is target.dtype:
        return f.id(arg)
    if source in _NARROW or target.dtype in _NARROW:
        return _cast_narrow(f, arg, target)
    to = f.type(target)
    if source is DType.BOOL:
        literal = f.float_literal if target.dtype.is_float else f.int_literal
        return f.op("OpSelect", to, f.id(arg), literal(1, target), literal(0, target))
    if target.dtype is DType.BOOL:
        if source.is_float:
            return f.op("OpFUnordNotEqual", to, f.id(arg), f.float_literal(0.0, arg.type))
        return f.op("OpINotEqual", to, f.id(arg), f.int_literal(0, arg.type))
    if source.is_float:
        return f.op("OpFConvert", to, f.id(arg)) if target.dtype.is_float else _to_int(f, arg, target)
    if target.dtype.is_float:
        if source.bits <= 16 and target.dtype is DType.F32:
            return _short_to_float(f, arg, target)
        if arg.id in f.widened:
            # Quicker, and Mesa 22.3 takes ``0 < x`` of a converted 64-bit zero for true.
            return f.op("OpConvertSToF", to, f.widened[arg.id])
        # Narrow unsigned integers are zero-extended: positive in their 32 bits.
        return f.op("OpConvertUToF" if source in _WIDE_UNSIGNED else "OpConvertSToF", to, f.id(arg))
    return _int_to_int(f, arg, target)


def _short_to_float(f: KernelEmitter, arg: KValue, target: KType) -> Id:
    """An integer below 2**22 as the low bits of 12582912 + i, from which 12582912 is subtracted: exact.

    GPUs convert at a quarter to an eighth of the rate at which they add.
    """
    like = KType(DType.I32, target.lanes)
    bits = f.op("OpIAdd", f.type(like), f.id(arg), f.int_literal(0x4B400000, like))
    shifted = f.op("OpBitcast", f.type(target), bits)
    return f.op("OpFSub", f.type(target), shifted, f.float_literal(12582912.0, target))


def _int_to_int(f: KernelEmitter, arg: KValue, target: KType) -> Id:
    id_, wide = f.id(arg), arg.type.dtype.bits == 64
    if target.dtype.bits == 64:
        if wide:
            return id_
        return f.op("OpUConvert" if arg.type.dtype is DType.U32 else "OpSConvert", f.type(target), id_)
    if wide:
        id_ = f.op("OpUConvert", f.type(target), id_)
    return normalized(f, id_, target) if target.dtype.bits < 32 else id_


def _to_int(f: KernelEmitter, arg: KValue, target: KType) -> Id:
    """Truncating and saturating; NaN gives 0. The conversion itself only sees what fits."""
    m, source = f.module, arg.type
    boolean = m.vector_type(m.bool_type(), target.lanes)
    real, integer = f.type(source), f.type(target)
    bits, signed = target.dtype.bits, target.dtype.is_signed
    low = -(1 << (bits - 1)) if signed else 0
    beyond = low + (1 << bits)
    whole = f.glsl("Trunc", real, f.id(arg))
    above = f.op("OpFOrdGreaterThanEqual", boolean, whole, f.float_literal(float(beyond), source))
    reaches = f.op("OpFOrdGreaterThanEqual", boolean, whole, f.float_literal(float(low), source))
    below = f.op("OpFOrdLessThan", boolean, whole, f.float_literal(float(low), source))
    fits = f.op("OpLogicalAnd", boolean, reaches, f.op("OpLogicalNot", boolean, above))
    safe = f.op("OpSelect", real, fits, whole, f.float_literal(0.0, source))
    value = f.op("OpConvertFToU" if target.dtype in _WIDE_UNSIGNED else "OpConvertFToS", integer, safe)
    value = f.op("OpSelect", integer, above, f.int_literal(beyond - 1, target), value)
    return f.op("OpSelect", integer, below, f.int_literal(low, target), value)


def _cast_narrow(f: KernelEmitter, arg: KValue, target: KType) -> Id:
    """From or to f16, bf16 or f8: f16 <-> f32 natively, else by integer instructions through f32."""
    source = arg.type.dtype
    if {source, target.dtype} == {DType.F16, DType.F32}:
        return f.op("OpFConvert", f.type(target), f.id(arg))
    builder = f.expansion()
    direct = source in (DType.F32, DType.F64) or target.dtype is DType.F32
    if source.is_float and target.dtype.is_float and direct:
        return f.inline(builder, narrow.convert(builder, arg, target.dtype))
    middle = builder.cast(arg, DType.F32)
    return f.inline(builder, builder.cast(middle, target.dtype))


def emit_bitcast(f: KernelEmitter, inst: Inst) -> None:
    """Between types of one width; those below 32 bits are moved inside their registers."""
    if inst.result is None:
        raise CodegenError("bitcast without a result")
    arg, target = inst.args[0], inst.result.type
    source = arg.type
    if source.dtype.bits >= 32:
        same = f.type(source) == f.type(target)
        f.bind(inst.result, f.id(arg) if same else f.op("OpBitcast", f.type(target), f.id(arg)))
        return
    bits = _half_to_bits(f, arg) if source.dtype is DType.F16 else f.id(arg)
    if target.dtype is DType.F16:
        f.bind(inst.result, _bits_to_half(f, bits, target))
    elif target.dtype.is_float:  # bf16 and f8 are zero-extended
        mask = f.int_literal((1 << target.dtype.bits) - 1, target)
        f.bind(inst.result, f.op("OpBitwiseAnd", f.type(target), bits, mask))
    else:
        f.bind(inst.result, normalized(f, bits, target))


def _each_lane(f: KernelEmitter, id_: Id, type_: KType) -> list[Id]:
    if type_.lanes == 1:
        return [id_]
    scalar = f.type(type_.with_lanes(1))
    return [f.op("OpCompositeExtract", scalar, id_, lane) for lane in range(type_.lanes)]


def _joined(f: KernelEmitter, lanes: list[Id], type_: KType) -> Id:
    return lanes[0] if len(lanes) == 1 else f.op("OpCompositeConstruct", f.type(type_), *lanes)


def _half_to_bits(f: KernelEmitter, arg: KValue) -> Id:
    """Through f32 and PackHalf2x16, which every device has; exact, as the value is an f16."""
    m = f.module
    uint, real = m.int_type(32), m.float_type(32)
    pair, zero = m.vector_type(real, 2), m.float_constant(0.0)
    single = KType(DType.F32, arg.type.lanes)
    words = []
    for lane in _each_lane(f, f.op("OpFConvert", f.type(single), f.id(arg)), single):
        both = f.op("OpCompositeConstruct", pair, lane, zero)
        words.append(f.glsl("PackHalf2x16", uint, both))
    return _joined(f, words, KType(DType.I16, arg.type.lanes))


def _bits_to_half(f: KernelEmitter, bits: Id, target: KType) -> Id:
    m = f.module
    real = m.float_type(32)
    pair = m.vector_type(real, 2)
    parts = []
    for lane in _each_lane(f, bits, KType(DType.I16, target.lanes)):
        both = f.glsl("UnpackHalf2x16", pair, lane)
        parts.append(f.op("OpCompositeExtract", real, both, 0))
    single = _joined(f, parts, KType(DType.F32, target.lanes))
    return f.op("OpFConvert", f.type(target), single)
