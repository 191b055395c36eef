"""Numeric conversions."""

from __future__ import annotations

from mansard.codegen.kernel import Inst, KType, KValue
from mansard.codegen.llvm import text
from mansard.codegen.llvm.function import FunctionEmitter
from mansard.codegen.math import narrow
from mansard.dtypes import DType
from mansard.errors import CodegenError

_MANTISSA = {DType.F32: 24, DType.F64: 53}
"""Bits of a float's significand, the hidden one included."""
_NARROW = frozenset({DType.F16, DType.BF16, DType.F8})


def emit_cast(f: FunctionEmitter, inst: Inst) -> None:
    """Any conversion of the instruction table."""
    if inst.result is None:
        raise CodegenError("cast without a result")
    arg, target = inst.args[0], inst.result.type
    f.bind(inst.result, _cast(f, arg, target))


def _cast(f: FunctionEmitter, arg: KValue, target: KType) -> str:
    source = arg.type.dtype
    if source is target.dtype:
        return f.name(arg)
    if source in _NARROW or target.dtype in _NARROW:
        return _cast_narrow(f, arg, target)
    name, to = f.typed(arg), text.type_name(target)
    if source is DType.BOOL:
        return f.temp(f"{'uitofp' if target.dtype.is_float else 'zext'} {name} to {to}")
    if target.dtype is DType.BOOL:
        code = "fcmp une" if source.is_float else "icmp ne"
        return f.temp(f"{code} {name}, {text.literal(0, arg.type)}")
    if source.is_float and target.dtype.is_float:
        return f.temp(f"{'fpext' if target.dtype is DType.F64 else 'fptrunc'} {name} to {to}")
    if source.is_float:
        return _to_int(f, arg, target)
    if target.dtype.is_float:
        return f.temp(f"{'sitofp' if source.is_signed else 'uitofp'} {name} to {to}")
    return _int_to_int(f, arg, target)


def _int_to_int(f: FunctionEmitter, arg: KValue, target: KType) -> str:
    source = arg.type.dtype
    name, to = f.typed(arg), text.type_name(target)
    if source.bits == target.dtype.bits:
        return f.name(arg)
    if source.bits > target.dtype.bits:
        return f.temp(f"trunc {name} to {to}")
    return f.temp(f"{'sext' if source.is_signed else 'zext'} {name} to {to}")


def _to_int(f: FunctionEmitter, arg: KValue, target: KType) -> str:
    """Truncating and saturating; NaN gives 0."""
    if target.lanes > 1:
        return _vector_to_int(f, arg, target)
    to, sign = text.type_name(target), "s" if target.dtype.is_signed else "u"
    source = {DType.F32: "f32", DType.F64: "f64"}[arg.type.dtype]
    name = f"llvm.fpto{sign}i.sat.i{target.dtype.bits}.{source}"
    return f.call(to, name, [f.typed(arg)])


def _vector_to_int(f: FunctionEmitter, arg: KValue, target: KType) -> str:
    """As `_to_int`, from clamps and selects: LLVM would take most vectors apart."""
    source, lanes = text.type_name(arg.type), target.lanes
    mask = text.vector_of("i1", lanes)
    bits, signed = target.dtype.bits, target.dtype.is_signed
    low = -(1 << (bits - 1)) if signed else 0
    beyond = low + (1 << bits)
    exact = bits <= _MANTISSA[arg.type.dtype]  # the largest integer is a float
    x = f.name(arg)

    def clamp(op: str, limit: int) -> None:
        nonlocal x
        bound = text.literal(limit, arg.type)
        test = f.temp(f"fcmp {op} {source} {bound}, {x}")
        x = f.temp(f"select {mask} {test}, {source} {bound}, {source} {x}")

    clamp("ogt", low)
    if exact:
        clamp("olt", beyond - 1)
        regular = f.temp(f"fcmp ord {source} {x}, {x}")
    else:
        regular = f.temp(f"fcmp olt {source} {x}, {text.literal(beyond, arg.type)}")
    safe = f.temp(f"select {mask} {regular}, {source} {x}, {source} zeroinitializer")
    # Narrow integers are reached through 32 bits, for which there are instructions.
    wide = target if bits >= 32 else KType(DType.I32, lanes)
    code = "fptosi" if signed or bits < 32 else "fptoui"
    value = f.temp(f"{code} {source} {safe} to {text.type_name(wide)}")
    if bits < 32:
        return f.temp(f"trunc {text.type_name(wide)} {value} to {text.type_name(target)}")
    if exact:
        return value
    above = f.temp(f"fcmp oge {source} {x}, {text.literal(beyond, arg.type)}")
    to = text.type_name(target)
    return f.temp(f"select {mask} {above}, {to} {text.literal(beyond - 1, target)}, {to} {value}")


