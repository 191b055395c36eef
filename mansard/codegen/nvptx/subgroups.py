"""Reductions over a subgroup as shuffles, and which branches all invocations of a subgroup take together.

SPIR-V's instructions reduce over the active invocations of a subgroup, shuffles read those of all: so PTX is
made of reductions only where all invocations reach them.
"""

from __future__ import annotations

from mansard.codegen.kernel import Block, For, If, Inst, Kernel, KType, KValue
from mansard.codegen.kernel.quad_products import QUAD_OPS
from mansard.codegen.kernel.weight_streams import STREAM_OPS
from mansard.codegen.llvm import text
from mansard.codegen.llvm.function import FunctionEmitter
from mansard.codegen.llvm.instructions import combine, result_type
from mansard.codegen.nvptx.target import SUBGROUP
from mansard.dtypes import DType
from mansard.errors import CodegenError

_SHUFFLE = "llvm.nvvm.shfl.sync.bfly.i32"
_REDUCE = "llvm.nvvm.redux.sync."
"""Reductions of 32-bit integers in one instruction (PTX ISA, redux.sync)."""
_OPS = STREAM_OPS | QUAD_OPS | {"subgroup_reduce", "subgroup_reduce_each", "subgroup_scan"}
_VARYING = frozenset(
    {
        *("local_id", "subgroup_lane", "subgroup_reduce_each", "subgroup_scan"),
        *("atomic", "stream_load", "quad_products"),
    }
)
_UNIFORM = frozenset({"subgroup_reduce"})
"""But for those of a part of the subgroup."""


def emit_reduce(f: FunctionEmitter, inst: Inst) -> None:
    """One instruction for integers of 32 bits, and for extremes of f32 that may lose NaN; otherwise a
    butterfly of shuffles, which keeps NaN."""
    type_, combiner = result_type(inst), inst.attrs["combiner"]
    name, least = f.name(inst.args[0]), inst.attrs.get("stride", 1)
    whole = least == 1 and "cluster" not in inst.attrs
    if whole and type_.dtype is DType.I32 and combiner in ("add", "min", "max"):
        f.bind(inst.result, _reduced(f, combiner, name))
        return
    if whole and type_.dtype is DType.F32 and combiner in ("min", "max") and inst.attrs.get("loses_nan"):
        number = _ordered(f, f.temp(f"bitcast float {name} to i32"))
        number = _ordered(f, _reduced(f, combiner, number))
        f.bind(inst.result, f.temp(f"bitcast i32 {number} to float"))
        return
    step = inst.attrs.get("cluster", SUBGROUP) // 2
    while step >= least:
        name = combine(f, combiner, type_, name, _shuffled(f, type_, name, step))
        step //= 2
    f.bind(inst.result, name)


def _reduced(f: FunctionEmitter, combiner: str, name: str) -> str:
    return f.call("i32", f"{_REDUCE}{combiner}", [f"i32 {name}", "i32 -1"])


def _ordered(f: FunctionEmitter, bits: str) -> str:
    """The bits of a float as a signed integer of the same order, or back."""
    sign = f.temp(f"ashr i32 {bits}, 31")
    return f.temp(f"xor i32 {bits}, {f.temp(f'and i32 {sign}, {0x7FFFFFFF}')}")


def emit_reduce_each(f: FunctionEmitter, inst: Inst, thread: str) -> None:
    """A butterfly whose steps halve the values: an invocation keeps those that have its number's bit, and
    gives away the others. ``thread``: the invocation's number in the workgroup, an i32."""
    type_, combiner = result_type(inst), inst.attrs["combiner"]
    scalar, names = text.type_name(type_), [f.name(arg) for arg in inst.args]
    step = 1
    while step < SUBGROUP:
        if len(names) == 1:
            names = [combine(f, combiner, type_, names[0], _shuffled(f, type_, names[0], step))]
        else:
            bit = f.temp(f"and i32 {thread}, {step}")
            upper = f.temp(f"icmp ne i32 {bit}, 0")
            both = []
            for low, high in zip(names[::2], names[1::2], strict=True):
                kept = f.temp(f"select i1 {upper}, {scalar} {high}, {scalar} {low}")
                given = f.temp(f"select i1 {upper}, {scalar} {low}, {scalar} {high}")
                both.append(combine(f, combiner, type_, kept, _shuffled(f, type_, given, step)))
            names = both
        step *= 2
    f.bind(inst.result, names[0])


