"""A kernel as PTX text."""

from __future__ import annotations

from mansard.codegen.kernel import Kernel
from mansard.codegen.kernel.verify import verify
from mansard.codegen.llvm.module import binding, optimized
from mansard.codegen.nvptx.function import PtxEmitter
from mansard.codegen.nvptx.target import HOPPER, TRIPLE, PtxTarget


def ptx(kernel: Kernel, target: PtxTarget = HOPPER) -> str:
    """The module of one kernel, which a driver compiles.

    Raises CodegenError for a kernel with instructions that PTX is not made of here.
    """
    return assembly(llvm_ir(kernel, target), target)


def assembly(module: str, target: PtxTarget) -> str:
    """The PTX that LLVM makes of a module in its own form."""
    triple = binding().Target.from_triple(TRIPLE)
    machine = triple.create_target_machine(cpu=target.cpu, features=target.isa, opt=3)
    return str(machine.emit_assembly(optimized(module, machine)))


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
