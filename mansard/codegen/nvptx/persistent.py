"""Bodies of kernels: PTX statements that a persistent kernel runs for the workgroups of one dispatch.

The driver puts them into a loop over dispatches (`mansard.drivers.vulkan.shaders.persistent` says which
registers they read). A body runs some workgroups of a dispatch one after another. It is taken from the
function that LLVM generates: a call would need a stack, with which a launch takes 0.2 ms longer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mansard.codegen.kernel import Binding, Kernel, SharedMemory
from mansard.codegen.kernel.verify import verify
from mansard.codegen.nvptx.exchanges import ExchangeEmitter
from mansard.codegen.nvptx.module import assembly
from mansard.codegen.nvptx.target import HOPPER, TRIPLE, PtxTarget
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.hal.exchanges import NO_EXCHANGE, Exchange
from mansard.hal.weight_streams import WeightStream

REGISTERS = {
    "words": "ptr addrspace(3)",
    "first": "i32",
    "groups": "i32",
    "stride": "i32",
    "thread": "i32",
    "memory": "ptr addrspace(3)",
    "barrier": "i32",
    "polls": "i32",
}
"""The registers that a body reads, and their types."""
END = "JOIN"
"""The label at which a body ends."""
WAIT, NEXT = "stream.wait", "stream.next"
"""Marks that the driver replaces: ``WAIT register;`` by waiting for the subgroup's next slot, whose address
the register is set to, ``NEXT;`` by the request of a later part (`mansard.codegen.kernel.weight_streams`)."""
ALIGNMENT = 128
_NAME = "mansard_body"
_FUNCTION = re.compile(rf"\.func {_NAME}\(.*?\)\s*(\{{.*\}})\s*\Z", re.DOTALL)
_LOAD = re.compile(rf"ld\.param\.(b32|b64)(\s+\S+),\s*\[{_NAME}_param_(\d+)\];")
_COMMENT = re.compile(r"[ \t]*//[^\n]*")
_VARIABLE = re.compile(r"^\s*\.(global|const|extern|shared|local|visible \.global)\b", re.MULTILINE)


@dataclass(frozen=True)
class Body:
    """The statements of a kernel, the invocations of a workgroup, and its shared memory in bytes."""

    text: str
    threads: int
    shared: int
    stream: WeightStream | None = None
    """The weights that it reads from a stream."""
    exchange: Exchange = NO_EXCHANGE
    """The values that it may pass on or wait for."""
    lookups: frozenset[int] = frozenset()
    """The bindings that are tables, of which it reads few elements."""


class BodyEmitter(ExchangeEmitter):
    """Emits a kernel as a function."""

    def __init__(self, kernel: Kernel, target: PtxTarget, metadata: list[str]) -> None:
        super().__init__(kernel, target, metadata)
        self.offsets: dict[int, int] = {}
        """Where each shared memory begins in the workgroup's."""
        self.shared_bytes = 0
        for memory in kernel.shared:
            self.offsets[memory.index] = self.shared_bytes
            size = memory.size * memory.lanes * max(1, memory.dtype.bits // 8)
            self.shared_bytes += -(-size // ALIGNMENT) * ALIGNMENT

    def emit(self) -> str:
        """The function's definition."""
        self._prepare()
        self._start("head")
        self.line("%group = phi i32 [ %first, %entry ], [ %next, %tail ]")
        self.line("%more = icmp slt i32 %group, %groups")
        self.line("br i1 %more, label %start, label %done")
        self._start("start")
        self._block(self.kernel.body)
        self.line("br label %tail")
        self._start("tail")
        if self.kernel.shared:
            self.workgroup_barrier()  # until the next workgroup may write to its memory
        self.line("%next = add nsw i32 %group, %stride")
        self.line("br label %head")
        self._start("done")
        self.line("ret void")
        arguments = ", ".join(f"{type_} %{name}" for name, type_ in REGISTERS.items())
        head = f"define void @{_NAME}({arguments}) #0 {{"
        return "\n".join([head, "entry:", *self._entry, "  br label %head", *self._lines, "}"])

    def shared(self, memory: SharedMemory) -> str:
        """Its address."""
        place = f"getelementptr inbounds i8, ptr addrspace(3) %memory, i64 {self.offsets[memory.index]}"
        return self._hoist(("shared", memory.index, ""), place)

    def pointer(self, memory: Binding | SharedMemory) -> tuple[str, str]:
        """As for a kernel, but that shared memory is an argument."""
        if not isinstance(memory, SharedMemory):
            return super().pointer(memory)
        place = self.shared(memory)
        return self._hoist(
            ("generic", memory.index, ""), f"addrspacecast ptr addrspace(3) {place} to ptr"
        ), ""

    def workgroups(self, dtype: DType) -> str:
        """An argument."""
        return self.widened("%groups", dtype)

    def stream_wait(self) -> str:
        """Code of the driver."""
        return self.temp(f'call i32 asm sideeffect "{WAIT} $0;", "=r,~{{memory}}"() #1')

    def stream_next(self) -> None:
        """Code of the driver."""
        self.line(f'call void asm sideeffect "{NEXT};", "~{{memory}}"() #1')

    def special(self, register: str, dtype: DType) -> str:
        """Workgroups and invocations are numbered in one dimension, by arguments."""
        names = {"tid.x": "%thread", "ctaid.x": "%group"}
        return self.widened(names.get(register, "0"), dtype)

    def workgroup_barrier(self) -> None:
        """Wait for all invocations of the workgroup, which may be a part of a block."""
        code = f'call void asm sideeffect "bar.sync $0, {self.kernel.workgroup[0]};", "r,~{{memory}}"'
        self.line(f"{code}(i32 %barrier) #1")

    def _word(self, index: int, type_: str) -> str:
        place = self._hoist(
            ("word", index, ""), f"getelementptr inbounds i64, ptr addrspace(3) %words, i64 {index}"
        )
        return self._hoist(("load", index, type_), f"load {type_}, ptr addrspace(3) {place}, align 8")


def body(kernel: Kernel, target: PtxTarget = HOPPER) -> Body:
    """The body of a kernel, or of its variant that reads a weight stream, where it has one.

    Raises CodegenError for instructions that have no PTX here.
    """
    stream = None
    if (streamed := kernel.streamed) is not None:
        kernel, stream = streamed.kernel, streamed.stream
    verify(kernel)
    metadata = ["!0 = !{}"]
    emitter = BodyEmitter(kernel, target, metadata)
    function = emitter.emit()
    parts = [
        f'target triple = "{TRIPLE}"',
        function,
        *(emitter.intrinsics[name] for name in sorted(emitter.intrinsics)),
        f'attributes #0 = {{ nounwind "target-cpu"="{target.cpu}" "target-features"="{target.isa}" }}',
        "attributes #1 = { convergent nounwind }",
        *metadata,
    ]
    code = assembly("\n".join(parts) + "\n", target)
    streamed_bindings = {operand.binding for operand in stream.operands} if stream is not None else set()
    exchange = Exchange(emitter.exchanged - streamed_bindings, kernel.exchange.overwrites)
    return Body(
        _block(kernel.name, code), kernel.workgroup[0], emitter.shared_bytes, stream, exchange, kernel.lookups
    )


def _block(name: str, code: str) -> str:
    """The body of a module's one function, with registers for its parameters, which ends at a label."""
    function = _FUNCTION.search(_COMMENT.sub("", code))
    if function is None or _VARIABLE.search(code):
        raise CodegenError(f"kernel {name!r}: its PTX is more than a function without variables")
    names = list(REGISTERS)
    block = _LOAD.sub(lambda m: f"mov.{m[1]}{m[2]}, {names[int(m[3])]};", function[1])
    block = re.sub(r"\bret;", f"bra {END};", block)
    if _NAME in block:
        raise CodegenError(f"kernel {name!r}: its PTX takes a parameter in another way than by a load")
    return block + "\n"
