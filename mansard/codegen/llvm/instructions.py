"""One rule per instruction of the kernel IR."""

from __future__ import annotations

import math
from collections.abc import Callable

from mansard.codegen.kernel import Inst, KType
from mansard.codegen.llvm import text
from mansard.codegen.llvm.casts import emit_cast
from mansard.codegen.llvm.dots import emit_dot
from mansard.codegen.llvm.float12 import emit_float12
from mansard.codegen.llvm.function import FunctionEmitter
from mansard.codegen.llvm.memory import emit_atomic, emit_load, emit_prefetch, emit_store
from mansard.codegen.llvm.nibbles import emit_nibble_pairs, emit_nibbles
from mansard.codegen.llvm.round_bytes import emit_round_bytes
from mansard.codegen.llvm.tiles import emit_tile_products
from mansard.codegen.math import rounding
from mansard.dtypes import DType
from mansard.errors import CodegenError

_Rule = Callable[[FunctionEmitter, Inst], None]

# Fusing a product into a sum is allowed everywhere but where the kernel says ``exact``.
_CONTRACT = "contract "

_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor", "shl": "shl"}
_FLOAT_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_ROUNDING = {"floor": "floor", "ceil": "ceil", "round": "roundeven", "trunc": "trunc"}
_EXPANDED_ROUNDING = {
    "floor": rounding.floor,
    "ceil": rounding.ceil,
    "round": rounding.round_even,
    "trunc": rounding.trunc,
}


def emit_inst(f: FunctionEmitter, inst: Inst) -> None:
    """Emit one instruction into ``f``."""
    rule = _RULES.get(inst.op)
    if rule is None:
        raise CodegenError(f"kernel {f.kernel.name!r}: no CPU code for instruction {inst.op!r}")
    rule(f, inst)


def result_type(inst: Inst) -> KType:
    """The type of an instruction's result; raises CodegenError where there is none."""
    if inst.result is None:
        raise CodegenError(f"instruction {inst.op!r} has no result")
    return inst.result.type


def _suffix(type_: KType) -> str:
    """The overload suffix of an intrinsic: ``f32`` or ``v8f32``."""
    scalar = text.scalar_type(type_.dtype)
    name = {"float": "f32", "double": "f64"}.get(scalar, scalar)
    return name if type_.lanes == 1 else f"v{type_.lanes}{name}"


def _const(f: FunctionEmitter, inst: Inst) -> None:
    type_, value = result_type(inst), inst.attrs["value"]
    f.bind(inst.result, text.literal(value, type_))
    if inst.result is not None:
        f.set_constant(inst.result, value)


def _param(f: FunctionEmitter, inst: Inst) -> None:
    f.bind(inst.result, f.param(inst.attrs["index"], result_type(inst).dtype))


def _workgroup_id(f: FunctionEmitter, inst: Inst) -> None:
    f.bind(inst.result, f.workgroup_id(inst.attrs["axis"], result_type(inst).dtype))


def _local_id(f: FunctionEmitter, inst: Inst) -> None:
    f.bind(inst.result, "0")


def _arithmetic(f: FunctionEmitter, inst: Inst) -> None:
    type_ = result_type(inst)
    left, right = (f.name(a) for a in inst.args)
    if type_.dtype.is_float:
        flags = "" if inst.attrs.get("exact") or inst.op == "div" else _CONTRACT
        code = f"{_FLOAT_BINARY[inst.op]} {flags}"
    elif inst.op == "div":
        code = "sdiv " if type_.dtype.is_signed else "udiv "
    else:
        code = f"{_INT_BINARY[inst.op]} "
    f.bind(inst.result, f.temp(f"{code}{text.type_name(type_)} {left}, {right}"))


def _shr(f: FunctionEmitter, inst: Inst) -> None:
    type_ = result_type(inst)
    code = "ashr" if type_.dtype.is_signed else "lshr"
    left, right = (f.name(a) for a in inst.args)
    f.bind(inst.result, f.temp(f"{code} {text.type_name(type_)} {left}, {right}"))


