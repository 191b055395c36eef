"""Packed memory: loads of 32-bit words, and the 16-, 8- and 4-bit elements in them."""

from __future__ import annotations

from mansard.codegen.kernel import Inst, KType
from mansard.codegen.kernel.packed_integers import float_form
from mansard.codegen.spirv.function import KernelEmitter
from mansard.codegen.spirv.memory import buffer_pointer
from mansard.codegen.spirv.words import ALIGNED, Id
from mansard.dtypes import DType
from mansard.errors import CodegenError

PACKED_BYTES = 0  # packed vector format 4x8


def emit_load_words(f: KernelEmitter, inst: Inst) -> None:
    """One load of all the words."""
    if inst.result is None:
        raise CodegenError("load_words without a result")
    type_ = f.type(inst.result.type)
    index, further = (inst.args[0], 0) if f.descriptors else f.without_literal(inst.args[0])
    pointer = buffer_pointer(f, inst.attrs["memory"], f.id(index), index.type, type_, further)
    f.bind(inst.result, f.op("OpLoad", type_, pointer, ALIGNED, 4 * inst.result.type.lanes))


def emit_unpack(f: KernelEmitter, inst: Inst) -> None:
    """Masks and shifts, but for f16, which every device unpacks by itself."""
    if inst.result is None:
        raise CodegenError("unpack without a result")
    (words,), type_, dtype = inst.args, inst.result.type, inst.attrs["dtype"]
    first, bits = inst.attrs["first"], dtype.bits
    elements: list[Id] = []
    known: dict[tuple[int, int], Id] = {}
    for number in range(first, first + type_.lanes):
        place, start = divmod(number * bits, 32)
        word = f.id(words)
        if words.type.lanes > 1:
            word = f.op("OpCompositeExtract", f.module.int_type(32), word, place)
        if dtype is DType.F16:
            elements.append(_half(f, word, place, start, known))
        elif dtype is DType.BF16:
            elements.append(_brain(f, word, start))
        elif type_.dtype is DType.F32:
            elements.append(_real(f, word, place, start, dtype, known))
        else:
            elements.append(_integer(f, word, start, dtype))
    whole = elements[0] if len(elements) == 1 else f.op("OpCompositeConstruct", f.type(type_), *elements)
    f.bind(inst.result, whole)


def emit_dot_bytes(f: KernelEmitter, inst: Inst) -> None:
    """One instruction, of SPV_KHR_integer_dot_product."""
    m = f.module
    m.extensions.add("SPV_KHR_integer_dot_product")
    m.capabilities |= {"DotProduct", "DotProductInput4x8BitPacked"}
    a, b, c = (f.id(arg) for arg in inst.args)
    left, right = inst.attrs["signed"]
    if right and not left:
        a, b = b, a  # OpSUDot wants the signed side first
    op = {2: "OpSDot", 1: "OpSUDot", 0: "OpUDot"}[left + right]
    product = f.op(op, m.int_type(32), a, b, PACKED_BYTES)
    f.bind(inst.result, f.op("OpIAdd", m.int_type(32), product, c))


def emit_join_bytes(f: KernelEmitter, inst: Inst) -> None:
    """Each byte is inserted above those before it, over what else is there."""
    word, m = f.id(inst.args[0]), f.module
    for number, arg in enumerate(inst.args[1:], 1):
        place = m.int_constant(8 * number), m.int_constant(8)
        word = f.op("OpBitFieldInsert", m.int_type(32), word, f.id(arg), *place)
    f.bind(inst.result, word)


def _half(f: KernelEmitter, word: Id, place: int, start: int, known: dict[tuple[int, int], Id]) -> Id:
    real = f.module.float_type(32)
    if (place, 0) not in known:
        known[place, 0] = f.glsl("UnpackHalf2x16", f.module.vector_type(real, 2), word)
    return f.op("OpCompositeExtract", real, known[place, 0], start // 16)


def _brain(f: KernelEmitter, word: Id, start: int) -> Id:
    """A bf16 is the upper half of an f32."""
    m, like = f.module, KType(DType.I32)
    if start:
        bits = f.op("OpBitwiseAnd", m.int_type(32), word, f.int_literal(-(1 << 16), like))
    else:
        bits = f.op("OpShiftLeftLogical", m.int_type(32), word, f.int_literal(16, like))
    return f.op("OpBitcast", m.float_type(32), bits)


def _real(
    f: KernelEmitter, word: Id, place: int, start: int, dtype: DType, known: dict[tuple[int, int], Id]
) -> Id:
    """An integer of a few bits as f32."""
    m, form, like = f.module, float_form(dtype, start), KType(DType.I32)
    if form.shift:
        if (place, form.shift) not in known:
            shift = m.int_constant(form.shift)
            known[place, form.shift] = f.op("OpShiftRightLogical", m.int_type(32), word, shift)
        word = known[place, form.shift]
    digits = f.op("OpBitwiseAnd", m.int_type(32), word, f.int_literal(form.mask, like))
    whole = f.op("OpBitwiseXor", m.int_type(32), digits, f.int_literal(form.bits, like))
    real = m.float_type(32)
    number = f.op("OpBitcast", real, whole)
    return f.glsl("Fma", real, number, m.float_constant(form.scale, 32), m.float_constant(form.offset, 32))


def _integer(f: KernelEmitter, word: Id, start: int, dtype: DType) -> Id:
    m = f.module
    op = "OpBitFieldSExtract" if dtype.is_signed else "OpBitFieldUExtract"
    return f.op(op, m.int_type(32), word, m.int_constant(start), m.int_constant(dtype.bits))
