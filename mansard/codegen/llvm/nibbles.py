"""The ``nibbles`` instruction, 4-bit integers unpacked to bytes, bf16 or f32, in order; and ``nibble_pairs``,
as bf16 those that lie low in halves of words.

Where a CPU permutes a register by another one, the bits above a nibble need not be cleared: the table that
the nibbles index repeats.

=======  =====================================================================================
bytes    vpmultishiftqb and vpermb (AVX512-VBMI); else shifts and masks
bf16     vpermw (AVX512-BW) of each byte beside its upper half; else by way of bytes and f32
f32      one shift by a different count in each lane, and one that extends the sign
=======  =====================================================================================

Sources: Intel SDM vol. 2, by the instructions' names.
"""

from __future__ import annotations

from mansard.codegen.kernel import Inst, KType
from mansard.codegen.llvm import text
from mansard.codegen.llvm.casts import byte_to_bf16
from mansard.codegen.llvm.function import FunctionEmitter
from mansard.codegen.math.narrow import code
from mansard.dtypes import DType
from mansard.errors import CodegenError


def emit_nibbles(f: FunctionEmitter, inst: Inst) -> None:
    """The two integers of every byte, the one in its low half first."""
    if inst.result is None:
        raise CodegenError("nibbles without a result")
    packed, lanes = f.name(inst.args[0]), inst.args[0].type.lanes
    dtype, signed = inst.result.type.dtype, bool(inst.attrs["signed"])
    if dtype is DType.F32:
        name = _singles(f, packed, lanes, signed)
    elif dtype is DType.BF16:
        name = _brains(f, packed, lanes, signed)
    else:
        name = _bytes(f, packed, lanes, signed)
    f.bind(inst.result, name)


def _numbers(signed: bool) -> list[int]:
    return [n - 16 if signed and n >= 8 else n for n in range(16)]


def _vector(element: str, values: list[int]) -> str:
    return "<" + ", ".join(f"{element} {value}" for value in values) + ">"


def _bytes(f: FunctionEmitter, packed: str, lanes: int, signed: bool) -> str:
    if lanes in (8, 16, 32) and {"avx512vbmi", "avx512vl"} <= f.target.features:
        count, bits, vector = lanes // 4, 16 * lanes, f"<{2 * lanes} x i8>"
        words = f.temp(f"bitcast <{lanes} x i8> {packed} to <{count} x i32>")
        wide = f.temp(f"zext <{count} x i32> {words} to <{count} x i64>")
        source = f.temp(f"bitcast <{count} x i64> {wide} to {vector}")
        places = f"{vector} {_vector('i8', list(range(0, 32, 4)) * count)}"
        moved = f.call(vector, f"llvm.x86.avx512.pmultishift.qb.{bits}", [places, f"{vector} {source}"])
        table = f"{vector} {_vector('i8', (_numbers(signed) * 4)[: 2 * lanes])}"
        return f.call(vector, f"llvm.x86.avx512.permvar.qi.{bits}", [table, f"{vector} {moved}"])
    halves = f"<{lanes} x i16>"
    wide = f.temp(f"zext <{lanes} x i8> {packed} to {halves}")
    moved = f.temp(f"shl {halves} {wide}, {text.splat_literal('4', 'i16', lanes)}")
    both = f.temp(f"or {halves} {wide}, {moved}")
    split = f.temp(f"and {halves} {both}, {text.splat_literal(str(0x0F0F), 'i16', lanes)}")
    result = f"<{2 * lanes} x i8>"
    name = f.temp(f"bitcast {halves} {split} to {result}")
    if signed:
        eight = text.splat_literal("8", "i8", 2 * lanes)
        name = f.temp(f"sub {result} {f.temp(f'xor {result} {name}, {eight}')}, {eight}")
    return name


def _brains(f: FunctionEmitter, packed: str, lanes: int, signed: bool) -> str:
    if lanes == 16 and "avx512bw" in f.target.features:
        wide = f.temp(f"zext <16 x i8> {packed} to <16 x i32>")
        moved = f.temp(f"shl <16 x i32> {wide}, {text.splat_literal('12', 'i32', 16)}")
        places = f.temp(f"bitcast <16 x i32> {f.temp(f'or <16 x i32> {wide}, {moved}')} to <32 x i16>")
        return _looked_up(f, places, signed)
    numbers = _bytes(f, packed, lanes, signed)
    return byte_to_bf16(f, f"<{2 * lanes} x i8> {numbers}", KType(DType.BF16, 2 * lanes), signed)


def _looked_up(f: FunctionEmitter, places: str, signed: bool) -> str:
    """The integers that the low bits of 32 lanes hold as bf16."""
    values = [code(float(number), DType.BF16) for number in _numbers(signed)]
    table = f"<32 x i16> {_vector('i16', values * 2)}"
    return f.call("<32 x i16>", "llvm.x86.avx512.permvar.hi.512", [table, f"<32 x i16> {places}"])


def emit_nibble_pairs(f: FunctionEmitter, inst: Inst) -> None:
    """The low integers of the halves of words as bf16."""
    if inst.result is None:
        raise CodegenError("nibble_pairs without a result")
    lanes, signed = 2 * inst.args[0].type.lanes, bool(inst.attrs["signed"])
    halves = f"<{lanes} x i16>"
    places = f.temp(f"bitcast {f.typed(inst.args[0])} to {halves}")
    if lanes == 32 and "avx512bw" in f.target.features:
        f.bind(inst.result, _looked_up(f, places, signed))
        return
    low = f.temp(f"and {halves} {places}, {text.splat_literal('15', 'i16', lanes)}")
    if signed:
        eight = text.splat_literal("8", "i16", lanes)
        low = f.temp(f"sub {halves} {f.temp(f'xor {halves} {low}, {eight}')}, {eight}")
    bytes_ = f"<{lanes} x i8>"
    numbers = f.temp(f"trunc {halves} {low} to {bytes_}")
    f.bind(inst.result, byte_to_bf16(f, f"{bytes_} {numbers}", KType(DType.BF16, lanes), signed))


def _singles(f: FunctionEmitter, packed: str, lanes: int, signed: bool) -> str:
    """Each lane has a word of eight nibbles (fewer for few lanes), and moves its own to the top."""
    count = min(8, 2 * lanes)
    bits, words = 4 * count, f"<{2 * lanes} x i32>"
    source = f"<{2 * lanes // count} x i{bits}>"
    held = f.temp(f"bitcast <{lanes} x i8> {packed} to {source}")
    mask = ", ".join(f"i32 {lane // count}" for lane in range(2 * lanes))
    spread = f.temp(f"shufflevector {source} {held}, {source} poison, <{2 * lanes} x i32> <{mask}>")
    if bits < 32:
        spread = f.temp(f"zext <{2 * lanes} x i{bits}> {spread} to {words}")
    shifts = _vector("i32", [28 - 4 * (lane % count) for lane in range(2 * lanes)])
    top = f.temp(f"shl {words} {spread}, {shifts}")
    code_ = "ashr" if signed else "lshr"
    number = f.temp(f"{code_} {words} {top}, {text.splat_literal('28', 'i32', 2 * lanes)}")
    return f.temp(f"{'sitofp' if signed else 'uitofp'} {words} {number} to <{2 * lanes} x float>")
