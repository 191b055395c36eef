"""Loads, stores, gathers, scatters and atomics."""

from __future__ import annotations

from mansard.codegen.kernel import Binding, Inst, KType, KValue, SharedMemory
from mansard.codegen.llvm import text
from mansard.codegen.llvm.function import FunctionEmitter
from mansard.dtypes import DType
from mansard.errors import CodegenError


def emit_load(f: FunctionEmitter, inst: Inst) -> None:
    """Contiguous load, or gather for a vector index."""
    if inst.result is None:
        raise CodegenError("load without a result")
    memory, index, type_ = inst.attrs["memory"], inst.args[0], inst.result.type
    stored = text.memory_type(type_)
    if index.type.lanes > 1:
        name = _gather(f, memory, index, type_)
    else:
        address, aliasing = _address(f, memory, index)
        align = _alignment(type_, bool(inst.attrs.get("aligned")))
        name = f.temp(f"load {stored}, ptr {address}, align {align}{aliasing}")
    if type_.dtype is DType.BOOL:
        zero = text.splat_literal("0", "i8", type_.lanes)
        name = f.temp(f"icmp ne {stored} {name}, {zero}")
    f.bind(inst.result, name)


def emit_store(f: FunctionEmitter, inst: Inst) -> None:
    """Contiguous store, or scatter for a vector index, lane 0 first."""
    memory = inst.attrs["memory"]
    index, value = inst.args
    type_ = value.type
    stored, name = text.memory_type(type_), f.name(value)
    if type_.dtype is DType.BOOL:
        name = f.temp(f"zext {text.type_name(type_)} {name} to {stored}")
    if index.type.lanes == 1:
        address, aliasing = _address(f, memory, index)
        align = _alignment(type_, bool(inst.attrs.get("aligned")))
        f.line(f"store {stored} {name}, ptr {address}, align {align}{aliasing}")
        return
    element = text.memory_type(type_.with_lanes(1))
    base, aliasing = f.pointer(memory)
    for lane in range(type_.lanes):
        position = f.temp(f"extractelement {f.typed(index)}, i64 {lane}")
        part = f.temp(f"extractelement {stored} {name}, i64 {lane}")
        integer = text.scalar_type(index.type.dtype)
        address = f.temp(f"getelementptr inbounds {element}, ptr {base}, {integer} {position}")
        f.line(f"store {element} {part}, ptr {address}, align {type_.dtype.itemsize}{aliasing}")


def emit_atomic(f: FunctionEmitter, inst: Inst) -> None:
    """Relaxed read-modify-write of one element."""
    index, value = inst.args
    address = element_address(f, inst.attrs["memory"], index)
    combiner = inst.attrs["combiner"]
    op = "fadd" if value.type.dtype.is_float else combiner
    f.line(f"atomicrmw {op} ptr {address}, {f.typed(value)} monotonic, align {value.type.dtype.itemsize}")


def emit_prefetch(f: FunctionEmitter, inst: Inst) -> None:
    """Into all levels of cache, or those from the second on. The address may lie outside the buffer."""
    memory, index = inst.attrs["memory"], inst.args[0]
    base, _ = f.pointer(memory)
    element = text.memory_type(KType(memory.dtype))
    address = f.temp(f"getelementptr {element}, ptr {base}, {f.typed(index)}")
    locality = 2 if inst.attrs.get("second_level") else 3
    f.call("void", "llvm.prefetch.p0", [f"ptr {address}", "i32 0", f"i32 {locality}", "i32 1"])


def element_address(f: FunctionEmitter, memory: Binding | SharedMemory, index: KValue) -> str:
    """The address of an element of a memory."""
    return _address(f, memory, index)[0]


def _address(f: FunctionEmitter, memory: Binding | SharedMemory, index: KValue) -> tuple[str, str]:
    base, aliasing = f.pointer(memory)
    element = text.memory_type(KType(memory.dtype))
    return f.temp(f"getelementptr inbounds {element}, ptr {base}, {f.typed(index)}"), aliasing


def _alignment(type_: KType, aligned: bool) -> int:
    """Bytes: of the whole vector when the kernel promises it, else of one element."""
    size = type_.dtype.itemsize
    whole = size * type_.lanes
    return whole if aligned and whole & (whole - 1) == 0 else size


def _gather(f: FunctionEmitter, memory: Binding | SharedMemory, index: KValue, type_: KType) -> str:
    # LLVM picks the gather instruction, or scalar loads where the CPU has none (or a slow one).
    base, aliasing = f.pointer(memory)
    element = text.memory_type(type_.with_lanes(1))
    pointers = f"<{type_.lanes} x ptr>"
    addresses = f.temp(f"getelementptr inbounds {element}, ptr {base}, {f.typed(index)}")
    stored = text.memory_type(type_)
    name = {"float": "f32", "double": "f64"}.get(element, element)
    mask = f"<{type_.lanes} x i1> {text.splat_literal('true', 'i1', type_.lanes)}"
    align = type_.dtype.itemsize
    intrinsic = f"llvm.masked.gather.v{type_.lanes}{name}.v{type_.lanes}p0"
    operand = f"{pointers} align {align} {addresses}"
    f.declare(intrinsic, f"{stored} @{intrinsic}({pointers}, <{type_.lanes} x i1>, {stored})")
    return f.temp(f"call {stored} @{intrinsic}({operand}, {mask}, {stored} poison){aliasing}")