def _cast_narrow(f: FunctionEmitter, arg: KValue, target: KType) -> str:
    """From or to f16, bf16 or f8: f16 <-> f32 and f32 -> bf16 natively where there are instructions, else by
    integer instructions through f32."""
    source = arg.type.dtype
    lanes = target.lanes
    half, single = text.vector_of("half", lanes), text.vector_of("float", lanes)
    if f.target.has_f16_conversion and (source, target.dtype) == (DType.F16, DType.F32):
        bits = f.temp(f"bitcast {f.typed(arg)} to {half}")
        return f.temp(f"fpext {half} {bits} to {single}")
    if f.target.has_f16_conversion and (source, target.dtype) == (DType.F32, DType.F16):
        rounded = f.temp(f"fptrunc {f.typed(arg)} to {half}")
        return f.temp(f"bitcast {half} {rounded} to {text.type_name(target)}")
    if f.target.has_bf16_conversion and (source, target.dtype) == (DType.F32, DType.BF16):
        return _to_bf16(f, arg, target)
    if source.bits <= 8 and source.is_int and target.dtype is DType.BF16:
        return byte_to_bf16(f, f.typed(arg), target, source.is_signed)
    builder = f.expansion()
    direct = source in (DType.F32, DType.F64) or target.dtype is DType.F32
    if source.is_float and target.dtype.is_float and direct:
        return f.inline(builder, narrow.convert(builder, arg, target.dtype))
    # Through f32, which holds every f16, bf16 and f8.
    middle = builder.cast(arg, DType.F32)
    return f.inline(builder, builder.cast(middle, target.dtype))


def byte_to_bf16(f: FunctionEmitter, typed: str, target: KType, signed: bool) -> str:
    """8-bit integers as the upper half of f32, which is exact: a bf16 has eight bits."""
    lanes = target.lanes
    single, words = text.vector_of("float", lanes), text.vector_of("i32", lanes)
    number = f.temp(f"{'sitofp' if signed else 'uitofp'} {typed} to {single}")
    bits = f.temp(f"bitcast {single} {number} to {words}")
    upper = f.temp(f"lshr {words} {bits}, {text.splat_literal('16', 'i32', lanes)}")
    return f.temp(f"trunc {words} {upper} to {text.type_name(target)}")


def _to_bf16(f: FunctionEmitter, arg: KValue, target: KType) -> str:
    """By the instruction; subnormals, which x86's vcvtneps2bf16 takes as zero, by integer instructions."""
    lanes, to = target.lanes, text.type_name(target)
    short, mask = text.vector_of("bfloat", lanes), text.vector_of("i1", lanes)
    native = f.temp(f"bitcast {short} {f.temp(f'fptrunc {f.typed(arg)} to {short}')} to {to}")
    single = text.type_name(arg.type)
    magnitude = f.call(single, f"llvm.fabs.{'f32' if lanes == 1 else f'v{lanes}f32'}", [f.typed(arg)])
    smallest = text.literal(2.0**-126, arg.type)
    subnormal = f.temp(f"fcmp olt {single} {magnitude}, {smallest}")
    builder = f.expansion()
    exact = f.inline(builder, narrow.brain_of_number(builder, arg))
    return f.temp(f"select {mask} {subnormal}, {to} {exact}, {to} {native}")
