"""Checks a kernel: scoping here, instructions by `mansard.codegen.kernel.rules`."""

from __future__ import annotations

from collections.abc import Iterable

from mansard.codegen.kernel import matrix
from mansard.codegen.kernel.ir import Binding, Block, For, If, Inst, Kernel, KType, KValue, SharedMemory
from mansard.codegen.kernel.printer import print_inst
from mansard.codegen.kernel.rules import INSTRUCTIONS, RULES, InstCheck, is_scalar_int
from mansard.dtypes import DType

__all__ = ["INSTRUCTIONS", "verify"]


class _Verifier(InstCheck):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.scopes: list[set[int]] = [set()]
        self.defined: set[int] = set()

    def define(self, values: Iterable[KValue]) -> None:
        for value in values:
            self.require(value.id not in self.defined, f"{value} is defined twice")
            self.require(value.type.lanes >= 1, f"{value} has {value.type.lanes} lanes")
            self.defined.add(value.id)
            self.scopes[-1].add(value.id)

    def use(self, values: Iterable[KValue]) -> None:
        for value in values:
            known = any(value.id in scope for scope in self.scopes)
            self.require(known, f"{value} is used where it is not defined")

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
        self.scopes.append(set())
        self.define((node.index, *node.carried))
        self.block(node.body)
        self.where = f"for {node.index}"
        self.use(node.yields)
        self.scopes.pop()
        self.define(node.results)
        for what, group in (("carried", node.carried), ("yields", node.yields), ("results", node.results)):
            self.require([v.type for v in group] == expected, f"types of {what} differ from the inits")

    def branch(self, node: If) -> None:
        self.where = f"if {node.condition}"
        self.use((node.condition,))
        self.require(node.condition.type == KType(DType.BOOL), "the condition is not a scalar bool")
        for side in (node.then, node.otherwise):
            self.scopes.append(set())
            self.block(side)
            self.scopes.pop()

    def inst(self, inst: Inst) -> None:
        self.where = print_inst(inst)
        self.require(inst.op in RULES, f"unknown instruction {inst.op!r}")
        self.use(inst.args)
        count, has_result, rule = RULES[inst.op]
        self.require(
            len(inst.args) == count or (count < 0 < len(inst.args)),
            f"{inst.op} takes {count} arguments, not {len(inst.args)}",
        )
        self.require((inst.result is not None) == has_result, "result missing or not expected")
        if any(
            value.type.matrix is not None for value in (*inst.args, *((inst.result,) if inst.result else ()))
        ):
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
        self.scopes.append(set())
        self.define(inst.attrs["elements"])
        self.block(inst.attrs["body"])
        self.use((inst.attrs["value"],))
        self.scopes.pop()


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
