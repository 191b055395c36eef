"""Kernels to LLVM IR text, optimised, to an object, to a flat image."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from mansard.codegen.kernel import Kernel
from mansard.codegen.kernel.verify import verify
from mansard.codegen.llvm.function import FunctionEmitter
from mansard.codegen.llvm.target import CpuTarget
from mansard.codegen.llvm.unlocked import emit_object, optimise
from mansard.errors import CodegenError

_initialize_lock = threading.Lock()


def emit(kernels: Sequence[Kernel], target: CpuTarget) -> str:
    """One LLVM module that holds every kernel, unoptimised."""
    names = [k.name for k in kernels]
    if len(set(names)) != len(names):
        raise CodegenError(f"kernel names are not unique: {sorted(n for n in names if names.count(n) > 1)}")
    metadata = ["!0 = !{}"]
    intrinsics: dict[str, str] = {}
    functions = []
    for kernel in kernels:
        verify(kernel)
        emitter = FunctionEmitter(kernel, target, metadata)
        functions.append(emitter.emit())
        intrinsics.update(emitter.intrinsics)
    head = [f'target triple = "{target.triple}"', ""]
    tail = [f"attributes #0 = {{ {_attributes(target)} }}", "", *metadata]
    declarations = [intrinsics[name] for name in sorted(intrinsics)]
    return "\n\n".join(["\n".join(head), *functions, "\n".join(declarations), "\n".join(tail), ""])


def _attributes(target: CpuTarget) -> str:
    pairs = {"no-builtins": "", "target-cpu": target.llvm_cpu, "tune-cpu": target.tune}
    pairs["target-features"] = target.llvm_features
    if target.arch == "x86_64":
        pairs["prefer-vector-width"] = str(target.vector_bits)
        pairs["min-legal-vector-width"] = str(target.vector_bits)
    listed = [f'"{key}"' + (f'="{value}"' if value else "") for key, value in pairs.items()]
    return " ".join(["nounwind", *listed])


@lru_cache(maxsize=1)
def _initialize() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm


def binding() -> Any:
    """llvmlite's binding to LLVM, with all of its targets."""
    with _initialize_lock:
        return _initialize()


def _machine(target: CpuTarget) -> Any:
    llvm_target = binding().Target.from_triple(target.triple)
    return llvm_target.create_target_machine(
        cpu=target.llvm_cpu,
        features=target.llvm_features,
        opt=2,
        reloc="pic",
        codemodel=target.code_model,
        abiname=target.llvm_abi,
    )


def optimized(ir: str, machine: Any) -> Any:
    """The module of a text, optimised for a target machine.

    Raises:
        CodegenError: when LLVM rejects the text.
    """
    llvm = binding()
    try:
        module = llvm.parse_assembly(ir, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise CodegenError(f"LLVM rejects the emitted IR: {error}") from error
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = True
    options.slp_vectorization = True
    options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    optimise(module, builder)
    return module


def optimized_text(ir: str, target: CpuTarget) -> str:
    """The module after LLVM's optimiser."""
    return str(optimized(ir, _machine(target)))


def assembly(ir: str, target: CpuTarget) -> str:
    """The machine code in assembly."""
    machine = _machine(target)
    return str(machine.emit_assembly(optimized(ir, machine)))


def compile_object(ir: str, target: CpuTarget) -> bytes:
    """An ELF object of the module, position-independent.

    Raises:
        CodegenError: when LLVM rejects the module.
    """
    machine = _machine(target)
    return emit_object(optimized(ir, machine), machine)
