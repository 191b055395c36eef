"""Loads, stores, gathers, scatters, atomics and barriers.

Buffers are reached by 64-bit addresses: ``base + index * size``, so an i64 index passes 4 GiB.
"""

from __future__ import annotations

from mansard.codegen.kernel import Binding, Inst, KType, KValue, SharedMemory
from mansard.codegen.spirv.descriptors import storage_pointer
from mansard.codegen.spirv.function import KernelEmitter, binding_address
from mansard.codegen.spirv.words import ACQUIRE_RELEASE_WORKGROUP, ALIGNED, MAKE_AVAILABLE_VISIBLE, SCOPE, Id
from mansard.dtypes import DType
from mansard.errors import CodegenError

_SIGNED_NARROW = (DType.I8, DType.I16)


def emit_load(f: KernelEmitter, inst: Inst) -> None:
    """Contiguous load, or one element per lane for a vector index."""
    if inst.result is None:
        raise CodegenError("load without a result")
    memory, index, type_ = inst.attrs["memory"], inst.args[0], inst.result.type
    f.type(type_)  # too many lanes are reported before anything is emitted
    whole = _is_whole(f, memory, type_, inst) and index.type.lanes == 1
    if whole or type_.lanes == 1:
        f.bind(inst.result, _load(f, memory, f.id(index), index.type, type_, inst))
        return
    f.uses_f16(type_)
    lanes = [
        _load(f, memory, position, index.type.with_lanes(1), type_.with_lanes(1), inst)
        for position in _positions(f, index, type_.lanes)
    ]
    f.bind(inst.result, f.op("OpCompositeConstruct", f.type(type_), *lanes))


def emit_store(f: KernelEmitter, inst: Inst) -> None:
    """Contiguous store, or one element per lane, lane 0 first, for a vector index."""
    memory = inst.attrs["memory"]
    index, value = inst.args
    type_ = value.type
    whole = _is_whole(f, memory, type_, inst) and index.type.lanes == 1
    if whole or type_.lanes == 1:
        _store(f, memory, (f.id(index), index.type), (f.id(value), type_), inst)
        return
    f.uses_f16(type_)
    scalar = type_.with_lanes(1)
    for lane, position in enumerate(_positions(f, index, type_.lanes)):
        part = f.op("OpCompositeExtract", f.type(scalar), f.id(value), lane)
        _store(f, memory, (position, index.type.with_lanes(1)), (part, scalar), inst)


def _is_whole(f: KernelEmitter, memory: Binding | SharedMemory, type_: KType, inst: Inst) -> bool:
    """Whether a vector of consecutive elements is one access."""
    if isinstance(memory, SharedMemory):
        return memory.lanes > 1
    # An array of vectors has them at multiples of their size alone.
    return not f.descriptors or _alignment(type_, inst) == type_.dtype.itemsize * type_.lanes


def emit_store_lane(f: KernelEmitter, inst: Inst) -> None:
    """One element of a vector in workgroup memory."""
    memory = inst.attrs["memory"]
    index, lane, value = inst.args
    pointer = f.module.pointer_type("Workgroup", f.shared_element(memory.dtype))
    place = f.op("OpAccessChain", pointer, f.shared(memory), f.id(index), f.id(lane))
    f.do("OpStore", place, f.id(value), *f.shared_access)


def _positions(f: KernelEmitter, index: KValue, lanes: int) -> list[Id]:
    """The element index of every lane."""
    scalar = f.type(index.type.with_lanes(1))
    if index.type.lanes > 1:
        return [f.op("OpCompositeExtract", scalar, f.id(index), lane) for lane in range(lanes)]
    start = f.id(index)
    offsets = [f.int_literal(lane, index.type) for lane in range(lanes)]
    return [f.op("OpIAdd", scalar, start, offset) if i else start for i, offset in enumerate(offsets)]


