"""Horizontal fusion: merge products of one input with several constant weights into one product.

Before (queries, keys and values of one layer; each bias is a constant)::

    %q: 8x64xf32 = generic (d0:8, d1:64 | d2:32) add {%x[d0, d2] * %wq[d1, d2]}
    %a: 8x64xf32 = generic (d0:8, d1:64) {%q[d0, d1] + %bq[d1]}
    %k: 8x16xf32 = generic (d0:8, d1:16 | d2:32) add {%x[d0, d2] * %wk[d1, d2]}
    %b: 8x16xf32 = generic (d0:8, d1:16) {%k[d0, d1] + %bk[d1]}

After (readers of ``%a`` and ``%b`` read their columns of ``%all``)::

    %both: 8x80xf32 = generic (d0:8, d1:80 | d2:32) add {%x[d0, d2] * %w[d1, d2]}
    %all: 8x80xf32 = generic (d0:8, d1:80) {%both[d0, d1] + %b[d1]}

One kernel then reads the input once and computes the columns of all of them, which occupies a device that one
small product leaves mostly idle. The weights are concatenated when they are loaded. Products are not merged
where their results meet in an elementwise op, where one of them has an additional epilogue, which is then
fused into its kernel, or where a reader needs a result in a separate buffer. Weights that are to stay where
they are in the checkpoint (``kept``) are not merged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from mansard.analysis.operands import is_copy, is_light
from mansard.artifact.weights import JoinedLoad
from mansard.dims import is_one
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.interpreter.graph import load
from mansard.ir.interpreter.scalar import Array
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.scalar import Arg, Index, walk
from mansard.ir.types import Constant, IndexMap, Linear, TensorType, Value
from mansard.passes.canonical.copies import read_through_copies
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.fusion.scatters import state_updates


@dataclass(frozen=True)
class _Chain:
    """A product and the chain of maps that follows it, each the only reader of the previous one."""

    ops: tuple[Generic, ...]
    epilogue: bool
    """Whether a further map that is not in ``ops`` would be fused into the product's kernel."""

    @property
    def columns(self) -> int:
        extent = self.ops[0].extents[self.ops[0].rank - 1]
        assert isinstance(extent, int)
        return extent


def fuse_horizontally(graph: Graph, kept: AbstractSet[str] = frozenset()) -> Graph:
    """Merge products that differ only in a constant weight, unless its key is in ``kept``; the same graph if
    there are none."""
    apart: set[Value] = set()
    while True:
        merger = _Merger(graph, apart, kept)
        merged = merger.run()
        if merged is graph:
            return graph
        result = eliminate_dead(read_through_copies(merged))
        scattered = _scattered(result)
        stored = {v for op in result.ops if is_copy(op) for v in op.outputs} - scattered
        failed = {first for part, first in merger.parts.items() if part in stored}
        if not failed:
            return result
        apart |= failed


