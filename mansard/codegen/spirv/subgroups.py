"""Subgroups: their built-ins, reductions and scans."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mansard.codegen.kernel import Inst, KernelBuilder, KValue
from mansard.codegen.math import neutral
from mansard.codegen.spirv.arithmetic import result_type
from mansard.codegen.spirv.casts import normalized
from mansard.codegen.spirv.function import KernelEmitter
from mansard.codegen.spirv.words import CLUSTERED_REDUCE, INCLUSIVE_SCAN, REDUCE, SCOPE, Id, Operand
from mansard.dtypes import DType

SUBGROUP_BUILTINS = {
    "subgroup_id": "SubgroupId", "subgroup_count": "NumSubgroups",
    "subgroup_lane": "SubgroupLocalInvocationId", "subgroup_size": "SubgroupSize",
}  # fmt: skip


def emit_subgroup_builtin(f: KernelEmitter, inst: Inst) -> None:
    """subgroup_id, subgroup_count, subgroup_lane or subgroup_size."""
    value = f.subgroup_builtin(SUBGROUP_BUILTINS[inst.op])
    type_ = result_type(inst)
    f.bind(inst.result, f.op("OpUConvert", f.type(type_), value) if type_.dtype is DType.I64 else value)


def emit_subgroup_combine(f: KernelEmitter, inst: Inst) -> None:
    """subgroup_reduce or subgroup_scan."""
    if inst.attrs.get("stride", 1) > 1:
        _emit_strided(f, inst)
        return
    type_, arg, combiner = result_type(inst), f.id(inst.args[0]), inst.attrs["combiner"]
    f.module.capabilities |= {"GroupNonUniform", "GroupNonUniformArithmetic"}
    how, size = INCLUSIVE_SCAN if inst.op == "subgroup_scan" else REDUCE, list[Operand]()
    if "cluster" in inst.attrs:
        f.module.capabilities.add("GroupNonUniformClustered")
        how, size = CLUSTERED_REDUCE, [f.module.int_constant(inst.attrs["cluster"])]
    if type_.dtype is DType.I64:
        f.module.capabilities.add("SubgroupExtendedTypes")  # a feature of the device, not a capability
    value = _group(f, _group_op(combiner, type_.dtype), f.type(type_), how, arg, *size)
    if type_.dtype.is_float and combiner in ("min", "max") and not inst.attrs.get("loses_nan"):
        boolean = f.module.bool_type()
        unordered = f.op("OpFUnordNotEqual", boolean, arg, arg)
        somewhere = _group(f, "OpGroupNonUniformLogicalOr", boolean, how, unordered, *size)
        value = f.op("OpSelect", f.type(type_), somewhere, f.float_literal(math.nan, type_), value)
    f.bind(inst.result, normalized(f, value, type_))


def _emit_strided(f: KernelEmitter, inst: Inst) -> None:
    """A reduction for each remainder."""
    b, (value,), combiner, stride = f.expansion(), inst.args, inst.attrs["combiner"], inst.attrs["stride"]
    number, nothing = _number(b, stride), b.const(neutral(combiner, value.type.dtype), value.type.dtype)
    parts = [b.select(b.compare("eq", number, b.idx(n)), value, nothing) for n in range(stride)]
    loses_nan = inst.attrs.get("loses_nan", False)
    f.bind(inst.result, f.inline(b, _each(b, combiner, parts, loses_nan=loses_nan)))


def emit_reduce_each(f: KernelEmitter, inst: Inst) -> None:
    """A reduction of each operand, and the choice of one."""
    b = f.expansion()
    f.bind(inst.result, f.inline(b, _each(b, inst.attrs["combiner"], inst.args)))


def _each(b: KernelBuilder, combiner: str, values: Sequence[KValue], *, loses_nan: bool = False) -> KValue:
    """The reduction of the value with an invocation's number."""
    chosen, *others = (b.subgroup_reduce(combiner, value, loses_nan=loses_nan) for value in values)
    number = _number(b, len(values))
    for other, total in enumerate(others, 1):
        chosen = b.select(b.compare("eq", number, b.idx(other)), total, chosen)
    return chosen


def _number(b: KernelBuilder, count: int) -> KValue:
    """An invocation's place in its subgroup modulo ``count``."""
    return b.binary("and", b.subgroup_place("subgroup_lane"), b.idx(count - 1))


def _group(f: KernelEmitter, op: str, type_: Id, *operands: Operand) -> Id:
    return f.op(op, type_, f.module.int_constant(SCOPE["Subgroup"]), *operands)


def _group_op(combiner: str, dtype: DType) -> str:
    if combiner in ("and", "or"):
        return f"OpGroupNonUniform{'Logical' if dtype is DType.BOOL else 'Bitwise'}{combiner.capitalize()}"
    kind = "F" if dtype.is_float else "I"
    if combiner in ("min", "max") and not dtype.is_float:
        kind = "S" if dtype.is_signed else "U"
    return f"OpGroupNonUniform{kind}{combiner.capitalize()}"
