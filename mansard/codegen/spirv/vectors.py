"""Vectors: their lanes, one by one or combined."""

from __future__ import annotations

from mansard.codegen.kernel import Inst, KType
from mansard.codegen.spirv.arithmetic import binary, extreme, result_type
from mansard.codegen.spirv.function import KernelEmitter
from mansard.codegen.spirv.words import Id
from mansard.errors import CodegenError


def emit_splat(f: KernelEmitter, inst: Inst) -> None:
    """A scalar in every lane."""
    type_, arg = result_type(inst), f.id(inst.args[0])
    if type_.lanes == 1:
        f.bind(inst.result, arg)
        return
    f.uses_f16(type_)
    f.bind(inst.result, f.op("OpCompositeConstruct", f.type(type_), *[arg] * type_.lanes))


def emit_extract(f: KernelEmitter, inst: Inst) -> None:
    """One lane."""
    arg = inst.args[0]
    if arg.type.lanes == 1:
        f.bind(inst.result, f.id(arg))
        return
    f.uses_f16(arg.type)
    f.bind(inst.result, f.op("OpCompositeExtract", f.type(result_type(inst)), f.id(arg), inst.attrs["lane"]))


def emit_insert(f: KernelEmitter, inst: Inst) -> None:
    """The vector with one lane replaced."""
    vector, scalar = inst.args
    if vector.type.lanes == 1:
        f.bind(inst.result, f.id(scalar))
        return
    f.uses_f16(vector.type)
    operands = (f.id(scalar), f.id(vector), inst.attrs["lane"])
    f.bind(inst.result, f.op("OpCompositeInsert", f.type(vector.type), *operands))


def emit_shuffle(f: KernelEmitter, inst: Inst) -> None:
    """Lanes of two vectors."""
    a, b = inst.args
    if min(a.type.lanes, result_type(inst).lanes) == 1:
        raise CodegenError("shuffle takes and gives vectors")
    f.uses_f16(a.type)
    f.bind(
        inst.result,
        f.op("OpVectorShuffle", f.type(result_type(inst)), f.id(a), f.id(b), *inst.attrs["lanes"]),
    )


def emit_iota(f: KernelEmitter, inst: Inst) -> None:
    """0, 1, 2 … as literals."""
    type_ = result_type(inst)
    lanes = [f.int_literal(i, type_.with_lanes(1)) for i in range(type_.lanes)]
    if type_.lanes == 1:
        f.bind(inst.result, lanes[0])
        return
    f.bind(inst.result, f.module.declare("OpConstantComposite", f.type(type_), *lanes))


def _combine(f: KernelEmitter, combiner: str, type_: KType, left: Id, right: Id) -> Id:
    if combiner in ("min", "max"):
        return extreme(f, combiner, type_, left, right)
    return binary(f, combiner, type_, left, right)


def emit_reduce(f: KernelEmitter, inst: Inst) -> None:
    """All lanes combined, in pairs."""
    arg, scalar = inst.args[0], result_type(inst)
    if arg.type.lanes == 1:
        f.bind(inst.result, f.id(arg))
        return
    lanes = [f.op("OpCompositeExtract", f.type(scalar), f.id(arg), i) for i in range(arg.type.lanes)]
    while len(lanes) > 1:
        pairs = [lanes[i : i + 2] for i in range(0, len(lanes), 2)]
        lanes = [_combine(f, inst.attrs["combiner"], scalar, *p) if len(p) == 2 else p[0] for p in pairs]
    f.bind(inst.result, lanes[0])
