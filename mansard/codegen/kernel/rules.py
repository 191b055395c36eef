"""The rule of each instruction: `mansard.codegen.kernel.ir` has the table in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from mansard.codegen.kernel import quad_products as quads
from mansard.codegen.kernel import tile_products as tiles
from mansard.codegen.kernel.ir import Binding, Inst, Kernel, KType, SharedMemory
from mansard.codegen.kernel.printer import print_inst
from mansard.codegen.kernel.warpgroups import broken_rule
from mansard.dtypes import DType
from mansard.errors import CodegenError

ARITHMETIC_FLOATS = frozenset({DType.F32, DType.F64})
"""Floats with arithmetic; narrower ones are storage, and are cast to f32 first."""
COMBINERS = frozenset({"add", "mul", "min", "max", "and", "or"})
ATOMIC_COMBINERS = frozenset({"add", "min", "max"})


class InstCheck:
    """What rules are written with: each failure names the kernel, the instruction and the rule."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.where: str | Inst = ""
        """The instruction, loop or branch being checked. Instructions are printed only if they fail."""

    def fail(self, message: str) -> NoReturn:
        """Raise CodegenError."""
        where = print_inst(self.where) if isinstance(self.where, Inst) else self.where
        place = f" in {where!r}" if where else ""
        raise CodegenError(f"kernel {self.kernel.name!r}: {message}{place}")

    def require(self, condition: bool, message: str) -> None:
        """Fail unless the condition holds."""
        if not condition:
            self.fail(message)

    def result(self, inst: Inst) -> KType:
        """The type of the result, which must be there."""
        if inst.result is None:
            raise CodegenError(f"kernel {self.kernel.name!r}: {inst.op} has no result")
        return inst.result.type

    def memory(self, inst: Inst) -> Binding | SharedMemory:
        """The memory of an access, one of the kernel's."""
        memory = inst.attrs.get("memory")
        if isinstance(memory, Binding):
            self.require(memory in self.kernel.bindings, "the binding is not one of this kernel")
            return memory
        if isinstance(memory, SharedMemory):
            self.require(memory in self.kernel.shared, "the shared memory is not of this kernel")
            return memory
        self.fail(f"{inst.op} without memory")


def is_scalar_int(type_: KType) -> bool:
    """Whether a type is that of index arithmetic."""
    return type_.lanes == 1 and type_.dtype in (DType.I32, DType.I64)


def _const(v: InstCheck, inst: Inst) -> None:
    v.result(inst)
    v.require("value" in inst.attrs, "const without value")


def _axis(v: InstCheck, inst: Inst) -> None:
    v.require(is_scalar_int(v.result(inst)), "the result is not a scalar i32 or i64")
    v.require(inst.attrs.get("axis") in (0, 1, 2), "axis is not 0, 1 or 2")


def _param(v: InstCheck, inst: Inst) -> None:
    type_ = v.result(inst)
    v.require(type_.dtype.is_int and type_.lanes == 1, "the result is not a scalar int")
    v.require(inst.attrs.get("index") in range(v.kernel.params), "no such param")


def _access(v: InstCheck, inst: Inst, value: KType) -> None:
    memory, index = v.memory(inst), inst.args[0].type
    v.require(value.dtype == memory.dtype, f"the memory holds {memory.dtype.value}")
    v.require(index.dtype in (DType.I32, DType.I64), "the index is not i32 or i64")
    v.require(index.lanes in (1, value.lanes), "the index has other lanes than the value")
    if isinstance(memory, SharedMemory) and memory.lanes > 1:
        whole = index.lanes == 1 and value.lanes == memory.lanes
        v.require(whole, f"the memory is accessed in whole vectors of {memory.lanes}")


def _load(v: InstCheck, inst: Inst) -> None:
    _access(v, inst, v.result(inst))


def _store(v: InstCheck, inst: Inst) -> None:
    _access(v, inst, inst.args[1].type)
    memory = v.memory(inst)
    v.require(isinstance(memory, SharedMemory) or memory.writable, "the binding is not writable")


