"""The descriptor ABI: buffers as storage buffers of set 0, parameters in push constants.

Binding ``i`` of a kernel is binding ``i`` of the set. A parameter takes 8 bytes of the push constants, of
which kernels read the half they need: no 64-bit integers are asked for that the kernel does not use itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mansard.codegen.kernel import Binding, KType
from mansard.codegen.spirv.words import Id
from mansard.dtypes import DType
from mansard.errors import CodegenError

if TYPE_CHECKING:
    from mansard.codegen.spirv.function import KernelEmitter

MAX_PARAMS = 16
"""128 bytes of push constants, which every device has."""


def storage_pointer(f: KernelEmitter, memory: Binding, index: Id, index_type: KType, stored: Id) -> Id:
    """A pointer to ``stored`` at element ``index`` of a buffer, where it is aligned to its own size.

    Every type a buffer is read as is a variable of its own; they alias, as bindings may anyhow.
    """
    m = f.module
    size, unit = m.bytes_of(stored), memory.dtype.itemsize
    if size & (size - 1) or unit & (unit - 1):
        raise CodegenError(f"kernel {f.kernel.name!r}: no array of {size} bytes each in a storage buffer")
    key = (memory.index, stored)
    if key not in f.storage:
        f.storage[key] = m.variable("StorageBuffer", m.array_block(stored, size))
        m.decorate(f.storage[key], "DescriptorSet", 0)
        m.decorate(f.storage[key], "Binding", memory.index)
        m.decorate(f.storage[key], "Aliased")
    shift = m.int_constant(abs(size.bit_length() - unit.bit_length()))
    if size != unit:
        op = "OpShiftRightArithmetic" if size > unit else "OpShiftLeftLogical"
        index = f.op(op, f.type(index_type), index, shift)
    pointer = m.pointer_type("StorageBuffer", stored)
    return f.op("OpAccessChain", pointer, f.storage[key], m.int_constant(0), index)


def param(f: KernelEmitter, index: int, dtype: DType) -> Id:
    """A parameter as a 64-bit integer for i64, else its lower 32 bits."""
    m = f.module
    uint = m.int_type(32)
    low = f.push_constant(2 * index, uint)
    if dtype is not DType.I64:
        return low
    pair = f.op("OpCompositeConstruct", m.vector_type(uint, 2), low, f.push_constant(2 * index + 1, uint))
    return f.op("OpBitcast", m.int_type(64), pair)