def _rem(f: FunctionEmitter, inst: Inst) -> None:
    type_ = result_type(inst)
    left, right = inst.args
    if type_.dtype.is_float:
        builder = f.expansion()
        f.bind(inst.result, f.inline(builder, rounding.fmod(builder, left, right)))
        return
    code = "srem" if type_.dtype.is_signed else "urem"
    f.bind(inst.result, f.temp(f"{code} {f.typed(left)}, {f.name(right)}"))


def _neg(f: FunctionEmitter, inst: Inst) -> None:
    arg = inst.args[0]
    if result_type(inst).dtype.is_float:
        f.bind(inst.result, f.temp(f"fneg {f.typed(arg)}"))
    else:
        zero = text.literal(0, arg.type)
        f.bind(inst.result, f.temp(f"sub {text.type_name(arg.type)} {zero}, {f.name(arg)}"))


def _abs(f: FunctionEmitter, inst: Inst) -> None:
    type_, arg = result_type(inst), inst.args[0]
    if type_.dtype.is_float:
        name = f.call(text.type_name(type_), f"llvm.fabs.{_suffix(type_)}", [f.typed(arg)])
    else:
        name = f.call(text.type_name(type_), f"llvm.abs.{_suffix(type_)}", [f.typed(arg), "i1 false"])
    f.bind(inst.result, name)


def _pick(f: FunctionEmitter, op: str, type_: KType, names: tuple[str, str], numeric: bool = False) -> str:
    """min or max of two named operands; ``numeric`` says the left one is not NaN, or may lose it."""
    left, right = names
    name = text.type_name(type_)
    if not type_.dtype.is_float:
        sign = "s" if type_.dtype.is_signed else "u"
        return f.call(name, f"llvm.{sign}{op}.{_suffix(type_)}", [f"{name} {left}", f"{name} {right}"])
    if f.target.has_maximum and type_.dtype is DType.F32:
        args = [f"{name} {left}", f"{name} {right}"]
        return f.call(name, f"llvm.{op}imum.{_suffix(type_)}", args)
    # One machine instruction: it gives its second operand when either is NaN, so only a NaN on the
    # left needs handling.
    test = f.temp(f"fcmp {'olt' if op == 'min' else 'ogt'} {name} {left}, {right}")
    mask = text.vector_of("i1", type_.lanes)
    picked = f.temp(f"select {mask} {test}, {name} {left}, {name} {right}")
    if numeric:
        return picked
    unordered = f.temp(f"fcmp uno {name} {left}, {left}")
    return f.temp(f"select {mask} {unordered}, {name} {left}, {name} {picked}")


def _minmax(f: FunctionEmitter, inst: Inst) -> None:
    left, right = inst.args
    if f.constant(right) is not None:
        left, right = right, left
    value = f.constant(left)
    numeric = inst.attrs.get("loses_nan", False) or (value is not None and not math.isnan(value))
    f.bind(inst.result, _pick(f, inst.op, result_type(inst), (f.name(left), f.name(right)), numeric))


def _fma(f: FunctionEmitter, inst: Inst) -> None:
    type_ = result_type(inst)
    # Without the instruction llvm.fma would be a library call; fmuladd is then two roundings.
    name = "fma" if f.target.has_fma else "fmuladd"
    args = [f.typed(a) for a in inst.args]
    f.bind(inst.result, f.call(text.type_name(type_), f"llvm.{name}.{_suffix(type_)}", args))


def _sqrt(f: FunctionEmitter, inst: Inst) -> None:
    type_ = result_type(inst)
    name = f"llvm.sqrt.{_suffix(type_)}"
    f.bind(inst.result, f.call(text.type_name(type_), name, [f.typed(inst.args[0])]))


