"""A kernel as PTX text."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mansard.codegen.kernel import Kernel
from mansard.codegen.kernel.verify import verify
from mansard.codegen.llvm.unlocked import optimise
from mansard.codegen.nvptx.function import PtxEmitter
from mansard.codegen.nvptx.target import HOPPER, TRIPLE, PtxTarget
from mansard.errors import CodegenError


def ptx(kernel: Kernel, target: PtxTarget = HOPPER) -> str:
    """The module of one kernel, which a driver compiles.

    Raises CodegenError for a kernel with instructions that PTX is not made of here.
    """
    return str(_machine(target).emit_assembly(_optimised(llvm_ir(kernel, target), target)))


def llvm_ir(kernel: Kernel, target: PtxTarget = HOPPER) -> str:
    """The module before LLVM sees it."""
    verify(kernel)
    metadata = ["!0 = !{}"]
    emitter = PtxEmitter(kernel, target, metadata)
    function = emitter.emit()
    attributes = (
        f'attributes #0 = {{ nounwind "nvvm.maxntid"="{kernel.workgroup[0]}" "nvvm.minctasm"="1" '
        f'"target-cpu"="{target.cpu}" "target-features"="{target.isa}" }}'
    )
    parts = [
        f'target triple = "{TRIPLE}"',
        *emitter.globals.values(),
        function,
        *(emitter.intrinsics[name] for name in sorted(emitter.intrinsics)),
        attributes,
        "attributes #1 = { convergent nounwind }",
        *metadata,
    ]
    return "\n".join(parts) + "\n"


@lru_cache(maxsize=1)
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm


def _machine(target: PtxTarget) -> Any:
    llvm = _llvm()
    return llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=target.cpu, features=target.isa, opt=3)


def _optimised(ir: str, target: PtxTarget) -> Any:
    llvm = _llvm()
    try:
        module = llvm.parse_assembly(ir, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise CodegenError(f"LLVM rejects the emitted IR: {error}") from error
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    optimise(module, llvm.create_pass_builder(_machine(target), options))
    return module
