"""Cooperative matrices (SPV_KHR_cooperative_matrix, SPV_KHR_bfloat16)."""

from __future__ import annotations

from mansard.codegen.kernel import Binding, Inst, KType, KValue, SharedMemory
from mansard.codegen.spirv.descriptors import storage_pointer
from mansard.codegen.spirv.function import KernelEmitter, binding_address
from mansard.codegen.spirv.words import ALIGNED, SCOPE, Id, Operand
from mansard.dtypes import DType
from mansard.errors import CodegenError

_USE = {"a": 0, "b": 1, "c": 2}
_LAYOUT = {"rows": 0, "columns": 1}
_SIGNED = (1, 2, 4, 8)  # operands of a product: a, b, c and the result have signed components


def matrix_type(f: KernelEmitter, type_: KType) -> Id:
    """The type of a matrix; asks for the capabilities of its elements."""
    m, matrix = f.module, type_.matrix
    if matrix is None:
        raise CodegenError(f"{type_} is no matrix")
    m.capabilities.add("CooperativeMatrixKHR")
    m.extensions.add("SPV_KHR_cooperative_matrix")
    scope = m.int_constant(SCOPE["Subgroup" if matrix.scope == "subgroup" else "Workgroup"])
    shape = (m.int_constant(matrix.rows), m.int_constant(matrix.columns))
    use = m.int_constant(_USE[matrix.use])
    return m.declare("OpTypeCooperativeMatrixKHR", None, component_type(f, type_.dtype), scope, *shape, use)


def component_type(f: KernelEmitter, dtype: DType) -> Id:
    """The type of one element of a matrix."""
    m = f.module
    if dtype is DType.BF16:
        m.capabilities.add("BFloat16CooperativeMatrixKHR")
        return m.bfloat16_type()
    if dtype is DType.F16:
        m.capabilities.add("Float16")
    if dtype in (DType.I8, DType.U8):
        m.capabilities.add("Int8")
        return m.int_type(8)
    return f.scalar_type(dtype)


def emit_fill(f: KernelEmitter, inst: Inst) -> None:
    """A constant matrix."""
    if inst.result is None:
        raise CodegenError("const without a result")
    type_, value = inst.result.type, inst.attrs["value"]
    if type_.dtype not in (DType.F32, DType.I32):
        raise CodegenError(f"kernel {f.kernel.name!r}: no constant matrix of {type_.dtype.value}")
    like = KType(type_.dtype)
    literal = f.float_literal(float(value), like) if type_.dtype.is_float else f.int_literal(int(value), like)
    f.bind(inst.result, f.module.declare("OpConstantComposite", f.type(type_), literal))


def emit_matrix_load(f: KernelEmitter, inst: Inst) -> None:
    """All invocations of the scope load together."""
    if inst.result is None:
        raise CodegenError("matrix_load without a result")
    index, stride = inst.args
    pointer, stride_id, operands = _place(f, inst, inst.result.type, index, stride)
    layout = f.module.int_constant(_LAYOUT[inst.attrs["by"]])
    type_ = f.type(inst.result.type)
    f.bind(inst.result, f.op("OpCooperativeMatrixLoadKHR", type_, pointer, layout, stride_id, *operands))


def emit_matrix_store(f: KernelEmitter, inst: Inst) -> None:
    """All invocations of the scope store together."""
    index, stride, value = inst.args
    pointer, stride_id, operands = _place(f, inst, value.type, index, stride)
    layout = f.module.int_constant(_LAYOUT[inst.attrs["by"]])
    f.do("OpCooperativeMatrixStoreKHR", pointer, f.id(value), layout, stride_id, *operands)


