"""Kernel IR: structured SSA close to the machine, read by the LLVM and the SPIR-V emitter."""

from mansard.codegen.kernel.builder import KernelBuilder, Loop
from mansard.codegen.kernel.ir import (
    Binding,
    Block,
    For,
    If,
    Inst,
    Kernel,
    KType,
    KValue,
    Matrix,
    SharedMemory,
)

__all__ = [
    "Binding",
    "Block",
    "For",
    "If",
    "Inst",
    "KType",
    "KValue",
    "Kernel",
    "KernelBuilder",
    "Loop",
    "Matrix",
    "SharedMemory",
]
