"""Packed memory in PTX: loads of 32-bit words, the small elements in them, dot products of their bytes."""

from __future__ import annotations

from mansard.codegen.kernel import Inst, SharedMemory
from mansard.codegen.kernel.packed_integers import float_form
from mansard.codegen.llvm import text
from mansard.codegen.llvm.function import FunctionEmitter
from mansard.codegen.llvm.instructions import result_type
from mansard.dtypes import DType
from mansard.errors import CodegenError

_PERMUTE = "llvm.nvvm.prmt"
_BYTES, _PAIRS = 0x0040, 0x5410
"""What `_PERMUTE` takes from two words: the lowest byte of each, and the lower half of each."""


def emit_load_words(f: FunctionEmitter, inst: Inst) -> None:
    """One load of all the words."""
    type_, memory, index = result_type(inst), inst.attrs["memory"], inst.args[0]
    if isinstance(memory, SharedMemory):
        raise CodegenError(f"kernel {f.kernel.name!r}: words are loaded from buffers alone")
    base, aliasing = f.pointer(memory)
    place = f.name(index)
    if index.type.dtype is not DType.I64:
        place = f.temp(f"sext {f.typed(index)} to i64")
    bits = memory.dtype.bits
    bytes_ = f.temp(
        f"mul nsw i64 {place}, {bits // 8}" if bits >= 8 else f"ashr i64 {place}, {3 - bits // 4}"
    )
    address = f.temp(f"getelementptr inbounds i8, ptr {base}, i64 {bytes_}")
    words = text.type_name(type_)
    f.bind(inst.result, f.temp(f"load {words}, ptr {address}, align {4 * type_.lanes}{aliasing}"))


def emit_unpack(f: FunctionEmitter, inst: Inst) -> None:
    """Masks and shifts, but for f16, which the GPU converts."""
    type_, dtype, words = result_type(inst), inst.attrs["dtype"], inst.args[0]
    elements = []
    for number in range(inst.attrs["first"], inst.attrs["first"] + type_.lanes):
        place, start = divmod(number * dtype.bits, 32)
        word = f.name(words)
        if words.type.lanes > 1:
            word = f.temp(f"extractelement {f.typed(words)}, i64 {place}")
        elements.append(_element(f, word, start, dtype, type_.dtype))
    name = text.type_name(type_)
    scalar = text.scalar_type(type_.dtype)
    whole = elements[0]
    if type_.lanes > 1:
        whole = "poison"
        for lane, element in enumerate(elements):
            whole = f.temp(f"insertelement {name} {whole}, {scalar} {element}, i64 {lane}")
    f.bind(inst.result, whole)


def emit_dot_bytes(f: FunctionEmitter, inst: Inst) -> None:
    """dp4a."""
    signs = "".join(f".{'s' if signed else 'u'}" for signed in inst.attrs["signed"])
    operands = [f.typed(arg) for arg in inst.args]
    f.bind(inst.result, f.call("i32", f"llvm.nvvm.idp4a{signs}", operands))


def emit_join_bytes(f: FunctionEmitter, inst: Inst) -> None:
    """Two pairs of bytes, and these."""
    a, b, c, d = (f"i32 {f.name(arg)}" for arg in inst.args)
    low, high = (f.call("i32", _PERMUTE, [x, y, f"i32 {_BYTES}"]) for x, y in ((a, b), (c, d)))
    f.bind(inst.result, f.call("i32", _PERMUTE, [f"i32 {low}", f"i32 {high}", f"i32 {_PAIRS}"]))


def _element(f: FunctionEmitter, word: str, start: int, dtype: DType, target: DType) -> str:
    if dtype is DType.BF16:  # the upper half of an f32
        bits = f.temp(f"and i32 {word}, -65536" if start else f"shl i32 {word}, 16")
        return f.temp(f"bitcast i32 {bits} to float")
    if dtype is DType.F16:
        half = f.temp(f"trunc i32 {_shifted(f, word, start)} to i16")
        return f.temp(f"fpext half {f.temp(f'bitcast i16 {half} to half')} to float")
    if target is DType.F32:
        return _real(f, word, start, dtype)
    extend = "sext" if dtype.is_signed else "zext"
    if target is DType.I32 and not dtype.is_signed:
        return f.temp(f"and i32 {_shifted(f, word, start)}, {(1 << dtype.bits) - 1}")
    part = f.temp(f"trunc i32 {_shifted(f, word, start)} to i{dtype.bits}")
    return part if dtype.bits == target.bits else f.temp(f"{extend} i{dtype.bits} {part} to i{target.bits}")


def _shifted(f: FunctionEmitter, word: str, start: int) -> str:
    return f.temp(f"lshr i32 {word}, {start}") if start else word


def _real(f: FunctionEmitter, word: str, start: int, dtype: DType) -> str:
    """An integer of a few bits as f32."""
    form = float_form(dtype, start)
    digits = f.temp(f"and i32 {_shifted(f, word, form.shift)}, {form.mask}")
    whole = f.temp(f"xor i32 {digits}, {form.bits}")
    number = f.temp(f"bitcast i32 {whole} to float")
    literals = [f"float {text.float_literal(x, DType.F32)}" for x in (form.scale, form.offset)]
    return f.call("float", "llvm.fma.f32", [f"float {number}", *literals])