def _shuffled(f: FunctionEmitter, type_: KType, name: str, step: int) -> str:
    """The value of the invocation whose number differs in one bit."""
    scalar = text.type_name(type_)
    bits = 1 if type_.dtype is DType.BOOL else type_.dtype.bits
    integer = f"i{bits}"
    number = name if scalar == integer else f.temp(f"bitcast {scalar} {name} to {integer}")
    if bits == 64:
        vector = f.temp(f"bitcast i64 {number} to <2 x i32>")
        halves = [_shuffle(f, f.temp(f"extractelement <2 x i32> {vector}, i64 {i}"), step) for i in (0, 1)]
        whole = f.temp(f"insertelement <2 x i32> poison, i32 {halves[0]}, i64 0")
        whole = f.temp(f"insertelement <2 x i32> {whole}, i32 {halves[1]}, i64 1")
        number = f.temp(f"bitcast <2 x i32> {whole} to i64")
    elif bits == 32:
        number = _shuffle(f, number, step)
    else:
        wide = _shuffle(f, f.temp(f"zext {integer} {number} to i32"), step)
        number = f.temp(f"trunc i32 {wide} to {integer}")
    return number if scalar == integer else f.temp(f"bitcast {integer} {number} to {scalar}")


def _shuffle(f: FunctionEmitter, word: str, step: int) -> str:
    return f.call("i32", _SHUFFLE, ["i32 -1", f"i32 {word}", f"i32 {step}", f"i32 {SUBGROUP - 1}"])


def check_reached_by_all(kernel: Kernel) -> None:
    """Raise CodegenError where a reduction or a scan may be reached by a part of a subgroup."""
    if kernel.body.uses(_OPS):
        _Uniformity(kernel).block(kernel.body)


class _Uniformity:
    """Which values are the same in all invocations of a subgroup; those that may not be are ``varying``."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.varying: set[int] = set()
        self.numbers: set[int] = set()
        """The invocation's number in a workgroup of one dimension: divided by a subgroup's size or a multiple
        it does not vary."""
        self.constants: dict[int, int] = {}

    def _varies(self, *values: KValue) -> bool:
        return any(value.id in self.varying for value in values)

    def block(self, block: Block) -> None:
        for node in block.nodes:
            if isinstance(node, Inst):
                self._inst(node)
            elif isinstance(node, For):
                self._for(node)
            else:
                self._if(node)

    def _inst(self, inst: Inst) -> None:
        if inst.result is None:
            return
        if inst.op == "const" and isinstance(inst.attrs["value"], int):
            self.constants[inst.result.id] = inst.attrs["value"]
        if inst.op == "local_id" and inst.attrs["axis"] == 0:
            self.numbers.add(inst.result.id)
        if inst.op in ("div", "shr") and inst.args[0].id in self.numbers:
            amount = self.constants.get(inst.args[1].id)
            divisor = None if amount is None else amount if inst.op == "div" else 1 << amount
            if divisor is not None and divisor > 0 and divisor % SUBGROUP == 0:
                return
        uniform = inst.op in _UNIFORM and not {"cluster", "stride"} & inst.attrs.keys()
        if inst.op in _VARYING or (not uniform and self._varies(*inst.args)):
            self.varying.add(inst.result.id)

    def _for(self, node: For) -> None:
        bounds = (node.lower, node.upper, node.step)
        if self._varies(*bounds):
            self._refuse(node.body)
            self.varying.add(node.index.id)
        uniform_before = None
        while uniform_before != len(self.varying):
            uniform_before = len(self.varying)
            for carried, init, after in zip(node.carried, node.inits, node.yields, strict=True):
                if self._varies(*bounds, init, after):
                    self.varying.add(carried.id)
            self.block(node.body)
        for result, carried in zip(node.results, node.carried, strict=True):
            if self._varies(carried):
                self.varying.add(result.id)

    def _if(self, node: If) -> None:
        if self._varies(node.condition):
            self._refuse(node.then)
            self._refuse(node.otherwise)
        self.block(node.then)
        self.block(node.otherwise)

    def _refuse(self, block: Block) -> None:
        if block.uses(_OPS):
            raise CodegenError(
                f"kernel {self.kernel.name!r}: no PTX for reductions or streams in part of a subgroup"
            )