def _round(f: FunctionEmitter, inst: Inst) -> None:
    type_ = result_type(inst)
    if not f.target.has_rounding:
        builder = f.expansion()
        f.bind(inst.result, f.inline(builder, _EXPANDED_ROUNDING[inst.op](builder, inst.args[0])))
        return
    name = f"llvm.{_ROUNDING[inst.op]}.{_suffix(type_)}"
    f.bind(inst.result, f.call(text.type_name(type_), name, [f.typed(inst.args[0])]))


def _not(f: FunctionEmitter, inst: Inst) -> None:
    type_ = result_type(inst)
    ones = text.literal(True if type_.dtype is DType.BOOL else -1, type_)
    f.bind(inst.result, f.temp(f"xor {f.typed(inst.args[0])}, {ones}"))


def _compare(f: FunctionEmitter, inst: Inst) -> None:
    left, right = inst.args
    if left.type.dtype.is_float:
        code = f"fcmp {_FLOAT_COMPARE[inst.op]}"
    elif inst.op in ("eq", "ne"):
        code = f"icmp {inst.op}"
    else:
        code = f"icmp {'s' if left.type.dtype.is_signed else 'u'}{inst.op}"
    f.bind(inst.result, f.temp(f"{code} {f.typed(left)}, {f.name(right)}"))


def _select(f: FunctionEmitter, inst: Inst) -> None:
    condition, left, right = inst.args
    f.bind(inst.result, f.temp(f"select {f.typed(condition)}, {f.typed(left)}, {f.typed(right)}"))


def _bitcast(f: FunctionEmitter, inst: Inst) -> None:
    arg, target = inst.args[0], text.type_name(result_type(inst))
    if text.type_name(arg.type) == target:
        f.bind(inst.result, f.name(arg))
    else:
        f.bind(inst.result, f.temp(f"bitcast {f.typed(arg)} to {target}"))


def _splat(f: FunctionEmitter, inst: Inst) -> None:
    type_, arg = result_type(inst), inst.args[0]
    value = f.constant(arg)
    if value is not None or type_.lanes == 1:
        f.bind(inst.result, f.name(arg) if value is None else text.literal(value, type_))
        return
    vector = text.type_name(type_)
    first = f.temp(f"insertelement {vector} poison, {f.typed(arg)}, i64 0")
    mask = f"<{type_.lanes} x i32> zeroinitializer"
    f.bind(inst.result, f.temp(f"shufflevector {vector} {first}, {vector} poison, {mask}"))


def _extract(f: FunctionEmitter, inst: Inst) -> None:
    arg = inst.args[0]
    if arg.type.lanes == 1:
        f.bind(inst.result, f.name(arg))
        return
    f.bind(inst.result, f.temp(f"extractelement {f.typed(arg)}, i64 {inst.attrs['lane']}"))


def _insert(f: FunctionEmitter, inst: Inst) -> None:
    vector, scalar = inst.args
    if vector.type.lanes == 1:
        f.bind(inst.result, f.name(scalar))
        return
    lane = inst.attrs["lane"]
    f.bind(inst.result, f.temp(f"insertelement {f.typed(vector)}, {f.typed(scalar)}, i64 {lane}"))


def _shuffle(f: FunctionEmitter, inst: Inst) -> None:
    a, b = inst.args
    picked = ", ".join(f"i32 {lane}" for lane in inst.attrs["lanes"])
    mask = f"<{len(inst.attrs['lanes'])} x i32> <{picked}>"
    if min(a.type.lanes, result_type(inst).lanes) == 1:
        raise CodegenError("shuffle takes and gives vectors")
    f.bind(inst.result, f.temp(f"shufflevector {f.typed(a)}, {f.typed(b)}, {mask}"))


def _iota(f: FunctionEmitter, inst: Inst) -> None:
    type_ = result_type(inst)
    scalar = text.scalar_type(type_.dtype)
    if type_.lanes == 1:
        f.bind(inst.result, "0")
        return
    f.bind(inst.result, "<" + ", ".join(f"{scalar} {i}" for i in range(type_.lanes)) + ">")