def _place(
    f: KernelEmitter, inst: Inst, type_: KType, index: KValue, stride: KValue
) -> tuple[Id, Id, tuple[Operand, ...]]:
    """The pointer to a matrix's first element, its stride in elements of memory, and memory operands."""
    memory = inst.attrs["memory"]
    if isinstance(memory, SharedMemory):
        element = f.module.vector_type(f.shared_element(memory.dtype), memory.lanes)
        pointer = f.module.pointer_type("Workgroup", element)
        chain = f.op("OpAccessChain", pointer, f.shared(memory), f.id(index))
        return chain, f.id(stride), f.shared_access
    return _buffer_place(f, memory, type_, index, stride, inst.attrs["aligned"])


def _buffer_place(
    f: KernelEmitter, memory: Binding, type_: KType, index: KValue, stride: KValue, aligned: int
) -> tuple[Id, Id, tuple[Operand, ...]]:
    """As `_place`; the pointer lies in an array, as the extension asks for."""
    m = f.module
    element = m.int_type(16) if type_.dtype is DType.BF16 else component_type(f, type_.dtype)
    if f.descriptors:
        place = storage_pointer(f, memory, f.id(index), index.type, element)
        return place, f.id(stride), ()
    size = memory.dtype.itemsize
    block = m.array_block(element, size)
    ulong = m.int_type(64)
    wide = f.id(index) if index.type.dtype is DType.I64 else f.op("OpSConvert", ulong, f.id(index))
    shifted = (
        f.op("OpShiftLeftLogical", ulong, wide, m.int_constant(size.bit_length() - 1)) if size > 1 else wide
    )
    address = f.op("OpIAdd", ulong, binding_address(f, memory), shifted)
    pointer = f.op("OpConvertUToPtr", m.pointer_type("PhysicalStorageBuffer", block), address)
    zero = m.int_constant(0)
    inner = m.pointer_type("PhysicalStorageBuffer", element)
    chain = f.op("OpAccessChain", inner, pointer, zero, zero)
    return chain, f.id(stride), (ALIGNED, aligned)


def emit_matrix_multiply(f: KernelEmitter, inst: Inst) -> None:
    """a @ b + c."""
    if inst.result is None:
        raise CodegenError("matrix_multiply without a result")
    types = (*(arg.type for arg in inst.args), inst.result.type)
    signed = sum(bit for bit, t in zip(_SIGNED, types, strict=True) if t.dtype in (DType.I8, DType.I32))
    operands: tuple[Operand, ...] = tuple(f.id(arg) for arg in inst.args)
    if signed:
        operands = (*operands, signed)
    f.bind(inst.result, f.op("OpCooperativeMatrixMulAddKHR", f.type(inst.result.type), *operands))
    a, c = types[0], types[2]
    assert a.matrix is not None and c.matrix is not None
    if c.matrix.scope == "subgroup":
        shape = f"{c.matrix.rows}x{c.matrix.columns}x{a.matrix.columns}"
        f.needs.add(f"matrix_{shape}_{a.dtype.value}_{c.dtype.value}")


def emit_matrix_scale(f: KernelEmitter, inst: Inst) -> None:
    """Every element times a scalar."""
    if inst.result is None:
        raise CodegenError("matrix_scale without a result")
    matrix, scalar = inst.args
    f.bind(inst.result, f.op("OpMatrixTimesScalar", f.type(inst.result.type), f.id(matrix), f.id(scalar)))


def emit_matrix_cast(f: KernelEmitter, inst: Inst) -> None:
    """Element by element: between floats, or between integers and floats."""
    if inst.result is None:
        raise CodegenError("cast without a result")
    source, target = inst.args[0].type.dtype, inst.result.type.dtype
    if source is target:
        f.bind(inst.result, f.id(inst.args[0]))
        return
    if source.is_float and target.is_float:
        op = "OpFConvert"
    elif target.is_float:
        op = "OpConvertSToF" if source.is_signed else "OpConvertUToF"
    else:
        raise CodegenError(
            f"kernel {f.kernel.name!r}: no cast of matrices from {source.value} to {target.value}"
        )
    f.bind(inst.result, f.op(op, f.type(inst.result.type), f.id(inst.args[0])))