def _store_lane(v: InstCheck, inst: Inst) -> None:
    memory, (index, lane, value) = v.memory(inst), (a.type for a in inst.args)
    v.require(isinstance(memory, SharedMemory) and memory.lanes > 1, "the memory is not one of vectors")
    v.require(value == KType(memory.dtype), f"the memory holds {memory.dtype.value}")
    v.require(
        index == lane and index.lanes == 1 and index.dtype.is_int, "index and lane are not one int type"
    )


def _atomic(v: InstCheck, inst: Inst) -> None:
    _store(v, inst)
    value, combiner = inst.args[1].type, inst.attrs.get("combiner")
    v.require(combiner in ATOMIC_COMBINERS, f"atomic combiner {combiner!r}")
    fits = value.dtype in (DType.I32, DType.I64) or (value.dtype == DType.F32 and combiner == "add")
    v.require(fits and value.lanes == 1, f"no atomic {combiner} on {value}")


def _same(v: InstCheck, inst: Inst) -> KType:
    type_ = v.result(inst)
    v.require(all(a.type == type_ for a in inst.args), "operand and result types differ")
    return type_


def _computes(v: InstCheck, type_: KType) -> None:
    if type_.dtype.is_float and type_.dtype not in ARITHMETIC_FLOATS:
        v.fail(f"no arithmetic on {type_.dtype.value}: cast to f32 first")


def _number(v: InstCheck, inst: Inst) -> None:
    type_ = _same(v, inst)
    v.require(type_.dtype is not DType.BOOL, "arithmetic on bool")
    _computes(v, type_)


def _signed(v: InstCheck, inst: Inst) -> None:
    _number(v, inst)
    v.require(v.result(inst).dtype.is_signed, "the type is unsigned")


def _float(v: InstCheck, inst: Inst) -> None:
    type_ = _same(v, inst)
    v.require(type_.dtype.is_float, "the type is not a float")
    _computes(v, type_)