def combine(f: FunctionEmitter, combiner: str, type_: KType, left: str, right: str) -> str:
    """Two named operands combined; min and max give NaN if either is NaN."""
    if combiner in ("min", "max"):
        return _pick(f, combiner, type_, (left, right))
    table = _FLOAT_BINARY if type_.dtype.is_float else _INT_BINARY
    return f.temp(f"{table[combiner]} {text.type_name(type_)} {left}, {right}")


def _reduce(f: FunctionEmitter, inst: Inst) -> None:
    """Halve the vector until one lane is left; odd lanes are combined one by one."""
    combiner, arg = inst.attrs["combiner"], inst.args[0]
    name, type_ = f.name(arg), arg.type
    while type_.lanes > 1 and type_.lanes % 2 == 0:
        half = type_.with_lanes(type_.lanes // 2)
        low, high = (_lanes(f, type_, name, start, half.lanes) for start in (0, half.lanes))
        name, type_ = combine(f, combiner, half, low, high), half
    if type_.lanes > 1:
        vector = text.type_name(type_)
        parts = [f.temp(f"extractelement {vector} {name}, i64 {i}") for i in range(type_.lanes)]
        name = parts[0]
        for part in parts[1:]:
            name = combine(f, combiner, type_.with_lanes(1), name, part)
    f.bind(inst.result, name)


def _lanes(f: FunctionEmitter, type_: KType, name: str, start: int, count: int) -> str:
    vector = text.type_name(type_)
    if count == 1:
        return f.temp(f"extractelement {vector} {name}, i64 {start}")
    mask = ", ".join(f"i32 {i}" for i in range(start, start + count))
    return f.temp(f"shufflevector {vector} {name}, {vector} poison, <{count} x i32> <{mask}>")


def _identity(f: FunctionEmitter, inst: Inst) -> None:
    """A subgroup of a CPU is one invocation."""
    f.bind(inst.result, f.name(inst.args[0]))


def _one(f: FunctionEmitter, inst: Inst) -> None:
    """Subgroups of a CPU's workgroup, and invocations in one."""
    f.bind(inst.result, "1")


def _nothing(f: FunctionEmitter, inst: Inst) -> None:
    """A workgroup of a CPU is one invocation: it need not wait for itself."""


_RULES: dict[str, _Rule] = {
    "const": _const,
    "param": _param,
    "workgroup_id": _workgroup_id,
    "local_id": _local_id,
    "load": emit_load,
    "store": emit_store,
    "atomic": emit_atomic,
    "prefetch": emit_prefetch,
    **dict.fromkeys(("add", "sub", "mul", "div", "and", "or", "xor", "shl"), _arithmetic),
    "shr": _shr,
    "rem": _rem,
    "neg": _neg,
    "abs": _abs,
    "min": _minmax,
    "max": _minmax,
    "fma": _fma,
    "dot": emit_dot,
    "sqrt": _sqrt,
    **dict.fromkeys(_ROUNDING, _round),
    "round_bytes": emit_round_bytes,
    "not": _not,
    **dict.fromkeys(_FLOAT_COMPARE, _compare),
    "select": _select,
    "cast": emit_cast,
    "bitcast": _bitcast,
    "splat": _splat,
    "extract": _extract,
    "insert": _insert,
    "shuffle": _shuffle,
    "nibbles": emit_nibbles,
    "tile_products": emit_tile_products,
    "nibble_pairs": emit_nibble_pairs,
    "float12": emit_float12,
    "iota": _iota,
    "reduce": _reduce,
    **dict.fromkeys(("subgroup_reduce", "subgroup_reduce_each", "subgroup_scan", "early"), _identity),
    **dict.fromkeys(("subgroup_id", "subgroup_lane"), _local_id),
    **dict.fromkeys(("subgroup_count", "subgroup_size"), _one),
    "barrier": _nothing,
}