def _pointer(
    f: KernelEmitter, memory: Binding | SharedMemory, index: Id, index_type: KType, stored: Id
) -> Id:
    m = f.module
    if isinstance(memory, SharedMemory):
        pointer = m.pointer_type("Workgroup", m.vector_type(f.shared_element(memory.dtype), memory.lanes))
        return f.op("OpAccessChain", pointer, f.shared(memory), index)
    return buffer_pointer(f, memory, index, index_type, stored)


def buffer_pointer(
    f: KernelEmitter, memory: Binding, index: Id, index_type: KType, stored: Id, further: int = 0
) -> Id:
    """A pointer to ``stored`` at element ``index + further`` of a buffer."""
    if f.descriptors:
        return storage_pointer(f, memory, index, index_type, stored)
    m = f.module
    ulong = m.int_type(64)
    wide = index if index_type.dtype is DType.I64 else f.op("OpSConvert", ulong, index)
    size = memory.dtype.itemsize
    if size & (size - 1) == 0 and size > 1:
        wide = f.op("OpShiftLeftLogical", ulong, wide, m.int_constant(size.bit_length() - 1))
    address = f.op("OpIAdd", ulong, binding_address(f, memory), wide)
    if further:
        # Last and in 64 bits, so that it becomes part of the access itself.
        address = f.op("OpIAdd", ulong, address, m.int_constant(further * size, 64))
    return f.op("OpConvertUToPtr", m.pointer_type("PhysicalStorageBuffer", stored), address)


def _stored_type(f: KernelEmitter, type_: KType) -> Id:
    """The type in a buffer: bool, bf16 and f8 as integers of their width."""
    m, dtype = f.module, type_.dtype
    scalar = m.float_type(dtype.bits) if _is_float_in_memory(dtype) else m.int_type(dtype.bits)
    return m.vector_type(scalar, type_.lanes)


def _is_float_in_memory(dtype: DType) -> bool:
    return dtype in (DType.F16, DType.F32, DType.F64)


def _alignment(type_: KType, inst: Inst) -> int:
    """Bytes: of the whole vector when the kernel promises it, else of one element."""
    size = type_.dtype.itemsize
    whole = size * type_.lanes
    return whole if inst.attrs.get("aligned") and whole & (whole - 1) == 0 else size


def _load(
    f: KernelEmitter, memory: Binding | SharedMemory, index: Id, index_type: KType, type_: KType, inst: Inst
) -> Id:
    m = f.module
    if isinstance(memory, SharedMemory):
        element = m.vector_type(f.shared_element(memory.dtype), memory.lanes)
        pointer = _pointer(f, memory, index, index_type, element)
        value = f.op("OpLoad", element, pointer, *f.shared_access)
        if type_.dtype is DType.BOOL:
            zero = m.splat(m.int_constant(0), m.int_type(32), type_.lanes)
            return f.op("OpINotEqual", f.type(type_), value, zero)
        return value
    stored = _stored_type(f, type_)
    pointer = _pointer(f, memory, index, index_type, stored)
    value = f.op("OpLoad", stored, pointer, ALIGNED, _alignment(type_, inst))
    if _is_float_in_memory(type_.dtype) or type_.dtype.bits >= 32:
        return value
    wide = m.vector_type(m.int_type(32), type_.lanes)
    value = f.op("OpSConvert" if type_.dtype in _SIGNED_NARROW else "OpUConvert", wide, value)
    if type_.dtype is DType.BOOL:
        zero = m.splat(m.int_constant(0), m.int_type(32), type_.lanes)
        return f.op("OpINotEqual", f.type(type_), value, zero)
    return value