def _dot(v: InstCheck, inst: Inst) -> None:
    a, b, c = (x.type for x in inst.args)
    v.require(c == v.result(inst), "the accumulator's type is not the result's")
    pairs = a.dtype is b.dtype is DType.BF16 and c.dtype is DType.F32
    bytes_ = {a.dtype, b.dtype} <= {DType.I8, DType.U8} and c.dtype is DType.I32
    short = {a.dtype, b.dtype} == {DType.I8, DType.U8} and c.dtype is DType.I16
    halves = a.dtype is b.dtype is DType.I16 and c.dtype is DType.I32
    v.require(
        pairs or bytes_ or short or halves,
        "dot takes bf16 and f32, 8-bit ints and i32, u8, i8 and i16, or i16 and i32",
    )
    v.require(a.lanes == b.lanes == c.lanes * c.dtype.bits // a.dtype.bits, "lanes do not match")
    v.require(c.lanes > 1, "dot of a single lane")


def _dot_bytes(v: InstCheck, inst: Inst) -> None:
    v.require(_same(v, inst) == KType(DType.I32), "dot_bytes takes i32 scalars")
    signed = inst.attrs.get("signed")
    v.require(isinstance(signed, tuple) and len(signed) == 2, "signed is not a pair")


def _early(v: InstCheck, inst: Inst) -> None:
    v.require(is_scalar_int(_same(v, inst)), "early takes a scalar i32 or i64")


def _join_bytes(v: InstCheck, inst: Inst) -> None:
    v.require(_same(v, inst) == KType(DType.I32), "join_bytes takes i32 scalars")


_PACKED = {
    DType.F16: DType.F32, DType.BF16: DType.F32, DType.I8: DType.I8, DType.U8: DType.U8,
    DType.I4: DType.I8, DType.U4: DType.U8,
}  # fmt: skip


def _words(v: InstCheck, inst: Inst) -> None:
    type_ = v.result(inst)
    v.require(type_.dtype is DType.I32 and type_.lanes in (1, 2, 4), "the result is not 1, 2 or 4 of i32")


def _load_words(v: InstCheck, inst: Inst) -> None:
    v.require(isinstance(v.memory(inst), Binding), "the memory is not a buffer")
    v.require(is_scalar_int(inst.args[0].type), "the index is not a scalar i32 or i64")
    _words(v, inst)


def _stream_wait(v: InstCheck, inst: Inst) -> None:
    v.require(v.result(inst) == KType(DType.I32), "the result is not an i32")


def _stream_load(v: InstCheck, inst: Inst) -> None:
    slot, byte = (a.type for a in inst.args)
    v.require(slot == KType(DType.I32) and is_scalar_int(byte), "the operands are not a slot and an index")
    _words(v, inst)


def _unpack(v: InstCheck, inst: Inst) -> None:
    words, type_ = inst.args[0].type, v.result(inst)
    dtype, first = inst.attrs.get("dtype"), inst.attrs.get("first")
    v.require(words.dtype is DType.I32, "the words are not i32")
    results = {DType.F32}
    if isinstance(dtype, DType) and dtype in _PACKED:
        results |= {_PACKED[dtype], *([DType.I32] if dtype.is_int else [])}
    v.require(dtype in _PACKED and type_.dtype in results, f"no {dtype} as {type_}")
    held = words.lanes * 32 // dtype.bits if isinstance(dtype, DType) else 0
    v.require(isinstance(first, int) and 0 <= first <= held - type_.lanes, "the words hold no such numbers")


def _nibbles(v: InstCheck, inst: Inst) -> None:
    bytes_, type_ = inst.args[0].type, v.result(inst)
    v.require(bytes_.dtype is DType.U8 and bytes_.lanes > 1, "the operand is no vector of u8")
    types = (DType.I8, DType.U8, DType.BF16, DType.F32)
    v.require(type_.dtype in types, f"the result is not one of {types}")
    v.require(isinstance(inst.attrs.get("signed"), bool), "signed is not a bool")
    v.require(type_.lanes == 2 * bytes_.lanes, "lanes do not match")


def _nibble_pairs(v: InstCheck, inst: Inst) -> None:
    words, type_ = inst.args[0].type, v.result(inst)
    v.require(words.dtype is DType.I32, "the operand is not of words")
    v.require(type_ == KType(DType.BF16, 2 * words.lanes), "the result is not bf16 of twice as many lanes")
    v.require(isinstance(inst.attrs.get("signed"), bool), "signed is not a bool")


def _float12(v: InstCheck, inst: Inst) -> None:
    (high, low), type_ = (arg.type for arg in inst.args), v.result(inst)
    v.require({high.dtype, low.dtype} == {DType.U8}, "an operand is no vector of u8")
    v.require(type_.dtype is DType.BF16, "the result is not of bf16")
    v.require(high.lanes == type_.lanes == 2 * low.lanes, "lanes do not match")


def _prefetch(v: InstCheck, inst: Inst) -> None:
    v.memory(inst)
    v.require(is_scalar_int(inst.args[0].type), "the index is not a scalar i32 or i64")


def _round_bytes(v: InstCheck, inst: Inst) -> None:
    x, type_ = inst.args[0].type, v.result(inst)
    v.require(x.dtype is DType.F32 and x.lanes > 1, "the operand is no vector of f32")
    v.require(
        type_.dtype in (DType.I8, DType.U8) and type_.lanes == x.lanes, "the result is not as many bytes"
    )
    low, high = inst.attrs.get("low"), inst.attrs.get("high")
    least = -128 if type_.dtype is DType.I8 else 0
    inside = isinstance(low, int) and isinstance(high, int) and least <= low <= high <= least + 255
    v.require(inside and isinstance(inst.attrs.get("zero"), int), "no limits of that type, or no zero point")


def _bits(v: InstCheck, inst: Inst) -> None:
    v.require(not _same(v, inst).dtype.is_float, "bit operation on a float")


def _shift(v: InstCheck, inst: Inst) -> None:
    v.require(_same(v, inst).dtype.is_int, "shift of a type that is not an int")


def _compare(v: InstCheck, inst: Inst) -> None:
    left, right = (a.type for a in inst.args)
    v.require(left == right, "operand types differ")
    v.require(v.result(inst) == KType(DType.BOOL, left.lanes), "the result is not bool of these lanes")
    _computes(v, left)


def _select(v: InstCheck, inst: Inst) -> None:
    condition, left, right = (a.type for a in inst.args)
    v.require(left == right == v.result(inst), "operand and result types differ")
    v.require(condition.dtype is DType.BOOL, "the condition is not bool")
    v.require(condition.lanes in (1, left.lanes), "the condition has other lanes")


def _cast(v: InstCheck, inst: Inst) -> None:
    v.require(inst.args[0].type.lanes == v.result(inst).lanes, "lanes change")


def _bitcast(v: InstCheck, inst: Inst) -> None:
    source, target = inst.args[0].type, v.result(inst)
    # Words of a vector of a narrow type, and it of words, are for code that takes apart what a load gave.
    v.require(source.lanes == target.lanes or DType.I32 in (source.dtype, target.dtype), "lanes change")
    bits = [type_.lanes * type_.dtype.bits for type_ in (source, target)]
    v.require(bits[0] == bits[1] and DType.BOOL not in (source.dtype, target.dtype), "width changes")


def _quad_products(v: InstCheck, inst: Inst) -> None:
    sums, *words = (arg.type for arg in inst.args)
    v.require(sums == v.result(inst) == KType(DType.F32, quads.SUMS), "the sums are no f32 of 4 lanes")
    v.require(set(words) == {KType(DType.I32)}, "a factor is no i32")


def _float12_pairs(v: InstCheck, inst: Inst) -> None:
    (high, low), type_ = (arg.type for arg in inst.args), v.result(inst)
    v.require({high.dtype, low.dtype, type_.dtype} == {DType.I32}, "an operand or the result is not of words")
    v.require(type_.lanes == 2 * high.lanes == 4 * low.lanes, "lanes do not match")


def _tile_products(v: InstCheck, inst: Inst) -> None:
    broken = tiles.broken_rule(inst)
    v.require(broken is None, broken or "")
    memories = [*v.kernel.bindings, *v.kernel.shared]
    own = all(inst.attrs[name] in memories for name in ("x", "weights", "sums"))
    v.require(own, "a memory is not of this kernel")


def _splat(v: InstCheck, inst: Inst) -> None:
    v.require(inst.args[0].type == v.result(inst).with_lanes(1), "the operand is not a scalar of this type")


def _lane(v: InstCheck, inst: Inst) -> None:
    lane = inst.attrs.get("lane")
    v.require(isinstance(lane, int) and 0 <= lane < inst.args[0].type.lanes, "no such lane")


def _extract(v: InstCheck, inst: Inst) -> None:
    v.require(v.result(inst) == inst.args[0].type.with_lanes(1), "the result is not one element")
    _lane(v, inst)


def _insert(v: InstCheck, inst: Inst) -> None:
    vector, scalar = (a.type for a in inst.args)
    v.require(v.result(inst) == vector and scalar == vector.with_lanes(1), "types do not match")
    _lane(v, inst)


def _shuffle(v: InstCheck, inst: Inst) -> None:
    a, b = (x.type for x in inst.args)
    lanes = inst.attrs.get("lanes", ())
    v.require(a == b and v.result(inst) == a.with_lanes(len(lanes)), "types do not match")
    v.require(all(0 <= lane < 2 * a.lanes for lane in lanes), f"lanes {lanes} of two vectors of {a.lanes}")


def _iota(v: InstCheck, inst: Inst) -> None:
    v.require(v.result(inst).dtype.is_int, "iota of a type that is not an int")


def _combine(v: InstCheck, inst: Inst) -> None:
    type_, combiner = inst.args[0].type, inst.attrs.get("combiner")
    v.require(combiner in COMBINERS, f"combiner {combiner!r}")
    v.require(v.result(inst) == type_.with_lanes(1), "the result is not one element")
    if combiner in ("and", "or"):
        v.require(not type_.dtype.is_float, "bit operation on a float")
    else:
        v.require(type_.dtype is not DType.BOOL, "arithmetic on bool")
        _computes(v, type_)


def _subgroup(v: InstCheck, inst: Inst) -> None:
    v.require(inst.args[0].type.lanes == 1, f"{inst.op} of a vector")
    _combine(v, inst)


def _subgroup_reduce(v: InstCheck, inst: Inst) -> None:
    sizes = [inst.attrs[name] for name in ("cluster", "stride") if name in inst.attrs]
    v.require(len(sizes) < 2, "clusters have no stride")
    wrong = [n for n in sizes if not isinstance(n, int) or n < 1 or n & (n - 1)]
    v.require(not wrong, "the cluster or the stride is not a power of two")
    _subgroup(v, inst)


def _subgroup_each(v: InstCheck, inst: Inst) -> None:
    count, types = len(inst.args), {arg.type for arg in inst.args}
    v.require(count > 0 and count & (count - 1) == 0, "the number of operands is not a power of two")
    v.require(types == {v.result(inst)}, "the operands have not all the result's type")
    v.require(inst.attrs["combiner"] in ("add", "mul"), "the combiner is not add or mul")
    _subgroup(v, inst)


def _place(v: InstCheck, inst: Inst) -> None:
    v.require(is_scalar_int(v.result(inst)), "the result is not a scalar i32 or i64")


def _nothing(v: InstCheck, inst: Inst) -> None:
    pass


_Rule = Callable[[InstCheck, Inst], None]


def _no_matrix(v: InstCheck, inst: Inst) -> None:
    v.fail(f"{inst.op} of what is no matrix")


def _warpgroup_product(v: InstCheck, inst: Inst) -> None:
    broken = broken_rule(inst)
    v.require(broken is None, broken or "")


RULES: dict[str, tuple[int, bool, _Rule]] = {
    "warpgroup_product": (-1, True, _warpgroup_product),
    "matrix_load": (2, True, _no_matrix),
    "matrix_store": (3, False, _no_matrix),
    "matrix_multiply": (3, True, _no_matrix),
    "matrix_scale": (2, True, _no_matrix),
    "matrix_map": (-1, True, _no_matrix),  # any number of matrices
    "matrix_reduce": (1, True, _no_matrix),
    "matrix_convert": (1, True, _no_matrix),
    "const": (0, True, _const),
    "param": (0, True, _param),
    "workgroup_id": (0, True, _axis),
    "local_id": (0, True, _axis),
    "load_words": (1, True, _load_words),
    "stream_wait": (0, True, _stream_wait),
    "stream_load": (2, True, _stream_load),
    "stream_next": (0, False, _nothing),
    "workgroups": (0, True, _place),
    "unpack": (1, True, _unpack),
    "nibbles": (1, True, _nibbles),
    "nibble_pairs": (1, True, _nibble_pairs),
    "float12": (2, True, _float12),
    "quad_products": (7, True, _quad_products),
    "float12_pairs": (2, True, _float12_pairs),
    "tile_products": (4, False, _tile_products),
    "load": (1, True, _load),
    "store": (2, False, _store),
    "select": (3, True, _select),
    "cast": (1, True, _cast),
    "bitcast": (1, True, _bitcast),
    "splat": (1, True, _splat),
    "extract": (1, True, _extract),
    "insert": (2, True, _insert),
    "shuffle": (2, True, _shuffle),
    "iota": (0, True, _iota),
    "reduce": (1, True, _combine),
    "subgroup_reduce": (1, True, _subgroup_reduce),
    "subgroup_reduce_each": (-1, True, _subgroup_each),
    "subgroup_scan": (1, True, _subgroup),
    **dict.fromkeys(("subgroup_id", "subgroup_count", "subgroup_lane", "subgroup_size"), (0, True, _place)),
    "atomic": (2, False, _atomic),
    "store_lane": (3, False, _store_lane),
    "barrier": (0, False, _nothing),
    "round_bytes": (1, True, _round_bytes),
    "fma": (3, True, _float),
    "dot": (3, True, _dot),
    "dot_bytes": (3, True, _dot_bytes),
    "early": (1, True, _early),
    "join_bytes": (4, True, _join_bytes),
    "prefetch": (1, False, _prefetch),
    **dict.fromkeys(("add", "sub", "mul", "div", "rem", "min", "max"), (2, True, _number)),
    **dict.fromkeys(("neg", "abs"), (1, True, _signed)),
    **dict.fromkeys(("sqrt", "floor", "ceil", "round", "trunc", "exp2_native"), (1, True, _float)),
    **dict.fromkeys(("and", "or", "xor"), (2, True, _bits)),
    "not": (1, True, _bits),
    **dict.fromkeys(("shl", "shr"), (2, True, _shift)),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), (2, True, _compare)),
}

INSTRUCTIONS = frozenset(RULES)
"""The names of all instructions."""
