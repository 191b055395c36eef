"""Builds kernels: typed helpers that append instructions and fold trivial ones on the way."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mansard.codegen.kernel.ir import (
    Binding,
    Block,
    For,
    If,
    Inst,
    Kernel,
    KType,
    KValue,
    Memory,
    SharedMemory,
)
from mansard.dtypes import DType
from mansard.hal.exchanges import NO_EXCHANGE

_COMMUTATIVE_ZERO = ("add", "or", "xor")
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}


@dataclass
class Loop:
    """An open loop: its index, the carried values inside, and its results once closed."""

    index: KValue
    carried: tuple[KValue, ...]
    yields: tuple[KValue, ...] | None = None
    results: tuple[KValue, ...] = ()

    def yield_(self, *values: KValue) -> None:
        """Set the values carried into the next iteration."""
        self.yields = values


class KernelBuilder:
    """Appends to a current block. Every method that takes operands checks their types."""

    def __init__(
        self,
        name: str,
        bindings: Sequence[tuple[DType, bool]],
        params: int,
        *,
        workgroup: tuple[int, int, int] = (1, 1, 1),
        index: DType = DType.I64,
        first_id: int = 0,
    ) -> None:
        self.name = name
        self.bindings = tuple(Binding(i, dtype, w) for i, (dtype, w) in enumerate(bindings))
        self.params = params
        self.workgroup = workgroup
        self.index = index
        self.subgroup = 0
        """See `Kernel.subgroup`."""
        self.exchange = NO_EXCHANGE
        """See `Kernel.exchange`."""
        self.lookups: frozenset[int] = frozenset()
        """See `Kernel.lookups`."""
        self._shared: list[SharedMemory] = []
        self._block = Block()
        self._root = self._block
        self._next = first_id
        self.start_of: Callable[[Memory], KValue | None] = lambda memory: None
        """The element of a binding from which on positions count, where that is not its first."""
        self.ids: tuple[KValue, KValue, KValue] | None = None
        """A workgroup's coordinates in the grid of a schedule, where the kernel's grid is another."""
        self.takes_vectors = False
        """Whether the code generator has ``round_bytes`` and ``nibbles``, which are for vectors of CPUs."""
        self._exact = False
        self._constants: dict[int, float | int | bool] = {}
        self._unpacked: dict[int, tuple[KValue, DType, int]] = {}  # results of unpack, by what they are of
        self._widened: dict[int, KValue] = {}  # results of casts of narrow floats, by what they are of

    # Values ---------------------------------------------------------------------------------
    def _new(self, type_: KType) -> KValue:
        self._next += 1
        return KValue(self._next - 1, type_)

    def inst(self, op: str, args: Sequence[KValue], type_: KType | None, **attrs: object) -> KValue:
        """Append any instruction; for one without a result the returned value is not to be used."""
        result = self._new(type_) if type_ is not None else None
        self._block.nodes.append(Inst(op, tuple(args), result, dict(attrs)))
        return result if result is not None else KValue(-1, KType(DType.BOOL))

    def register(self, type_: KType) -> KValue:
        """A register that an instruction with a body of its own defines."""
        return self._new(type_)

    def constant_value(self, value: KValue) -> float | int | bool | None:
        """The literal behind a value, if it is one."""
        return self._constants.get(value.id)

    def const(self, value: float | int | bool, dtype: DType, lanes: int = 1) -> KValue:
        """A literal (a splat when ``lanes`` > 1)."""
        result = self.inst("const", (), KType(dtype, lanes), value=value)
        self._constants[result.id] = value
        return result

    def idx(self, value: int) -> KValue:
        """An index literal."""
        return self.const(value, self.index)

    def param(self, index: int) -> KValue:
        """Param ``index`` as an index value."""
        return self.inst("param", (), KType(self.index), index=index)

    def workgroup_id(self, axis: int) -> KValue:
        """The workgroup's coordinate."""
        if self.ids is not None:
            return self.ids[axis]
        return self.inst("workgroup_id", (), KType(self.index), axis=axis)

    def local_id(self, axis: int) -> KValue:
        """The invocation's coordinate in its workgroup."""
        return self.inst("local_id", (), KType(self.index), axis=axis)

    def subgroup_place(self, name: str) -> KValue:
        """``subgroup_id``, ``subgroup_count``, ``subgroup_lane`` or ``subgroup_size`` as an index value."""
        return self.inst(name, (), KType(self.index))

    # Memory ---------------------------------------------------------------------------------
    def shared(self, dtype: DType, size: int, lanes: int = 1) -> SharedMemory:
        """Allocate workgroup memory of ``size`` elements, or of as many vectors."""
        self._shared.append(SharedMemory(len(self._shared), dtype, size, lanes))
        return self._shared[-1]

    @property
    def shared_bytes(self) -> int:
        """Bytes of the workgroup memory allocated so far."""
        return sum(m.size * m.lanes * max(1, m.dtype.bits // 8) for m in self._shared)

    def load(self, memory: Memory, index: KValue, lanes: int = 1, *, aligned: bool = False) -> KValue:
        """Load ``lanes`` consecutive elements, or one per lane of a vector index.

        A memory of vectors gives a whole one. ``aligned``: the address is a multiple of the value's size.
        """
        lanes = index.type.lanes if index.type.lanes > 1 else lanes
        if isinstance(memory, SharedMemory) and memory.lanes > 1:
            lanes = memory.lanes
        attrs = {"aligned": True} if aligned else {}
        place = self.placed(memory, index)
        return self.inst("load", (place,), KType(memory.dtype, lanes), memory=memory, **attrs)

    def placed(self, memory: Memory, index: KValue) -> KValue:
        """A position in a memory, counted from the binding's first element."""
        start = self.start_of(memory)
        return index if start is None else self.add(start, index)

    def load_words(self, memory: Memory, index: KValue, words: int) -> KValue:
        """32-bit words as they lie in memory from an element on, aligned to all of them (GPU only)."""
        return self.inst("load_words", (index,), KType(DType.I32, words), memory=memory)

    # Streams (`mansard.codegen.kernel.weight_streams`) ------------------------------------------------
    def workgroups(self) -> KValue:
        """Workgroups of the grid."""
        return self.inst("workgroups", (), KType(self.index))

    def stream_wait(self) -> KValue:
        """The subgroup's next slot, once its data are there."""
        return self.inst("stream_wait", (), KType(DType.I32))

    def stream_load(self, slot: KValue, byte: KValue, words: int) -> KValue:
        """Words of a slot from a byte on."""
        return self.inst("stream_load", (slot, byte), KType(DType.I32, words))

    def stream_next(self) -> None:
        """Let a later part take the slot that was waited for."""
        self.inst("stream_next", (), None)

    def unpack(self, words: KValue, dtype: DType, first: int, count: int) -> KValue:
        """``count`` numbers of ``dtype`` in words, from number ``first`` on (GPU only).

        16-bit floats come as f32, 4-bit integers as 8-bit ones; cast to f32 or i32, integers are unpacked as
        such.
        """
        wide = {DType.F16: DType.F32, DType.BF16: DType.F32, DType.I4: DType.I8, DType.U4: DType.U8}
        type_ = KType(wide.get(dtype, dtype), count)
        result = self.inst("unpack", (words,), type_, dtype=dtype, first=first)
        self._unpacked[result.id] = (words, dtype, first)
        return result

    def nibbles(self, packed: KValue, dtype: DType, *, signed: bool) -> KValue:
        """The two 4-bit integers of every byte of a u8 vector as ``dtype`` (i8, u8, bf16, f32), the one in a
        byte's low half first (CPU only)."""
        type_ = KType(dtype, 2 * packed.type.lanes)
        return self.inst("nibbles", (packed,), type_, signed=signed)

    def nibble_pairs(self, words: KValue, *, signed: bool) -> KValue:
        """The 4-bit integers in the low bits of both halves of 32-bit words as bf16; other bits are ignored
        (CPU only)."""
        return self.inst("nibble_pairs", (words,), KType(DType.BF16, 2 * words.type.lanes), signed=signed)

    def float12(self, high: KValue, low: KValue) -> KValue:
        """Floats of 12 bits (`mansard.ir.float12`) as bf16: from a u8 vector of their bytes, and one of half
        as many lanes with their nibbles, the first of each byte in its low half (CPU only)."""
        return self.inst("float12", (high, low), KType(DType.BF16, high.type.lanes))

    def store(self, memory: Memory, index: KValue, value: KValue, *, aligned: bool = False) -> None:
        """Store all lanes of ``value`` to consecutive elements, or to those of a vector index.

        ``aligned``: the address is a multiple of the value's size.
        """
        attrs = {"aligned": True} if aligned else {}
        self.inst("store", (index, value), None, memory=memory, **attrs)

    def store_lane(self, memory: SharedMemory, index: KValue, lane: KValue, value: KValue) -> None:
        """Store one element of vector ``index`` of a workgroup memory of vectors."""
        self.inst("store_lane", (index, lane, value), None, memory=memory)

    def prefetch(self, memory: Memory, index: KValue, *, second_level: bool = False) -> None:
        """Hint that an element is read soon; ``second_level``: after so much else that the first-level cache
        would not keep it."""
        attrs = {"second_level": True} if second_level else {}
        self.inst("prefetch", (self.placed(memory, index),), None, memory=memory, **attrs)

    def atomic(self, memory: Memory, index: KValue, value: KValue, combiner: str) -> None:
        """Combine atomically into one element."""
        self.inst("atomic", (index, value), None, memory=memory, combiner=combiner)

    def barrier(self, scope: str = "workgroup") -> None:
        """Barrier of the workgroup, or of its subgroup."""
        self.inst("barrier", (), None, **({"scope": scope} if scope != "workgroup" else {}))

    # Arithmetic -----------------------------------------------------------------------------
    def match(self, a: KValue, b: KValue) -> tuple[KValue, KValue]:
        """Splat a scalar operand to the other's lanes."""
        lanes = max(a.type.lanes, b.type.lanes)
        return self.splat(a, lanes), self.splat(b, lanes)

    def binary(self, op: str, a: KValue, b: KValue) -> KValue:
        """Any two-operand arithmetic instruction; scalars are splatted to match."""
        assert a.type.dtype == b.type.dtype, (op, a.type, b.type)
        folded = self._fold(op, a, b)
        if folded is not None:
            return folded
        if self._exact and a.type.dtype.is_float and op in ("add", "sub", "mul"):
            return self.exact(op, a, b)
        a, b = self.match(a, b)
        return self.inst(op, (a, b), a.type)

    def _fold(self, op: str, a: KValue, b: KValue) -> KValue | None:
        if not a.type.dtype.is_int:
            return None
        x, y = self._constants.get(a.id), self._constants.get(b.id)
        lanes = max(a.type.lanes, b.type.lanes)
        if x is not None and y is not None and op in ("add", "sub", "mul"):
            value = {"add": int(x) + int(y), "sub": int(x) - int(y), "mul": int(x) * int(y)}[op]
            if -(2**31) <= value < 2**31:
                return self.const(value, a.type.dtype, lanes)
        if y == 0 and op in (*_COMMUTATIVE_ZERO, "sub", "shl", "shr"):
            return self.splat(a, lanes)
        if x == 0 and op in _COMMUTATIVE_ZERO:
            return self.splat(b, lanes)
        if op == "mul" and 0 in (x, y):
            return self.const(0, a.type.dtype, lanes)
        if op in ("mul", "div") and y == 1:
            return self.splat(a, lanes)
        if op == "mul" and x == 1:
            return self.splat(b, lanes)
        return None

    def add(self, a: KValue, b: KValue) -> KValue:
        """``a + b``."""
        return self.binary("add", a, b)

    def sub(self, a: KValue, b: KValue) -> KValue:
        """``a - b``."""
        return self.binary("sub", a, b)

    def mul(self, a: KValue, b: KValue) -> KValue:
        """``a * b``."""
        return self.binary("mul", a, b)

    def exact(self, op: str, a: KValue, b: KValue) -> KValue:
        """add, sub or mul on floats that is rounded by itself, never merged with another."""
        a, b = self.match(a, b)
        return self.inst(op, (a, b), a.type, exact=True)

    @contextmanager
    def exactly(self) -> Iterator[None]:
        """Inside, every add, sub and mul on floats is `exact`."""
        before, self._exact = self._exact, True
        try:
            yield
        finally:
            self._exact = before

    def fma(self, a: KValue, b: KValue, c: KValue, *, exact: bool = False) -> KValue:
        """``a * b + c`` on floats; ``exact`` keeps compilers from factoring it with others."""
        lanes = max(v.type.lanes for v in (a, b, c))
        args = [self.splat(v, lanes) for v in (a, b, c)]
        return self.inst("fma", args, args[0].type, **({"exact": True} if exact else {}))

    def dot(self, a: KValue, b: KValue, c: KValue) -> KValue:
        """``c`` plus the products of a's and b's elements, summed in each lane of c: pairs of bf16 (c of f32)
        or i16 (i32), quads of 8 bits (i32), or pairs of u8 and i8 (i16, which the sums have to fit)."""
        return self.inst("dot", (a, b, c), c.type)

    def dot_bytes(self, a: KValue, b: KValue, c: KValue, signed: tuple[bool, bool]) -> KValue:
        """``c`` plus the products of the four bytes in the words a and b, each signed or not (GPU only)."""
        return self.inst("dot_bytes", (a, b, c), c.type, signed=signed)

    def early(self, a: KValue) -> KValue:
        """The same scalar, computed here, not where it is used."""
        return self.inst("early", (a,), a.type)

    def join_bytes(self, words: Sequence[KValue]) -> KValue:
        """The lowest bytes of four i32 as one, that of the first the lowest."""
        return self.inst("join_bytes", words, KType(DType.I32))

    def unary(self, op: str, a: KValue) -> KValue:
        """neg, abs, sqrt, floor, ceil, round, trunc, not."""
        return self.inst(op, (a,), a.type)

    def larger(self, a: KValue, b: KValue) -> KValue:
        """The larger of two floats in one instruction: of a number and a NaN it is either."""
        a, b = self.match(a, b)
        return self.inst("max", (a, b), a.type, loses_nan=True)

    def compare(self, op: str, a: KValue, b: KValue) -> KValue:
        """eq, ne, lt, le, gt, ge."""
        assert a.type.dtype == b.type.dtype, (op, a.type, b.type)
        x, y = self._constants.get(a.id), self._constants.get(b.id)
        if x is not None and y is not None and a.type.dtype.is_int:
            lanes = max(a.type.lanes, b.type.lanes)
            return self.const(_COMPARISONS[op](x, y), DType.BOOL, lanes)
        a, b = self.match(a, b)
        return self.inst(op, (a, b), KType(DType.BOOL, a.type.lanes))

    def select(self, condition: KValue, a: KValue, b: KValue) -> KValue:
        """``a`` where the condition holds, else ``b``."""
        assert a.type.dtype == b.type.dtype, (a.type, b.type)
        lanes = max(v.type.lanes for v in (condition, a, b))
        a, b = self.splat(a, lanes), self.splat(b, lanes)
        known = self._constants.get(condition.id)
        if known is not None:
            return a if known else b
        return self.inst("select", (condition, a, b), a.type)

    def round_bytes(self, x: KValue, dtype: DType, zero: int, low: int, high: int) -> KValue:
        """``min(max(round(x) + zero, low), high)`` of a vector of f32 as i8 or u8, 0 for NaN (CPU only)."""
        return self.inst("round_bytes", (x,), KType(dtype, x.type.lanes), zero=zero, low=low, high=high)

    def cast(self, a: KValue, dtype: DType) -> KValue:
        """Numeric conversion; nothing when the type is the same."""
        if a.type.dtype == dtype:
            return a
        value = self._constants.get(a.id)
        if value is not None and a.type.dtype.is_int and dtype.is_int and abs(int(value)) < 2**7:
            return self.const(value, dtype, a.type.lanes)
        type_ = KType(dtype, a.type.lanes)
        if dtype in (DType.F32, DType.I32) and a.type.dtype.is_int and a.id in self._unpacked:
            words, packed, first = self._unpacked[a.id]
            return self.inst("unpack", (words,), type_, dtype=packed, first=first)
        before = self._widened.get(a.id)
        if before is not None and before.type.dtype is dtype:
            # A narrow float that was only carried: its bits, which a conversion may not all keep.
            return before
        result = self.inst("cast", (a,), type_)
        if a.type.dtype.is_float and a.type.dtype.bits < dtype.bits and dtype is DType.F32:
            self._widened[result.id] = a
        return result

    def bitcast(self, a: KValue, dtype: DType) -> KValue:
        """The same bits as another type."""
        return a if a.type.dtype == dtype else self.inst("bitcast", (a,), KType(dtype, a.type.lanes))

    def words(self, a: KValue) -> KValue:
        """A vector as 32-bit words (PTX and CPUs)."""
        return self.inst("bitcast", (a,), KType(DType.I32, a.type.lanes * a.type.dtype.bits // 32))

    def numbers(self, words: KValue, dtype: DType) -> KValue:
        """32-bit words as a vector of a narrow type, the first in their low bits (CPUs only)."""
        return self.inst("bitcast", (words,), KType(dtype, words.type.lanes * 32 // dtype.bits))

    def splat(self, a: KValue, lanes: int) -> KValue:
        """A scalar in every lane; nothing when the lanes match."""
        if a.type.lanes == lanes:
            return a
        assert a.type.lanes == 1, (a.type, lanes)
        value = self._constants.get(a.id)
        if value is not None:
            return self.const(value, a.type.dtype, lanes)
        return self.inst("splat", (a,), a.type.with_lanes(lanes))

    def extract(self, a: KValue, lane: int) -> KValue:
        """One lane of a vector."""
        return a if a.type.lanes == 1 else self.inst("extract", (a,), KType(a.type.dtype), lane=lane)

    def insert(self, a: KValue, scalar: KValue, lane: int) -> KValue:
        """The vector with one lane replaced."""
        return self.inst("insert", (a, scalar), a.type, lane=lane)

    def shuffle(self, a: KValue, b: KValue, lanes: Sequence[int]) -> KValue:
        """Lanes picked from two vectors of one type, those of ``b`` counted on from those of ``a``."""
        return self.inst("shuffle", (a, b), a.type.with_lanes(len(lanes)), lanes=tuple(lanes))

    def iota(self, lanes: int, dtype: DType | None = None) -> KValue:
        """0, 1, 2 … (a scalar 0 for one lane)."""
        dtype = dtype or self.index
        return self.const(0, dtype) if lanes == 1 else self.inst("iota", (), KType(dtype, lanes))

    def reduce(self, combiner: str, a: KValue) -> KValue:
        """All lanes of a vector combined."""
        return a if a.type.lanes == 1 else self.inst("reduce", (a,), KType(a.type.dtype), combiner=combiner)

    def subgroup_reduce(self, combiner: str, a: KValue, *, loses_nan: bool = False, **part: int) -> KValue:
        """A scalar of every active invocation of the subgroup, combined. With ``loses_nan`` a min or max may
        ignore NaN, which takes half the steps. ``cluster`` or ``stride`` name a part of the subgroup, as
        `mansard.codegen.kernel.ir` says."""
        attrs: dict[str, object] = {"loses_nan": True} if loses_nan else {}
        alone = part.get("cluster") == 1
        return a if alone else self.inst("subgroup_reduce", (a,), a.type, combiner=combiner, **attrs, **part)

    def subgroup_reduce_each(self, combiner: str, values: Sequence[KValue]) -> KValue:
        """For each invocation of the subgroup the `subgroup_reduce` of the value with its number modulo their
        count, which is a power of two."""
        return self.inst("subgroup_reduce_each", values, values[0].type, combiner=combiner)

    def subgroup_scan(self, combiner: str, a: KValue) -> KValue:
        """A scalar of every active invocation of the subgroup up to this one, combined."""
        return self.inst("subgroup_scan", (a,), a.type, combiner=combiner)

    # Control flow ---------------------------------------------------------------------------
    @contextmanager
    def for_(
        self,
        lower: KValue | int,
        upper: KValue | int,
        step: KValue | int = 1,
        inits: Sequence[KValue] = (),
        unroll: int = 1,
    ) -> Iterator[Loop]:
        """A counted loop. Inside, set the carried values with ``loop.yield_``; ``loop.results`` after."""
        lo, hi, st = (self.idx(v) if isinstance(v, int) else v for v in (lower, upper, step))
        index = self._new(KType(self.index))
        carried = tuple(self._new(v.type) for v in inits)
        loop = Loop(index, carried)
        outer, body = self._block, Block()
        self._block = body
        try:
            yield loop
        finally:
            self._block = outer
        yields = loop.yields if loop.yields is not None else carried
        assert [v.type for v in yields] == [v.type for v in inits], "carried types must not change"
        loop.results = tuple(self._new(v.type) for v in inits)
        outer.nodes.append(
            For(lo, hi, st, index, tuple(inits), carried, body, tuple(yields), loop.results, unroll)
        )

    @contextmanager
    def if_(self, condition: KValue) -> Iterator[None]:
        """Run the nodes inside only when the scalar condition holds."""
        outer, then = self._block, Block()
        self._block = then
        try:
            yield
        finally:
            self._block = outer
        outer.nodes.append(If(condition, then, Block()))

    @contextmanager
    def nested(self) -> Iterator[Block]:
        """A block of its own for the nodes inside; nothing refers to it yet."""
        outer, inner = self._block, Block()
        self._block = inner
        try:
            yield inner
        finally:
            self._block = outer

    def build(self) -> Kernel:
        """The finished kernel."""
        shared = tuple(self._shared)
        return Kernel(
            self.name,
            self.bindings,
            self.params,
            self.workgroup,
            shared,
            self._root,
            self.index,
            self.subgroup,
            exchange=self.exchange,
            lookups=self.lookups,
        )
