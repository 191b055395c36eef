"""The rule of each instruction of the kernel IR."""

from __future__ import annotations

from collections.abc import Callable

from mansard.codegen.kernel import Inst, KType
from mansard.codegen.math import rounding
from mansard.codegen.math.narrow import code
from mansard.codegen.spirv import descriptors
from mansard.codegen.spirv.arithmetic import (
    FLOAT_COMPARE,
    ROUNDING,
    emit_abs,
    emit_arithmetic,
    emit_compare,
    emit_fma,
    emit_minmax,
    emit_neg,
    emit_not,
    emit_rem,
    emit_rounded,
    emit_select,
    emit_shr,
    result_type,
)
from mansard.codegen.spirv.casts import emit_bitcast, emit_cast, normalized
from mansard.codegen.spirv.function import KernelEmitter
from mansard.codegen.spirv.matrix import (
    emit_fill,
    emit_matrix_load,
    emit_matrix_multiply,
    emit_matrix_scale,
    emit_matrix_store,
)
from mansard.codegen.spirv.matrix_elements import emit_matrix_convert, emit_matrix_map, emit_matrix_reduce
from mansard.codegen.spirv.memory import emit_atomic, emit_barrier, emit_load, emit_store, emit_store_lane
from mansard.codegen.spirv.packed import emit_dot_bytes, emit_join_bytes, emit_load_words, emit_unpack
from mansard.codegen.spirv.subgroups import (
    SUBGROUP_BUILTINS,
    emit_reduce_each,
    emit_subgroup_builtin,
    emit_subgroup_combine,
)
from mansard.codegen.spirv.vectors import (
    emit_extract,
    emit_insert,
    emit_iota,
    emit_reduce,
    emit_shuffle,
    emit_splat,
)
from mansard.codegen.spirv.words import Id
from mansard.dtypes import DType
from mansard.errors import CodegenError

_Rule = Callable[[KernelEmitter, Inst], None]


def emit_inst(f: KernelEmitter, inst: Inst) -> None:
    """Emit one instruction into ``f``."""
    rule = _RULES.get(inst.op)
    if rule is None:
        raise CodegenError(f"kernel {f.kernel.name!r}: no SPIR-V for instruction {inst.op!r}")
    if inst.op in _BY_LANE and _is_wide(inst):
        _lane_by_lane(f, inst, rule)
    else:
        rule(f, inst)


def _is_wide(inst: Inst) -> bool:
    """Whether vectors of 64-bit integers take part."""
    values = [*inst.args, *([inst.result] if inst.result is not None else [])]
    return any(v.type.dtype in (DType.I64, DType.U64) and v.type.lanes > 1 for v in values)


def _lane_by_lane(f: KernelEmitter, inst: Inst, rule: _Rule) -> None:
    """An instruction on each lane by itself, and the vector of the results.

    NVIDIA's compiler (driver 580) gives every lane of such vectors the result of the last one.
    """
    type_, results = result_type(inst), []
    for lane in range(type_.lanes):
        args = tuple(f.scalar(arg, lane) for arg in inst.args)
        results.append(f.fresh(type_.with_lanes(1)))
        rule(f, Inst(inst.op, args, results[-1], inst.attrs))
    f.uses_f16(type_)
    f.bind(inst.result, f.op("OpCompositeConstruct", f.type(type_), *map(f.id, results)))
    if inst.result is not None and all(r.id in f.widened for r in results):
        short = f.type(KType(DType.I32, type_.lanes))
        held = (f.widened[r.id] for r in results)
        f.widened[inst.result.id] = f.op("OpCompositeConstruct", short, *held)


