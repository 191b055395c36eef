"""One kernel as one LLVM function: control flow, the argument table and the loop over workgroups."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.codegen.kernel import (
    Binding,
    Block,
    For,
    If,
    Inst,
    Kernel,
    KernelBuilder,
    KType,
    KValue,
    SharedMemory,
)
from mansard.codegen.llvm import text
from mansard.codegen.llvm.target import LlvmTarget
from mansard.dtypes import DType
from mansard.errors import CodegenError

MAX_STACK_BYTES = 256 * 1024
"""Shared memory a kernel may hold on a worker's stack."""


class FunctionEmitter:
    """Emits the body of one kernel. Instruction rules append lines through it.

    ``metadata`` are the module's numbered metadata lines, shared by all functions.
    """

    def __init__(self, kernel: Kernel, target: LlvmTarget, metadata: list[str]) -> None:
        self.kernel = kernel
        self.target = target
        self.metadata = metadata
        self.intrinsics: dict[str, str] = {}
        self._entry: list[str] = []
        self._exit: list[str] = []
        self._around: dict[str, tuple[list[str], list[str]]] = {}
        self._lines: list[str] = []
        self._names: dict[int, str] = {}
        self._constants: dict[int, float | int | bool] = {}
        self._hoisted: dict[tuple[str, int, str], str] = {}
        self._count = 0
        self._label = "entry"
        self._scopes = self._alias_scopes()

    # Lines and names ------------------------------------------------------------------------
    def line(self, code: str) -> None:
        """Append one instruction without a result."""
        self._lines.append("  " + code)

    def temp(self, code: str) -> str:
        """Append one instruction and name its result."""
        name = self._fresh()
        self._lines.append(f"  {name} = {code}")
        return name

    def name(self, value: KValue) -> str:
        """The operand text of a value."""
        return self._names[value.id]

    def typed(self, value: KValue) -> str:
        """Type and operand text of a value."""
        return f"{text.type_name(value.type)} {self._names[value.id]}"

    def bind(self, value: KValue | None, name: str) -> None:
        """Set the operand text of a value."""
        if value is None:
            raise CodegenError(f"kernel {self.kernel.name!r}: an instruction has no result to define")
        self._names[value.id] = name

    def constant(self, value: KValue) -> float | int | bool | None:
        """The literal behind a value, if it is one."""
        return self._constants.get(value.id)

    def set_constant(self, value: KValue, literal: float | int | bool) -> None:
        """Remember that a value is a literal."""
        self._constants[value.id] = literal

    def declare(self, intrinsic: str, prototype: str) -> None:
        """Have the module declare an intrinsic."""
        self.intrinsics[intrinsic] = f"declare {prototype}"

    def call(self, result: str, intrinsic: str, args: list[str], flags: str = "") -> str:
        """Call an LLVM intrinsic, declared on first use; ``args`` are typed operands."""
        types = ", ".join(_type_of(a) for a in args)
        self.declare(intrinsic, f"{result} @{intrinsic}({types})")
        code = f"call {flags}{result} @{intrinsic}({', '.join(args)})"
        if result == "void":
            self.line(code)
            return ""
        return self.temp(code)

    def around_workgroups(self, key: str, before: Sequence[str], after: Sequence[str]) -> None:
        """Emit code before the first workgroup of a call and after the last one, once for each key."""
        code = [*before], [*after]
        if self._around.setdefault(key, code) is code:
            self._entry += [f"  {line}" for line in before]
            self._exit += [f"  {line}" for line in after]
        elif self._around[key] != code:
            raise CodegenError(f"kernel {self.kernel.name!r}: two kinds of {key}")

    def expansion(self) -> KernelBuilder:
        """A builder whose instructions this emitter can take in place, by `inline`."""
        # Ids far from the kernel's own.
        first = -(1 << 40) + (self._count << 16)
        builder = KernelBuilder(self.kernel.name, (), 0, index=self.kernel.index, first_id=first)
        self._count += 1
        return builder

    def inline(self, builder: KernelBuilder, result: KValue) -> str:
        """Emit what an expansion built here, and name its result."""
        self._block(builder.build().body)
        return self.name(result)

    def _fresh(self) -> str:
        self._count += 1
        return f"%t{self._count}"

    def _start(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._label = label

    # The argument table ---------------------------------------------------------------------
    def _alias_scopes(self) -> dict[int, str]:
        """Per binding: metadata that its accesses alias no other binding's."""
        domain = self._node(f'distinct !{{!"{self.kernel.name}"}}')
        scopes = [self._node(f'distinct !{{!"b{b.index}", {domain}}}') for b in self.kernel.bindings]
        metadata = {}
        for i, scope in enumerate(scopes):
            own_scope = self._node(f"!{{{scope}}}")
            others = ", ".join(s for j, s in enumerate(scopes) if j != i)
            no = f", !noalias {self._node(f'!{{{others}}}')}" if others else ""
            metadata[i] = f", !alias.scope {own_scope}{no}"
        return metadata

    def _node(self, content: str) -> str:
        self.metadata.append(f"!{len(self.metadata)} = {content}")
        return f"!{len(self.metadata) - 1}"

    def _hoist(self, key: tuple[str, int, str], code: str) -> str:
        if key not in self._hoisted:
            name = f"%{key[0]}{key[1]}.{len(self._hoisted)}"
            self._entry.append(f"  {name} = {code}")
            self._hoisted[key] = name
        return self._hoisted[key]

    def _word(self, index: int, type_: str) -> str:
        address = self._hoist(("word", index, ""), f"getelementptr inbounds i64, ptr %table, i64 {index}")
        return self._hoist(
            ("load", index, type_), f"load {type_}, ptr {address}, align 8, !invariant.load !0"
        )

    def param(self, index: int, dtype: DType) -> str:
        """A param of the table, loaded once per call."""
        word = self._word(len(self.kernel.bindings) + index, "i64")
        target = text.scalar_type(dtype)
        return (
            word
            if target == "i64"
            else self._hoist(("param", index, target), f"trunc i64 {word} to {target}")
        )

    def pointer(self, memory: Binding | SharedMemory) -> tuple[str, str]:
        """Base pointer of a memory and the metadata its accesses carry."""
        if isinstance(memory, Binding):
            return self._word(memory.index, "ptr"), self._scopes[memory.index]
        type_ = text.memory_type(KType(memory.dtype))
        return self._hoist(("shared", memory.index, ""), f"alloca [{memory.size} x {type_}], align 64"), ""

    def workgroup_id(self, axis: int, dtype: DType) -> str:
        """A coordinate of the current workgroup."""
        name = f"%wg.{'xyz'[axis]}"
        target = text.scalar_type(dtype)
        return name if target == "i64" else self.temp(f"trunc i64 {name} to {target}")

    # Structure ------------------------------------------------------------------------------
    def emit(self) -> str:
        """The whole function definition."""
        from mansard.codegen.llvm.instructions import emit_inst

        self._emit_inst = emit_inst
        self._check()
        self._start("wg.head")
        self.line("%wg = phi i64 [ %begin, %entry ], [ %wg.next, %wg.latch ]")
        self.line("%wg.more = icmp slt i64 %wg, %end")
        self.line("br i1 %wg.more, label %wg.body, label %wg.exit")
        self._start("wg.body")
        self._coordinates()
        self._block(self.kernel.body)
        self.line("br label %wg.latch")
        self._start("wg.latch")
        self.line("%wg.next = add nuw nsw i64 %wg, 1")
        self.line("br label %wg.head")
        self._start("wg.exit")
        self._lines += [*self._exit, "  ret void"]
        arguments = "ptr noalias readonly %table, ptr noalias readonly %grid, i64 %begin, i64 %end"
        head = f'define void @"{self.kernel.name}"({arguments}) #0 {{'
        entry = ["entry:", *self._entry, "  br label %wg.head"]
        return "\n".join([head, *entry, *self._lines, "}"])

    def _check(self) -> None:
        if self.kernel.workgroup != (1, 1, 1):
            raise CodegenError(
                f"kernel {self.kernel.name!r}: a CPU workgroup is (1, 1, 1), not {self.kernel.workgroup}"
            )
        if any(s.lanes > 1 for s in self.kernel.shared):
            raise CodegenError(f"kernel {self.kernel.name!r}: memories of vectors are for GPUs")
        stack = sum(s.size * s.dtype.itemsize for s in self.kernel.shared)
        if stack > MAX_STACK_BYTES:
            raise CodegenError(
                f"kernel {self.kernel.name!r}: {stack} bytes of shared memory; a CPU allows {MAX_STACK_BYTES}"
            )

    def _coordinates(self) -> None:
        """x, y and z of the workgroup; no division while the kernel only looks at x."""
        axes = {
            n.attrs["axis"] for n in self.kernel.body.walk() if isinstance(n, Inst) and n.op == "workgroup_id"
        }
        if axes <= {0}:
            self.line("%wg.x = add i64 %wg, 0")
            return
        for axis in (0, 1):
            address = f"getelementptr inbounds i32, ptr %grid, i64 {axis}"
            size = self._hoist(("gridp", axis, ""), address)
            size = self._hoist(("grid", axis, "i32"), f"load i32, ptr {size}, align 4, !invariant.load !0")
            self._hoist(("grid", axis, "i64"), f"zext i32 {size} to i64")
        x, y = (self._hoisted["grid", axis, "i64"] for axis in (0, 1))
        self.line(f"%wg.x = urem i64 %wg, {x}")
        self.line(f"%wg.yz = udiv i64 %wg, {x}")
        self.line(f"%wg.y = urem i64 %wg.yz, {y}")
        self.line(f"%wg.z = udiv i64 %wg.yz, {y}")

    def _block(self, block: Block) -> None:
        for node in block.nodes:
            if isinstance(node, Inst):
                self._emit_inst(self, node)
            elif isinstance(node, For):
                self._for(node)
            else:
                self._if(node)

    def _for(self, node: For) -> None:
        self._count += 1
        tag = f"for{self._count}"
        before = self._label
        self.line(f"br label %{tag}.head")
        self._start(f"{tag}.head")
        phis = len(self._lines)
        for value in (node.index, *node.carried):
            self.bind(value, self._fresh())
            self._lines.append("")  # filled in below, when the values of the next iteration have names
        more = self.temp(f"icmp slt {self.typed(node.index)}, {self.name(node.upper)}")
        self.line(f"br i1 {more}, label %{tag}.body, label %{tag}.exit")
        self._start(f"{tag}.body")
        self._block(node.body)
        # The contract of For: index + step does not pass the index type's maximum.
        following = self.temp(f"add nsw {self.typed(node.index)}, {self.name(node.step)}")
        latch = self._label
        self.line(f"br label %{tag}.head{self._loop_hints(node)}")
        nexts = (following, *(self.name(v) for v in node.yields))
        firsts = (node.lower, *node.inits)
        for i, (value, first, after) in enumerate(
            zip((node.index, *node.carried), firsts, nexts, strict=True)
        ):
            incoming = f"[ {self.name(first)}, %{before} ], [ {after}, %{latch} ]"
            self._lines[phis + i] = f"  {self.name(value)} = phi {text.type_name(value.type)} {incoming}"
        self._start(f"{tag}.exit")
        for result, carried in zip(node.results, node.carried, strict=True):
            self.bind(result, self.name(carried))

    def _loop_hints(self, node: For) -> str:
        if node.unroll <= 1:
            return ""
        count = self._node(f'!{{!"llvm.loop.unroll.count", i32 {node.unroll}}}')
        number = len(self.metadata)
        return f", !llvm.loop {self._node(f'distinct !{{!{number}, {count}}}')}"

    def _if(self, node: If) -> None:
        self._count += 1
        tag = f"if{self._count}"
        self.line(f"br i1 {self.name(node.condition)}, label %{tag}.then, label %{tag}.else")
        for side, block in (("then", node.then), ("else", node.otherwise)):
            self._start(f"{tag}.{side}")
            self._block(block)
            self.line(f"br label %{tag}.end")
        self._start(f"{tag}.end")


def _type_of(operand: str) -> str:
    """The type part of a typed operand such as ``<8 x float> %t1`` or ``i1 false``."""
    if operand.startswith("<"):
        return operand[: operand.index(">") + 1]
    return operand.split(" ", 1)[0]