class _Merger:
    def __init__(self, graph: Graph, apart: Collection[Value], kept: AbstractSet[str]) -> None:
        self.graph, self.apart, self.kept = graph, apart, kept
        self.users, self.live = graph.users(), graph.live_outs()
        self.constants = dict(graph.constants)
        self.taken = {v.name for v in graph.values()}
        self.place = {v: i for i, op in enumerate(graph.ops) for v in op.outputs}
        self.parts: dict[Value, Value] = {}
        """Maps results that became columns of a merged one to the result of the first product."""

    def run(self) -> Graph:
        siblings: dict[object, list[_Chain]] = {}
        for op in self.graph.ops:
            key = self._key(op)
            if key is not None:
                assert isinstance(op, Generic)
                siblings.setdefault(key, []).append(self._chain(op))
        inserted: dict[Op, list[Op]] = {}
        dropped: set[Op] = set()
        for chains in siblings.values():
            if len(chains) < 2 or chains[0].ops[0].output in self.apart or not self._fit(chains):
                continue
            inserted[chains[0].ops[0]] = self._join(chains)
            dropped.update(op for chain in chains for op in chain.ops)
        if not inserted:
            return self.graph
        ops = [new for op in self.graph.ops for new in inserted.get(op, []) + ([] if op in dropped else [op])]
        return self.graph.with_ops(ops, constants=self.constants)

    # Recognising ------------------------------------------------------------------------------
    def _key(self, op: Op) -> object | None:
        """A key that is equal for products that can be merged; None for ops that cannot be merged."""
        if not isinstance(op, Generic) or not is_contraction(op) or not op.rank:
            return None
        if not isinstance(op.extents[op.rank - 1], int):
            return None
        # A weight may be several constants: codes with their scales.
        weights = [
            i
            for i, (v, m) in enumerate(zip(op.inputs, op.maps, strict=True))
            if v in self.graph.constants and m is not None and _depends_on(m, op.rank - 1)
        ]
        others = [(v, m) for i, (v, m) in enumerate(zip(op.inputs, op.maps, strict=True)) if i not in weights]
        if not weights or not all(self._is_mergeable(op, weight) for weight in weights):
            return None
        if any(m is None or _depends_on(m, op.rank - 1) for _, m in others):
            return None
        extents = tuple(e for d, e in enumerate(op.extents) if d != op.rank - 1)
        return (
            op.output.type.dtype,
            _repeated(op),
            op.rank,
            tuple(weights),
            tuple(v for v, _ in others),
            op.maps,
            extents,
            op.body,
            tuple(_type_without_columns(op, weight) for weight in weights),
        )

    def _is_mergeable(self, op: Generic, operand: int) -> bool:
        """Whether an operand is a constant that only ``op`` reads, with one slice per column of the
        result."""
        value, index_map = op.inputs[operand], op.maps[operand]
        if value not in self.graph.constants or value in self.live or self.users.get(value) != [op]:
            return False
        if self.graph.constants[value].key in self.kept or index_map is None or index_map.fill is not None:
            return False
        axis = _axis(index_map, op.rank - 1)
        others = [m for v, m in zip(op.inputs, op.maps, strict=True) if v is value]
        if any(m is None or m.fill is not None or _axis(m, op.rank - 1) != axis for m in others):
            return False
        return axis is not None and value.type.shape[axis] == op.extents[op.rank - 1]

    def _chain(self, product: Generic) -> _Chain:
        ops = [product]
        while (reader := self._only_reader(ops[-1].output)) is not None:
            if not _is_epilogue(reader, ops[-1].output) or is_copy(reader):
                break
            assert isinstance(reader, Generic)
            ops.append(reader)
        following = ops[-1].output
        while isinstance(reader := self._only_reader(following), Reshape):
            following = reader.output
        return _Chain(tuple(ops), reader is not None and not _may_leave_unfused(reader))

    def _only_reader(self, value: Value) -> Op | None:
        readers = self.users.get(value, [])
        return readers[0] if len(readers) == 1 and value not in self.live else None

    def _fit(self, chains: Sequence[_Chain]) -> bool:
        """Whether the chains are equal op by op and of the same length."""
        first = chains[0]
        if any(c.epilogue or len(c.ops) != len(first.ops) for c in chains):
            return False
        if any(c.ops[-1].output in self.live for c in chains):
            return False
        return all(
            self._equal_ops(first, chain, level) for chain in chains for level in range(1, len(first.ops))
        )

    def _equal_ops(self, first: _Chain, other: _Chain, level: int) -> bool:
        a, b = first.ops[level], other.ops[level]
        column = a.rank - 1
        kept = [e for d, e in enumerate(a.extents) if d != column]
        if (a.body, a.maps) != (b.body, b.maps) or a.output.type.dtype is not b.output.type.dtype:
            return False
        if _repeated(a) != _repeated(b):
            return False
        if kept != [e for d, e in enumerate(b.extents) if d != column]:
            return False
        if any(isinstance(n, Index) and n.dim == column for n in walk(a.body)):
            return False
        for i, (x, y, index_map) in enumerate(zip(a.inputs, b.inputs, a.maps, strict=True)):
            before = first.ops[level - 1].output, other.ops[level - 1].output
            if (x, y) == before:
                continue
            if x is y and (index_map is None or not _depends_on(index_map, column)):
                known = x not in self.place or self.place[x] < self.place[first.ops[0].output]
                if known:
                    continue
            if not (
                self._is_mergeable(a, i)
                and self._is_mergeable(b, i)
                and _type_without_columns(a, i) == _type_without_columns(b, i)
            ):
                return False
        return True

    # Rewriting --------------------------------------------------------------------------------
    def _join(self, chains: Sequence[_Chain]) -> list[Op]:
        """The merged ops, and a copy of its columns for every result."""
        total = sum(chain.columns for chain in chains)
        ops: list[Op] = []
        last: Value | None = None
        for level, op in enumerate(chains[0].ops):
            inputs: list[Value] = []
            joined: dict[Value, Value] = {}
            for i, value in enumerate(op.inputs):
                if last is not None and value is chains[0].ops[level - 1].output:
                    inputs.append(last)
                elif value in joined:
                    inputs.append(joined[value])
                elif value in self.constants and all(self._is_mergeable(c.ops[level], i) for c in chains):
                    joined[value] = self._constant([c.ops[level] for c in chains], i)
                    inputs.append(joined[value])
                else:
                    inputs.append(value)
            column = op.rank - 1
            shape = (*op.output.type.shape[:column], total)
            last = Value(fresh_name(self.taken, op.output.name), TensorType(shape, op.output.type.dtype))
            extents = (*shape, *op.extents[op.rank :])
            ops.append(replace(op, inputs=tuple(inputs), outputs=(last,), extents=extents))
        assert last is not None
        start = 0
        for chain in chains:
            part = chain.ops[-1].output
            reads = [Linear.dim(d) for d in range(part.type.rank - 1)]
            column_read = Linear.dim(part.type.rank - 1, 1, start)
            body = Arg(0, part.type.dtype)
            ops.append(Generic((last,), (part,), part.type.shape, (IndexMap((*reads, column_read)),), body))
            self.parts[part] = chains[0].ops[0].output
            start += chain.columns
        return ops

    def _constant(self, ops: Sequence[Generic], operand: int) -> Value:
        """The constants of ``ops`` concatenated along their columns."""
        values = [op.inputs[operand] for op in ops]
        index_map = ops[0].maps[operand]
        assert index_map is not None
        axis = _axis(index_map, ops[0].rank - 1)
        assert axis is not None
        shape = list(values[0].type.shape)
        shape[axis] = sum(_extent(v, axis) for v in values)
        joined = Value(fresh_name(self.taken, values[0].name), TensorType(tuple(shape), values[0].type.dtype))
        self.constants[joined] = _concatenated([(v, self.constants.pop(v)) for v in values], axis)
        return joined