def _const(f: KernelEmitter, inst: Inst) -> None:
    type_, value = result_type(inst), inst.attrs["value"]
    if type_.matrix is not None:
        emit_fill(f, inst)
        return
    m, dtype = f.module, type_.dtype
    f.type(type_)
    if dtype is DType.BOOL:
        scalar = m.bool_constant(bool(value))
    elif dtype in (DType.F32, DType.F64):
        scalar = m.float_constant(rounding.rounded(float(value), dtype), dtype.bits)
    elif dtype is DType.F16:
        f.uses_f16(type_)
        scalar = m.half_constant(code(float(value), dtype))
    elif dtype.is_float:
        scalar = m.int_constant(code(float(value), dtype))
    else:
        scalar = m.int_constant(_wrapped(int(value), dtype), max(32, dtype.bits))
    f.bind(inst.result, m.splat(scalar, f.scalar_type(dtype), type_.lanes))
    if inst.result is not None:
        f.set_constant(inst.result, value)


def _wrapped(value: int, dtype: DType) -> int:
    """An integer reduced to the range of its type."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.is_signed and value >> (dtype.bits - 1) else value


def _from_word(f: KernelEmitter, word: Id, type_: KType) -> Id:
    if type_.dtype in (DType.I64, DType.U64):
        return word
    return normalized(f, f.op("OpUConvert", f.type(type_), word), type_)


def _param(f: KernelEmitter, inst: Inst) -> None:
    if f.descriptors:
        param = descriptors.param(f, inst.attrs["index"], result_type(inst).dtype)
        f.bind(inst.result, normalized(f, param, result_type(inst)))
        return
    word = f.word(len(f.kernel.bindings) + inst.attrs["index"])
    f.bind(inst.result, _from_word(f, word, result_type(inst)))


def _builtin(name: str) -> _Rule:
    def rule(f: KernelEmitter, inst: Inst) -> None:
        value = f.builtin(name, inst.attrs["axis"])
        type_ = result_type(inst)
        wide = type_.dtype is DType.I64
        f.bind(inst.result, f.op("OpUConvert", f.type(type_), value) if wide else value)

    return rule


_BY_LANE = frozenset(
    ("add", "sub", "mul", "div", "rem", "neg", "abs", "min", "max", "and", "or", "xor", "not", "shl", "shr")
) | {"eq", "ne", "lt", "le", "gt", "ge", "select", "cast"}
"""Instructions whose lanes do not see each other."""


_RULES: dict[str, _Rule] = {
    "const": _const,
    "param": _param,
    "workgroup_id": _builtin("WorkgroupId"),
    "local_id": _builtin("LocalInvocationId"),
    "dot_bytes": emit_dot_bytes,
    "join_bytes": emit_join_bytes,
    "load_words": emit_load_words,
    "unpack": emit_unpack,
    "load": emit_load,
    "store": emit_store,
    "atomic": emit_atomic,
    "store_lane": emit_store_lane,
    "barrier": emit_barrier,
    **dict.fromkeys(("add", "sub", "mul", "div", "and", "or", "xor", "shl"), emit_arithmetic),
    "shr": emit_shr,
    "rem": emit_rem,
    "neg": emit_neg,
    "abs": emit_abs,
    "min": emit_minmax,
    "max": emit_minmax,
    "fma": emit_fma,
    **dict.fromkeys(ROUNDING, emit_rounded),
    "not": emit_not,
    **dict.fromkeys(FLOAT_COMPARE, emit_compare),
    "select": emit_select,
    "cast": emit_cast,
    "bitcast": emit_bitcast,
    **dict.fromkeys(("splat", "early"), emit_splat),
    "extract": emit_extract,
    "insert": emit_insert,
    "shuffle": emit_shuffle,
    "iota": emit_iota,
    "reduce": emit_reduce,
    "matrix_load": emit_matrix_load,
    "matrix_store": emit_matrix_store,
    "matrix_multiply": emit_matrix_multiply,
    "matrix_scale": emit_matrix_scale,
    "matrix_map": emit_matrix_map,
    "matrix_reduce": emit_matrix_reduce,
    "matrix_convert": emit_matrix_convert,
    **dict.fromkeys(("subgroup_reduce", "subgroup_scan"), emit_subgroup_combine),
    "subgroup_reduce_each": emit_reduce_each,
    **dict.fromkeys(SUBGROUP_BUILTINS, emit_subgroup_builtin),
}
