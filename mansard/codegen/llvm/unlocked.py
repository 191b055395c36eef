"""Calls of LLVM's optimiser and code generator without llvmlite's lock, so that threads compile in parallel.

llvmlite takes one lock around every call into LLVM. LLVM itself asks for less: that each context is used
by one thread at a time. `mansard.codegen.llvm.module` gives every module a context and a target machine
of its own, so these two calls go to the library directly; ctypes releases the interpreter lock.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

from mansard.errors import CodegenError


@lru_cache(maxsize=1)
def _library() -> Any:
    """A second handle of the library that llvmlite has loaded, with its signatures."""
    from llvmlite.binding import ffi

    library = ctypes.CDLL(ffi.lib._name)
    for name in ("LLVMPY_RunNewModulePassManager", "LLVMPY_TargetMachineEmitToMemory"):
        known, unlocked = getattr(ffi.lib, name), getattr(library, name)
        unlocked.argtypes, unlocked.restype = known.argtypes, known.restype
    library.LLVMPY_RunNewModulePassManager.restype = None
    return library


def optimise(module: Any, builder: Any) -> None:
    """Run the default pipeline of a pass builder on a module."""
    manager = builder.getModulePassManager()
    _library().LLVMPY_RunNewModulePassManager(manager, module, builder)


def emit_object(module: Any, machine: Any) -> bytes:
    """The module as an ELF object. Raises CodegenError with LLVM's message when it cannot be made."""
    from llvmlite.binding import ffi

    with ffi.OutputString() as message:
        buffer = _library().LLVMPY_TargetMachineEmitToMemory(machine, module, 1, message)
        if not buffer:
            raise CodegenError(f"LLVM cannot generate the code: {message}")
    try:
        start, size = ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(start, size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)
