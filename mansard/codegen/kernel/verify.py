"""Checks a kernel: scoping here, instructions by `mansard.codegen.kernel.rules`."""

from __future__ import annotations

from collections.abc import Iterable

from mansard.codegen.kernel import matrix
from mansard.codegen.kernel.ir import Binding, Block, For, If, Inst, Kernel, KType, KValue, SharedMemory
from mansard.codegen.kernel.rules import INSTRUCTIONS, RULES, InstCheck, is_scalar_int
from mansard.dtypes import DType

__all__ = ["INSTRUCTIONS", "verify"]


class _Verifier(InstCheck):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.scopes: list[list[int]] = [[]]
        """What each open block has defined."""
        self.visible: set[int] = set()
        """What the open blocks have defined."""
        self.defined: set[int] = set()

    def define(self, values: Iterable[KValue]) -> None:
        for value in values:
            if value.id in self.defined:
                self.fail(f"{value} is defined twice")
            if value.type.lanes < 1:
                self.fail(f"{value} has {value.type.lanes} lanes")
            self.defined.add(value.id)
            self.visible.add(value.id)
            self.scopes[-1].append(value.id)

    def use(self, values: Iterable[KValue]) -> None:
        for value in values:
            if value.id not in self.visible:
                self.fail(f"{value} is used where it is not defined")

    def open(self) -> None:
        """Begin a block."""
        self.scopes.append([])

    def close(self) -> None:
        """End the last block begun: what it has defined is out of sight."""
        self.visible.difference_update(self.scopes.pop())

    def block(self, block: Block) -> None:
        for node in block.nodes:
            if isinstance(node, Inst):
                self.inst(node)
            elif isinstance(node, For):
                self.loop(node)
            else:
                self.branch(node)

    def loop(self, node: For) -> None:
        self.where = f"for {node.index}"
        bounds = (node.lower, node.upper, node.step)
        self.use((*bounds, *node.inits))
        types = {v.type for v in (*bounds, node.index)}
        self.require(len(types) == 1, "loop bounds, step and index differ in type")
        self.require(is_scalar_int(node.index.type), "the loop index is not a scalar int")
        expected = [v.type for v in node.inits]
        self.open()
        self.define((node.index, *node.carried))
        self.block(node.body)
        self.where = f"for {node.index}"
        self.use(node.yields)
        self.close()
        self.define(node.results)
        for what, group in (("carried", node.carried), ("yields", node.yields), ("results", node.results)):
            self.require([v.type for v in group] == expected, f"types of {what} differ from the inits")

    def branch(self, node: If) -> None:
        self.where = f"if {node.condition}"
        self.use((node.condition,))
        self.require(node.condition.type == KType(DType.BOOL), "the condition is not a scalar bool")
        for side in (node.then, node.otherwise):
            self.open()
            self.block(side)
            self.close()

    def inst(self, inst: Inst) -> None:
        self.where = inst
        if inst.op not in RULES:
            self.fail(f"unknown instruction {inst.op!r}")
        self.use(inst.args)
        count, has_result, rule = RULES[inst.op]
        if not (len(inst.args) == count or (count < 0 < len(inst.args))):
            self.fail(f"{inst.op} takes {count} arguments, not {len(inst.args)}")
        self.require((inst.result is not None) == has_result, "result missing or not expected")
        values = inst.args if inst.result is None else (*inst.args, inst.result)
        if any(value.type.matrix is not None for value in values):
            broken = matrix.broken_rule(inst)
            self.require(broken is None, broken or "")
            if "body" in inst.attrs:
                self.body(inst)
        else:
            rule(self, inst)
        if inst.result is not None:
            self.define((inst.result,))

    def body(self, inst: Inst) -> None:
        """The block an instruction runs for every element."""
        self.open()
        self.define(inst.attrs["elements"])
        self.block(inst.attrs["body"])
        self.use((inst.attrs["value"],))
        self.close()


def verify(kernel: Kernel) -> None:
    """Check SSA scoping, operand and result types, and loop-carried types.

    Raises:
        CodegenError: naming the kernel, the instruction and the rule it breaks.
    """
    verifier = _Verifier(kernel)
    verifier.require(kernel.index in (DType.I32, DType.I64), "the index type is not i32 or i64")
    memories: list[Binding | SharedMemory] = [*kernel.bindings, *kernel.shared]
    packed = [m for m in memories if m.dtype.bits < 8]
    verifier.require(not packed, "packed i4 and u4 memory is accessed as u8")
    verifier.block(kernel.body)
