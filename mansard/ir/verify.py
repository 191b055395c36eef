"""The rules of the Graph IR; `verify` is run after building and after every pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

from mansard import dims
from mansard.dims import Dim, DimLike, Expr
from mansard.dtypes import DType
from mansard.errors import VerificationError
from mansard.ir.combiners import ARG_COMBINERS, ARITHMETIC_COMBINERS, COMBINERS, accepts
from mansard.ir.graph import Graph
from mansard.ir.ops import (
    Assert,
    Attention,
    Concat,
    Generic,
    Op,
    Pad,
    Reshape,
    Scan,
    Scatter,
    Slice,
    Sort,
)
from mansard.ir.types import IndexMap, Value
from mansard.ir.verify_body import check_body, check_literal

_sound: WeakKeyDictionary[Op, frozenset[Dim]] = WeakKeyDictionary()
"""Ops that were found sound, with the dims that were known."""


def verify(graph: Graph) -> None:
    """Check every rule of the IR. Raises VerificationError naming the graph, the op and the value."""
    _Verifier(graph).run()


def same_dim(a: DimLike, b: DimLike) -> bool:
    """Whether two dims are equal for every value of their symbols.

    Equal canonical forms are equal. Others (``2*floordiv(s, 2)`` and ``s`` with even ``s``) are
    compared at sample points of the symbols' contracts, so a difference is sure and an equality is
    as good as the samples.
    """
    if a is b or a == b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return False
    symbols = sorted(dims.to_expr(a).symbols() | dims.to_expr(b).symbols(), key=lambda s: s.name)
    return all(dims.evaluate(a, p) == dims.evaluate(b, p) for p in _samples(symbols))


def same_shape(a: Sequence[DimLike], b: Sequence[DimLike]) -> bool:
    """`same_dim` for every dim of two shapes."""
    return len(a) == len(b) and all(map(same_dim, a, b))


def _samples(symbols: Sequence[Dim]) -> Iterable[dict[str, int]]:
    for step in range(6):
        point = {}
        for number, s in enumerate(symbols):
            low = -(-s.min // s.multiple) * s.multiple
            # Steps differ by symbol, so that swapped symbols are told apart.
            value = low + step * (2 * number + 1) * s.multiple
            point[s.name] = value if value <= s.max else low
        yield point


class _Verifier:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.defined: dict[Value, None] = {}
        self.names: dict[str, Value] = {}
        self.symbols = self._symbols()
        self.contracts = frozenset(self.symbols.values())
        self.op: Op | None = None

    def fail(self, message: str) -> VerificationError:
        """The error for ``message``, with the op it belongs to."""
        place = f"graph {self.graph.name!r}"
        if self.op is not None:
            results = ", ".join(map(str, self.op.outputs)) or "no result"
            place += f", op {self.op.name} ({results})"
            if self.op.location.text:
                place += f" from {self.op.location}"
        return VerificationError(f"{place}: {message}")

    def run(self) -> None:
        graph = self.graph
        for value in (*graph.inputs, *(s.before for s in graph.states), *graph.constants):
            self._define(value)
        for op in graph.ops:
            self.op = op
            self._operands_defined(op)
            # What an op may look like depends on itself and the dims there are: most ops of a changed
            # graph were checked before.
            if _sound.get(op) != self.contracts:
                self._check(op)
                _sound[op] = self.contracts
            for value in op.outputs:
                self._define(value)
        self.op = None
        self._ends()

    # Values ---------------------------------------------------------------------------------
    def _symbols(self) -> dict[str, Dim]:
        found: dict[str, Dim] = {dim.name: dim for dim in self.graph.parameters}
        for value in (*self.graph.inputs, *(s.before for s in self.graph.states)):
            for d in value.type.shape:
                for s in d.symbols() if isinstance(d, Expr) else ():
                    if found.setdefault(s.name, s) != s:
                        raise VerificationError(
                            f"graph {self.graph.name!r}: {value} states the contract {s}, "
                            f"but {found[s.name]} was stated before"
                        )
        return found

    def known(self, d: DimLike, what: str) -> None:
        """Fail when ``d`` uses a symbol that no input or state binds."""
        if isinstance(d, int):
            return
        for s in d.symbols():
            if self.symbols.get(s.name) != s:
                raise self.fail(f"{what} uses {s}, which no input, state or parameter binds")

    def _define(self, value: Value) -> None:
        if value in self.defined:
            raise self.fail(f"{value} is defined twice")
        if value.name in self.names:
            raise self.fail(f"two values are named {value}")
        for d in value.type.shape:
            self.known(d, f"the shape of {value}")
            if dims.bounds(d)[1] < 0:
                raise self.fail(f"{value} has the negative dim {d}")
        self.defined[value] = None
        self.names[value.name] = value

    def _operands_defined(self, op: Op) -> None:
        for value in op.inputs:
            if value not in self.defined:
                raise self.fail(f"{value} is used before it is defined")

    def _ends(self) -> None:
        graph = self.graph
        for value in graph.outputs:
            if value not in self.defined:
                raise self.fail(f"output {value} is not defined")
        if graph.output_names and len(graph.output_names) != len(graph.outputs):
            raise self.fail(f"{len(graph.outputs)} outputs have {len(graph.output_names)} names")
        for state in graph.states:
            if state.after not in self.defined:
                raise self.fail(f"the final value {state.after} of state {state.before} is not defined")
            self.typed(state.after, state.before.type.shape, state.before.type.dtype)

    # Helpers of the op rules ----------------------------------------------------------------
    def counts(self, op: Op, inputs: Sequence[int], outputs: int) -> None:
        """Fail unless the op has one of the operand counts and exactly ``outputs`` results."""
        if len(op.inputs) not in inputs:
            raise self.fail(f"has {len(op.inputs)} operands, not {' or '.join(map(str, inputs))}")
        if len(op.outputs) != outputs:
            raise self.fail(f"has {len(op.outputs)} results, not {outputs}")

    def typed(self, value: Value, shape: Sequence[DimLike], dtype: DType) -> None:
        """Fail unless ``value`` has the shape and dtype."""
        if value.type.dtype is not dtype:
            raise self.fail(f"{value} is {value.type.dtype.value}, not {dtype.value}")
        if not same_shape(value.type.shape, shape):
            wanted = ", ".join(map(str, shape))
            raise self.fail(f"{value} has type {value.type}, its shape must be ({wanted})")

    def lengths(self, value: Value, **lists: Sequence[object]) -> None:
        """Fail unless each list has one entry for each dim of ``value``."""
        for what, items in lists.items():
            if len(items) != value.type.rank:
                raise self.fail(f"{what} has {len(items)} entries for {value} of rank {value.type.rank}")

    def axis(self, value: Value, axis: int) -> None:
        """Fail unless ``axis`` is a dim of ``value``, counted from 0."""
        if not 0 <= axis < value.type.rank:
            raise self.fail(f"axis {axis} is not a dim of {value} of rank {value.type.rank}")

    def inside(self, what: str, low: DimLike, high: DimLike, extent: DimLike) -> None:
        """Fail when ``low`` is surely negative or ``high`` surely at or past ``extent``."""
        if dims.bounds(low)[1] < 0 or dims.bounds(dims.add(extent, -1, dims.mul(high, -1)))[1] < 0:
            raise self.fail(f"{what} reads {low} to {high} of a dim of {extent}")

    # Op rules -------------------------------------------------------------------------------
    def _check(self, op: Op) -> None:
        match op:
            case Generic():
                self._generic(op)
            case Reshape():
                self._reshape(op)
            case Slice():
                self._slice(op)
            case Concat():
                self._concat(op)
            case Pad():
                self._pad(op)
            case Scatter():
                self._scatter(op)
            case Sort():
                self._sort(op)
            case Scan():
                self._scan(op)
            case Attention():
                self._attention(op)
            case Assert():
                self.counts(op, (1,), 0)
                if op.inputs[0].type.dtype is not DType.BOOL:
                    raise self.fail(f"{op.inputs[0]} is {op.inputs[0].type.dtype.value}, not bool")
            case _:
                raise self.fail("is not an op of the Graph IR")

    def _generic(self, op: Generic) -> None:
        if len(op.maps) != len(op.inputs):
            raise self.fail(f"has {len(op.maps)} index maps for {len(op.inputs)} operands")
        self.counts(op, (len(op.inputs),), 1)
        for d in op.extents:
            self.known(d, "an extent")
        for value, index_map in zip(op.inputs, op.maps, strict=True):
            if index_map is not None:
                self._map(op, value, index_map)
        try:
            check_body(op, self.symbols)
        except VerificationError as error:
            raise self.fail(str(error)) from None
        self._combiner(op)
        rank = op.output.type.rank
        is_arg = op.combiner in ARG_COMBINERS
        self.typed(op.output, op.extents[:rank], DType.I64 if is_arg else op.body.dtype)

    def _map(self, op: Generic, value: Value, index_map: IndexMap) -> None:
        if len(index_map.results) != value.type.rank:
            raise self.fail(f"map {index_map} has {len(index_map.results)} results for {value}: {value.type}")
        empty = any(e == 0 for e in op.extents)
        for result, extent in zip(index_map.results, value.type.shape, strict=True):
            used = [d for d, _ in result.terms]
            if used != sorted(set(used)) or any(c == 0 for _, c in result.terms):
                raise self.fail(f"map {index_map} of {value} is not in canonical form")
            if any(not 0 <= d < len(op.extents) for d in used):
                raise self.fail(f"map {index_map} of {value} uses a dim outside the {len(op.extents)} dims")
            self.known(result.offset, f"the map of {value}")
            if result.single is not None and op.extents[result.single] == extent:
                continue
            low, high = result.offset, result.offset
            for d, c in result.terms:
                self.known(c, f"the map of {value}")
                reach = dims.mul(c, dims.add(op.extents[d], -1))
                if dims.bounds(c)[0] >= 0:
                    high = dims.add(high, reach)
                elif dims.bounds(c)[1] <= 0:
                    low = dims.add(low, reach)
            if not empty and index_map.fill is None:
                self.inside(f"map {index_map} of {value}", low, high, extent)

    def _combiner(self, op: Generic) -> None:
        reduced = len(op.extents) - op.output.type.rank
        if reduced < 0:
            raise self.fail(f"{op.output} has rank {op.output.type.rank}, over {len(op.extents)} dims")
        if reduced == 0:
            if op.combiner is not None:
                raise self.fail(f"has combiner {op.combiner!r} and no reduced dim")
            return
        if op.combiner not in COMBINERS:
            raise self.fail(f"has reduced dims and combiner {op.combiner!r}, not one of {COMBINERS}")
        dtype = op.body.dtype
        if op.combiner in ARG_COMBINERS and reduced != 1:
            raise self.fail(f"{op.combiner} has {reduced} reduced dims, not 1")
        if not accepts(op.combiner, dtype):
            raise self.fail(f"combiner {op.combiner!r} does not take {dtype.value}")

    def _reshape(self, op: Reshape) -> None:
        self.counts(op, (1,), 1)
        before, after = op.inputs[0].type, op.output.type
        if before.dtype is not after.dtype:
            raise self.fail(f"{op.inputs[0]} is {before.dtype.value}, {op.output} is {after.dtype.value}")
        if not same_dim(before.elements, after.elements):
            raise self.fail(f"{before} has {before.elements} elements, {after} has {after.elements}")

    def _slice(self, op: Slice) -> None:
        self.counts(op, (1,), 1)
        x, out = op.inputs[0], op.output
        self.lengths(x, offsets=op.offsets, strides=op.strides, shape=out.type.shape)
        if x.type.dtype is not out.type.dtype:
            raise self.fail(f"{x} is {x.type.dtype.value}, {out} is {out.type.dtype.value}")
        for extent, offset, stride, size in zip(
            x.type.shape, op.offsets, op.strides, out.type.shape, strict=True
        ):
            if stride < 1:
                raise self.fail(f"stride {stride} is not positive")
            self.known(offset, "an offset")
            if size != 0:
                last = dims.add(offset, dims.mul(dims.add(size, -1), stride))
                self.inside(f"the slice of {x}", offset, last, extent)

    def _concat(self, op: Concat) -> None:
        if not op.inputs:
            raise self.fail("has no operand")
        self.counts(op, (len(op.inputs),), 1)
        first = op.inputs[0]
        self.axis(first, op.axis)
        for value in op.inputs:
            if value.type.rank != first.type.rank:
                raise self.fail(f"{value} has rank {value.type.rank}, {first} has {first.type.rank}")
            shape = list(first.type.shape)
            shape[op.axis] = value.type.shape[op.axis]
            self.typed(value, shape, first.type.dtype)
        shape = list(first.type.shape)
        shape[op.axis] = dims.add(*(v.type.shape[op.axis] for v in op.inputs))
        self.typed(op.output, shape, first.type.dtype)

    def _pad(self, op: Pad) -> None:
        self.counts(op, (1,), 1)
        x = op.inputs[0]
        self.lengths(x, low=op.low, high=op.high)
        for amount in (*op.low, *op.high):
            self.known(amount, "the padding")
            if dims.bounds(amount)[1] < 0:
                raise self.fail(f"padding {amount} is negative")
        try:
            check_literal(op.value, x.type.dtype)
        except VerificationError as error:
            raise self.fail(str(error)) from None
        shape = [dims.add(lo, d, hi) for lo, d, hi in zip(op.low, x.type.shape, op.high, strict=True)]
        self.typed(op.output, shape, x.type.dtype)

    def _scatter(self, op: Scatter) -> None:
        self.counts(op, (3,), 1)
        target, indices, updates = op.inputs
        if indices.type.rank != 2 or indices.type.dtype is not DType.I64:
            raise self.fail(f"indices {indices} are {indices.type}, not NxKxi64")
        rows, width = indices.type.shape
        if not isinstance(width, int) or width > target.type.rank:
            raise self.fail(f"indices {indices} have {width} columns for {target} of rank {target.type.rank}")
        self.typed(updates, (rows, *target.type.shape[width:]), target.type.dtype)
        self.typed(op.output, target.type.shape, target.type.dtype)
        if op.combiner not in (None, *ARITHMETIC_COMBINERS):
            raise self.fail(f"combiner {op.combiner!r} is not None or one of {ARITHMETIC_COMBINERS}")

    def _sort(self, op: Sort) -> None:
        self.counts(op, (1,), 2)
        x = op.inputs[0]
        self.axis(x, op.axis)
        shape = list(x.type.shape)
        if op.limit is not None:
            if op.limit < 0 or op.limit > dims.bounds(shape[op.axis])[1]:
                raise self.fail(f"limit {op.limit} is outside 0 to {shape[op.axis]}")
            shape[op.axis] = op.limit
        self.typed(op.outputs[0], shape, x.type.dtype)
        self.typed(op.outputs[1], shape, DType.I64)

    def _scan(self, op: Scan) -> None:
        self.counts(op, (1,), 1)
        x = op.inputs[0]
        self.axis(x, op.axis)
        self.typed(op.output, x.type.shape, x.type.dtype)
        if op.combiner not in ARITHMETIC_COMBINERS:
            raise self.fail(f"combiner {op.combiner!r} is not one of {ARITHMETIC_COMBINERS}")
        if x.type.dtype is DType.BOOL:
            raise self.fail(f"{x} is bool, which a scan does not take")

    def _attention(self, op: Attention) -> None:
        self.counts(op, (3, 4), 1)
        query, key, value = op.inputs[:3]
        for operand in op.inputs[:3]:
            if operand.type.rank != 4:
                raise self.fail(f"{operand} has rank {operand.type.rank}, not 4")
        dtype = query.type.dtype
        if not dtype.is_float:
            raise self.fail(f"{query} is {dtype.value}, not a float type")
        (batch, heads, rows, depth), (_, key_heads, length, _) = query.type.shape, key.type.shape
        self.typed(key, (batch, key_heads, length, depth), dtype)
        self.typed(value, (batch, key_heads, length, value.type.shape[3]), dtype)
        if not (isinstance(heads, int) and isinstance(key_heads, int) and key_heads > 0):
            raise self.fail(f"head counts {heads} and {key_heads} are not positive ints")
        if heads % key_heads:
            raise self.fail(f"{heads} query heads are not a multiple of {key_heads} key heads")
        self.typed(op.output, (batch, heads, rows, value.type.shape[3]), dtype)
        if len(op.inputs) == 4:
            self._mask(op.inputs[3], (batch, heads, rows, length))

    def _mask(self, mask: Value, scores: Sequence[DimLike]) -> None:
        if not (mask.type.dtype is DType.BOOL or mask.type.dtype.is_float):
            raise self.fail(f"mask {mask} is {mask.type.dtype.value}, not bool or float")
        if mask.type.rank > 4:
            raise self.fail(f"mask {mask} has rank {mask.type.rank}, more than 4")
        skipped = 4 - mask.type.rank
        for i, d in enumerate(mask.type.shape):
            if d != 1 and not same_dim(d, scores[skipped + i]):
                wanted = ", ".join(map(str, scores))
                raise self.fail(f"mask {mask} of type {mask.type} does not broadcast to ({wanted})")