def _store(
    f: KernelEmitter,
    memory: Binding | SharedMemory,
    index: tuple[Id, KType],
    value: tuple[Id, KType],
    inst: Inst,
) -> None:
    m = f.module
    id_, type_ = value
    if type_.dtype is DType.BOOL:
        uint = m.int_type(32)
        one, zero = (m.splat(m.int_constant(v), uint, type_.lanes) for v in (1, 0))
        id_ = f.op("OpSelect", m.vector_type(uint, type_.lanes), id_, one, zero)
    if isinstance(memory, SharedMemory):
        place = _pointer(f, memory, *index, f.shared_element(memory.dtype))
        f.do("OpStore", place, id_, *f.shared_access)
        return
    stored = _stored_type(f, type_)
    if type_.dtype.bits < 32 and not _is_float_in_memory(type_.dtype):
        id_ = f.op("OpUConvert", stored, id_)
    f.do("OpStore", _pointer(f, memory, *index, stored), id_, ALIGNED, _alignment(type_, inst))


def emit_atomic(f: KernelEmitter, inst: Inst) -> None:
    """Relaxed read-modify-write of one element, seen by the whole device."""
    m, memory = f.module, inst.attrs["memory"]
    index, value = inst.args
    dtype = value.type.dtype
    shared = isinstance(memory, SharedMemory)
    scope = m.int_constant(SCOPE["Workgroup" if shared else "Device"])
    relaxed = m.int_constant(0)
    if dtype is DType.F32:
        _add_f32(f, inst, scope, relaxed)
        return
    if dtype in (DType.I64, DType.U64):
        m.capabilities.add("Int64Atomics")
    sign = "S" if dtype.is_signed else "U"
    op = {"add": "OpAtomicIAdd", "min": f"OpAtomic{sign}Min", "max": f"OpAtomic{sign}Max"}[
        inst.attrs["combiner"]
    ]
    pointer = _pointer(f, memory, f.id(index), index.type, f.scalar_type(dtype))
    f.op(op, f.scalar_type(dtype), pointer, scope, relaxed, f.id(value))


def _add_f32(f: KernelEmitter, inst: Inst, scope: Id, relaxed: Id) -> None:
    """A compare-and-swap loop on the bits: float atomics are an extension few devices have."""
    m, memory = f.module, inst.attrs["memory"]
    index, value = inst.args
    if isinstance(memory, SharedMemory):
        raise CodegenError(
            f"kernel {f.kernel.name!r}: no atomic add of f32 in workgroup memory; reduce it by a barrier tree"
        )
    uint, real, boolean = m.int_type(32), m.float_type(32), m.bool_type()
    pointer = _pointer(f, memory, f.id(index), index.type, uint)
    first = f.op("OpAtomicLoad", uint, pointer, scope, relaxed)
    head, body, again, done = (m.id() for _ in range(4))
    before, seen = f.current_label, m.id()
    f.do("OpBranch", head)
    f.label(head)
    current = m.id()
    f.phi(uint, seen, ((first, before), (current, again)))
    f.do("OpLoopMerge", done, again, 0)
    f.do("OpBranch", body)
    f.label(body)
    total = f.op("OpFAdd", real, f.op("OpBitcast", real, seen), f.id(value))
    swap = (pointer, scope, relaxed, relaxed, f.op("OpBitcast", uint, total), seen)
    f.place("OpAtomicCompareExchange", uint, current, *swap)
    f.do("OpBranchConditional", f.op("OpIEqual", boolean, current, seen), done, again)
    f.label(again)
    f.do("OpBranch", head)
    f.label(done)


def emit_barrier(f: KernelEmitter, inst: Inst) -> None:
    """Every invocation of the scope arrives, and sees what the others wrote to workgroup memory."""
    scope = SCOPE["Subgroup" if inst.attrs.get("scope") == "subgroup" else "Workgroup"]
    workgroup = f.module.int_constant(scope)
    semantics = ACQUIRE_RELEASE_WORKGROUP | (MAKE_AVAILABLE_VISIBLE if f.vulkan_memory else 0)
    f.do("OpControlBarrier", workgroup, workgroup, f.module.int_constant(semantics))