def _scattered(graph: Graph) -> set[Value]:
    """What scatters alone read, to write it into states: their kernels make it."""
    producers, users, live = graph.producers(), graph.users(), graph.live_outs()
    values: set[Value] = set()
    for op in state_updates(graph):
        value: Value = op.inputs[2]
        reader: Op = op
        while users[value] == [reader] and value not in live:
            values.add(value)
            source = producers.get(value)
            if not isinstance(source, Reshape):
                break
            value, reader = source.inputs[0], source
    return values


def _concatenated(sources: Sequence[tuple[Value, Constant]], axis: int) -> Constant:
    def make(sources: Sequence[tuple[Value, Constant]]) -> Array:
        return np.concatenate([load(value, constant) for value, constant in sources], axis)

    keys = ", ".join(constant.key for _, constant in sources)
    if len(keys) > 160:
        keys = hashlib.sha256(keys.encode()).hexdigest()[:16]
    if axis != 0:
        return Constant(f"joined({keys})", partial(make, tuple(sources)))
    joined = JoinedLoad(tuple(partial(load, value, constant) for value, constant in sources))
    return Constant(f"joined({keys})", joined, tuple((c.key, v.type) for v, c in sources))


def _extent(value: Value, axis: int) -> int:
    extent = value.type.shape[axis]
    assert isinstance(extent, int)
    return extent


def _repeated(op: Generic) -> tuple[int, ...]:
    """For each operand, the first that is the same value: what is one constant has to be one everywhere."""
    return tuple(map(op.inputs.index, op.inputs))


def _type_without_columns(op: Generic, operand: int) -> tuple[object, ...]:
    """The type of a constant operand without its extent along the columns."""
    value, index_map = op.inputs[operand], op.maps[operand]
    axis = _axis(index_map, op.rank - 1) if index_map is not None else None
    return value.type.dtype, tuple(e for d, e in enumerate(value.type.shape) if d != axis)


def _axis(index_map: IndexMap, column: int) -> int | None:
    """The only axis of an operand that the columns' dim indexes, over its whole extent; otherwise None."""
    axes = [a for a, r in enumerate(index_map.results) if any(d == column for d, _ in r.terms)]
    return axes[0] if len(axes) == 1 and index_map.results[axes[0]].single == column else None


def _depends_on(index_map: IndexMap, dim: int) -> bool:
    return any(d == dim for r in index_map.results for d, _ in r.terms)


def _is_epilogue(op: Op, value: Value) -> bool:
    """Whether ``op`` is a map over exactly the elements of ``value``."""
    if not isinstance(op, Generic) or op.combiner is not None or op.extents != value.type.shape:
        return False
    reads = [m for v, m in zip(op.inputs, op.maps, strict=True) if v is value]
    return all(m is not None and _is_identity(m, op) for m in reads)


def _is_identity(index_map: IndexMap, op: Generic) -> bool:
    """Whether a map gives the indices of the op; in dims of extent 1 there is no other."""
    if index_map.fill is not None or len(index_map.results) != op.rank:
        return False
    return all(r.single == d or is_one(op.extents[d]) for d, r in enumerate(index_map.results))


def _may_leave_unfused(op: Op) -> bool:
    """Whether ``op`` may be left out of the kernel of the product whose result it reads without a loss. Maps
    may not, except cheap ones (a cast), which are recomputed in their readers.
    """
    if not isinstance(op, Generic) or op.combiner is not None or is_copy(op):
        return True
    return len(op.inputs) == 1 and is_light(op.body, 1)
