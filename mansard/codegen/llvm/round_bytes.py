"""The ``round_bytes`` instruction: numbers rounded to bytes, as every quantised layer ends.

On x86 one instruction rounds f32 to i32 and another narrows, saturating, so that of the limits one remains
where the bytes are unsigned::

    x: f32<16>  ->  max(x, -zero)  ->  vcvtps2dq  ->  + zero  ->  vpmovusdb

Elsewhere it is what it means, instruction by instruction.
"""

from __future__ import annotations

from mansard.codegen.kernel import Inst, KernelBuilder, KType, KValue
from mansard.codegen.llvm import text
from mansard.codegen.llvm.function import FunctionEmitter
from mansard.dtypes import DType
from mansard.errors import CodegenError

_NEAREST = {
    4: ("sse2", "llvm.x86.sse2.cvtps2dq"),
    8: ("avx", "llvm.x86.avx.cvt.ps2dq.256"),
    16: ("avx512f", "llvm.x86.avx512.mask.cvtps2dq.512"),
}
"""By lanes: a feature, and the intrinsic that rounds to even; what does not fit i32 gives the smallest."""


def emit_round_bytes(f: FunctionEmitter, inst: Inst) -> None:
    """``min(max(round(x) + zero, low), high)`` as bytes; NaN gives 0."""
    if inst.result is None:
        raise CodegenError("round_bytes without a result")
    x, type_ = inst.args[0], inst.result.type
    feature, nearest = _NEAREST.get(type_.lanes, ("", ""))
    if f.target.arch != "x86_64" or (feature != "sse2" and feature not in f.target.features):
        builder = f.expansion()
        f.bind(inst.result, f.inline(builder, expanded(builder, x, type_.dtype, **inst.attrs)))
        return
    f.bind(inst.result, _nearest(f, f.name(x), type_, nearest, **inst.attrs))


def expanded(b: KernelBuilder, x: KValue, dtype: DType, zero: int, low: int, high: int) -> KValue:
    """The instruction by others."""

    def literal(value: int) -> KValue:
        return b.const(float(value), DType.F32, x.type.lanes)

    shifted = b.unary("round", x)
    shifted = b.add(shifted, literal(zero)) if zero else shifted
    return b.cast(b.binary("min", b.binary("max", shifted, literal(low)), literal(high)), dtype)


def _nearest(f: FunctionEmitter, x: str, type_: KType, intrinsic: str, zero: int, low: int, high: int) -> str:
    lanes = type_.lanes
    floats, ints, mask = f"<{lanes} x float>", f"<{lanes} x i32>", f"<{lanes} x i1>"

    def limited(name: str, test: str, bound: int) -> str:
        """The bound replaces what is beyond it, and NaN: one machine instruction."""
        at = text.literal(bound, KType(DType.F32, lanes))
        inside = f.temp(f"fcmp {test} {floats} {name}, {at}")
        return f.temp(f"select {mask} {inside}, {floats} {name}, {floats} {at}")

    # A byte that is limited by its type alone is limited while it is narrowed.
    saturates = type_.dtype is DType.U8 and "avx512f" in f.target.features
    saturates = saturates and (low, high) == (0, 255) and 0 <= zero <= 255
    y = limited(x, "ogt", low - zero)
    if not saturates:
        y = limited(y, "olt", high - zero)
    arguments = [f"{floats} {y}"]
    if lanes == 16:
        arguments += [f"{ints} zeroinitializer", "i16 -1", "i32 4"]
    whole = f.call(ints, intrinsic, arguments)
    if zero:
        whole = f.temp(f"add {ints} {whole}, {text.literal(zero, KType(DType.I32, lanes))}")
    if saturates:
        limit = text.literal(255, KType(DType.I32, lanes))
        whole = f.call(ints, f"llvm.umin.v{lanes}i32", [f"{ints} {whole}", f"{ints} {limit}"])
    result = f.temp(f"trunc {ints} {whole} to {text.type_name(type_)}")
    if low == 0:
        return result  # NaN became the lower limit
    ordered = f.temp(f"fcmp ord {floats} {x}, {x}")
    return f.temp(
        f"select {mask} {ordered}, {text.type_name(type_)} {result}, {text.type_name(type_)} zeroinitializer"
    )
