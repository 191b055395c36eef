"""Split the keys of attention with few rows over many workgroups of a GPU (Flash-Decoding).

Before (decoding: one row of 8 heads against 4096 keys; see `mansard.analysis.attention` for the form)::

    scores[h, s], masked[h, s], top[h], exps[h, s], total[h], probs[h, s], out[h, e]

After (32 chunks of 128 keys)::

    scores[h, c, s], masked[h, c, s], top[h, c], exps[h, c, s], total[h, c]
    part[c, h, e] = sum(s) exps[h, c, s] * v[128*c + s, e]
    row_max[h, e] = max(c) top[h, c]
    share[h, e, c] = exp(top[h, c] - row_max[h, e])
    out[h, e]     = sum(c) share[h, e, c] * part[c, h, e] / sum(c) share[h, e, c] * total[h, c]

The ops of the first line stay one kernel, the others become a second one. Where no chunk size divides the
number of keys, the last chunk reads zeros beyond them, which are masked. Flash-Decoding (Dao, Haziza, Massa
and Sizov, 2023).

In a persistent kernel, dispatches that depend on each other by memory which is updated in place wait for all
of the device. There the chunks read the caches as they were before the step, without the step's new row
(`mansard.passes.parallel.new_rows`), and its score and value join the others at the end::

    new_score[h]  = sum(d) q[h, d] * new_k[d]
    row_max[h]    = max(max(c) top[h, c], new_score[h])

All rows are written into the caches behind the last attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mansard import dims
from mansard.analysis.attention import AttentionForm, find_attention
from mansard.analysis.linear import over_loops, to_scalar
from mansard.analysis.specialise import is_join
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.scalar import Apply, Arg, Const, DimValue, Gather, Scalar, operands, walk
from mansard.ir.types import IndexMap, Linear, TensorType, Value
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.parallel.new_rows import NewRowOps, NewRows, find_new_rows

MAX_ROWS = 32
"""The most rows that share keys: with more, a workgroup has enough to do with each block of keys."""
MIN_KEYS = 512
"""With fewer keys, a second kernel costs more than it saves."""
CHUNKS = (32, 64, 128, 256, 512, 1024)
"""Candidate numbers of keys per chunk: the first that does not give many more workgroups than requested is
used (H200, 8 heads of keys, 1,000 positions: 6.9 us with 32 for 16 heads of queries, 10.4 with 64)."""
FEW_ROWS, FEW_KEYS = 8, 256
"""A persistent kernel has half of the requested workgroups at a time, and all workgroups of one attention
with few rows should run at once: chunks are as small as that allows, up to so many keys where these are
contiguous."""
FREE = 8
"""One in so many of those workgroups is left to what else may run then, the scores of the new rows. With none
free, steps of Qwen3-0.6B take 670 to 700 us on an H200 instead of 570 to 610."""
SUBGROUPS = 8
"""Subgroups of a workgroup of that attention's kernel, each of which reads any number of keys at a time."""
_LOWEST = float(np.finfo(np.float32).min)
F32 = DType.F32


def split_attention(graph: Graph, workgroups: int, *, one_launch: bool = False) -> Graph:
    """Split every attention whose rows give fewer than ``workgroups`` workgroups; the same graph if there is
    none. ``one_launch``: for persistent kernels."""
    producers, users, live = graph.producers(), graph.users(), set(graph.live_outs())
    splitter = _Splitter(graph)
    for op in graph.ops:
        form = find_attention(op, producers)
        chunks = _chunks(form, workgroups, one_launch) if form is not None else None
        if (
            form is None
            or chunks is None
            or not _closed(form, users, live)
            or _is_concatenated(form, producers)
        ):
            splitter.ops.append(op)
        else:
            new = find_new_rows(form, graph, producers, users) if one_launch else None
            splitter.split(form, chunks, new)
    if not splitter.changed:
        return graph
    after = graph.with_ops(splitter.result())
    # What read an updated cache is dead, and in front of the update.
    return eliminate_dead(after) if splitter.updates else after


def _closed(form: AttentionForm, users: Mapping[Value, Sequence[Op]], live: set[Value]) -> bool:
    inside = set(form.ops)
    return all(
        o.output not in live and all(u in inside for u in users[o.output])
        for o in inside
        if o is not form.weighted
    )


def _is_concatenated(form: AttentionForm, producers: Mapping[Value, Op]) -> bool:
    """Whether keys or values are concatenated from parts: a kernel over all keys reads each part from its own
    buffer."""
    sides = ((form.scores, form.key), (form.weighted, form.value))
    return any(is_join(producers.get(op.inputs[i])) for op, side in sides for i in operands(side))


@dataclass(frozen=True)
class _Chunks:
    """``count`` chunks of ``size`` keys; chunk ``c`` has the keys ``c * size + s``, or ``s * count + c`` if
    they are distributed ``cyclic``ally."""

    count: DimLike
    size: int
    cyclic: bool

    def key(self, chunk: int, place: int) -> Linear:
        """The key of the dims ``chunk`` and ``place`` of an op."""
        if self.cyclic:
            return Linear.dim(chunk).plus(Linear.dim(place, self.count))
        return Linear.dim(chunk, self.size).plus(Linear.dim(place))


def _chunks(form: AttentionForm, workgroups: int, one_launch: bool) -> _Chunks | None:
    """The chunks of an attention's keys, or None where splitting gains nothing with so many rows or so few
    keys."""
    weighted = form.weighted
    length = weighted.extents[-1]
    if form.partial is not None or dims.bounds(length)[1] < MIN_KEYS:
        return None
    shared = {d for p in form.key_index for d, _ in p.terms}
    rows = dims.product(e for d, e in enumerate(weighted.extents[: weighted.rank]) if d not in shared)
    heads = dims.product(e for d, e in enumerate(weighted.extents[: weighted.rank]) if d in shared)
    few = dims.bounds(rows)[1] <= MAX_ROWS * form.columns
    groups = max(1, dims.representative(heads, 8))
    if not few or groups >= workgroups:
        return None
    keys = dims.representative(length, dims.bounds(length)[1])
    wanted = max(1, keys * groups // workgroups)
    if one_launch and dims.bounds(rows)[1] <= FEW_ROWS * form.columns:
        at_once = workgroups // 2
        most = max(1, (at_once - at_once // FREE) // groups)
        size = max(CHUNKS[0], -(-keys // (most * SUBGROUPS)) * SUBGROUPS)
        cyclic = _may_be_cyclic(form)
        if size <= FEW_KEYS or cyclic:
            return _Chunks(dims.ceildiv(length, size), size, cyclic)
    size = next((c for c in CHUNKS if c >= wanted), CHUNKS[-1])
    return _Chunks(dims.ceildiv(length, size), size, cyclic=False)


def _may_be_cyclic(form: AttentionForm) -> bool:
    """Whether keys may be distributed cyclically: their number is known, and they do not lie in pages, whose
    place is looked up once for neighbours."""
    sides = (form.scores.body, form.weighted.body)
    pages = any(isinstance(node, Gather) for side in sides for node in walk(side))
    return isinstance(form.weighted.extents[-1], int) and not pages


class _Splitter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.taken = {v.name for v in graph.values()}
        self.ops: list[Op] = []
        self.changed = False
        self.updates: dict[Op, None] = {}
        """Of caches, behind everything that reads them as they were."""
        self.last = 0
        """The number of ops up to the last attention that reads one as it was."""
        self.reshaped: dict[tuple[Value, tuple[DimLike, ...]], Value] = {}

    def result(self) -> list[Op]:
        """All ops, with the updates of caches behind the last attention that reads one as it was."""
        kept = [
            [op for op in part if op not in self.updates]
            for part in (self.ops[: self.last], self.ops[self.last :])
        ]
        return [*kept[0], *self.updates, *kept[1]]

    def split(self, form: AttentionForm, chunks: _Chunks, new: NewRows | None) -> None:
        """Append the replacement of an attention's last product; its other ops become dead."""
        self.changed = True
        self.form, self.chunks, self.rows = form, chunks, new
        self.length = form.weighted.extents[-1]
        self.whole = isinstance(self.length, int) and self.length % chunks.size == 0
        self.new: dict[Value, Value] = {}
        for op in (form.scores, *reversed(form.chain)):
            self._split_op(op)
        self._merge(*self._softmax())

    def _generic(
        self,
        inputs: Sequence[Value],
        maps: Sequence[IndexMap | None],
        extents: Sequence[DimLike],
        body: Scalar,
        name: str,
        *,
        combiner: str | None = None,
        reduced: int = 1,
        result: Value | None = None,
    ) -> Value:
        rank = len(extents) - (reduced if combiner else 0)
        if result is None:
            name = fresh_name(self.taken, f"{self.form.weighted.output.name}.{name}")
            result = Value(name, TensorType(tuple(extents[:rank]), body.dtype))
        location = self.form.weighted.location
        self.ops.append(
            Generic(tuple(inputs), (result,), tuple(extents), tuple(maps), body, combiner, location=location)
        )
        return result

    # The chunks -----------------------------------------------------------------------------
    def _read(self, index_map: IndexMap | None, loops: Sequence[Linear], key: int) -> IndexMap | None:
        """An index map over split dims, with zero beyond the last key."""
        if index_map is None:
            return None
        moves = any(d == key for r in index_map.results for d, _ in r.terms)
        fill = 0 if moves and not self.whole and index_map.fill is None else index_map.fill
        return IndexMap(tuple(r.compose(loops) for r in index_map.results), fill)

    def _split_op(self, op: Generic) -> None:
        """An op between query and softmax, with its key dim split into chunk and position in it."""
        key = self.form.key_dim(op)
        place = self.chunks.key(key, key + 1)
        loops = [Linear.dim(d if d < key else d + 1) for d in range(len(op.extents))]
        loops[key] = place
        inputs: list[Value] = []
        maps: list[IndexMap | None] = []
        for value, index_map in zip(op.inputs, op.maps, strict=True):
            split_value = self.new.get(value)
            if split_value is None or index_map is None:
                inputs.append(self._before(value))
                maps.append(self._read(index_map, loops, key))
                continue
            results: list[Linear] = []
            for r in index_map.results:
                results += [Linear.dim(key), Linear.dim(key + 1)] if r.single == key else [r.compose(loops)]
            inputs.append(split_value)
            maps.append(IndexMap(tuple(results)))
        body = over_loops(op.body, loops)
        if op.output is self.form.masked and op is not self.form.scores:
            body = self._masked(op, inputs, maps, body, loops, place)
        extents = (*op.extents[:key], self.chunks.count, self.chunks.size, *op.extents[key + 1 :])
        out = self._generic(inputs, maps, extents, body, "chunks", combiner=op.combiner)
        if op is self.form.scores and op.output is self.form.masked and (self.rows or not self.whole):
            inputs, maps = [out], [IndexMap.identity(len(extents) - 1)]
            body = self._masked(op, inputs, maps, Arg(0, F32), loops, place)
            out = self._generic(inputs, maps, extents[:-1], body, "inside")
        self.new[op.output] = out

    def _masked(
        self,
        op: Generic,
        inputs: list[Value],
        maps: list[IndexMap | None],
        body: Scalar,
        loops: Sequence[Linear],
        place: Linear,
    ) -> Scalar:
        """A score of an op's, -inf beyond the last key and for the new row; what it reads is appended."""
        visible: list[Scalar] = []
        if not self.whole:
            length = self.length
            end = Const(length, DType.I64) if isinstance(length, int) else DimValue(length)
            visible.append(Apply("lt", (to_scalar(place), end), DType.BOOL))
        if self.rows is not None:
            sequence = self.rows.sequence_of(self.form.index[op])
            assert sequence is not None
            position = self.rows.position.at([sequence.compose(loops)])
            visible.append(Apply("ne", (to_scalar(place), position.behind(len(inputs))), DType.BOOL))
            inputs += position.inputs
            maps += position.maps
        for condition in visible:
            body = Apply("select", (condition, body, Const(float("-inf"), F32)), F32)
        return body

    def _before(self, value: Value) -> Value:
        """An operand as it is before its new row is written."""
        scatter = self.rows.scatters.get(value) if self.rows is not None else None
        return self._reshape(scatter.inputs[0], value.type.shape) if scatter is not None else value

    def _reshape(self, value: Value, shape: Sequence[DimLike]) -> Value:
        """A value under another shape, once for all its readers."""
        if value.type.shape == tuple(shape):
            return value
        known = self.reshaped.get((value, tuple(shape)))
        if known is None:
            name = fresh_name(self.taken, f"{self.form.weighted.output.name}.reshape")
            known = Value(name, TensorType(tuple(shape), value.type.dtype))
            self.ops.append(Reshape((value,), (known,), location=self.form.weighted.location))
            self.reshaped[value, tuple(shape)] = known
        return known

    def _softmax(self) -> tuple[Value, Value, Value]:
        """Maximum, sum and weighted sums of each chunk, in the order of the scores' dims."""
        form = self.form
        masked = self.new[form.masked]
        shape = masked.type.shape
        key = next(i for i, p in enumerate(form.masked_index) if p == Linear.dim(form.weighted.reduced[0]))
        rank = len(shape)
        others = [d for d in range(rank) if d != key + 1]
        inner = IndexMap(
            tuple(Linear.dim(rank - 1 if d == key + 1 else others.index(d)) for d in range(rank))
        )
        extents = (*(shape[d] for d in others), self.chunks.size)
        top = self._generic([masked], [inner], extents, Arg(0, F32), "top", combiner="max")
        row, power = IndexMap.of_dims(others), _power(Arg(0, F32), Arg(1, F32))
        exps = self._generic([masked, top], [IndexMap.identity(rank), row], shape, power, "exps")
        total = self._generic([exps], [inner], extents, Arg(0, F32), "total", combiner="add")
        return top, total, self._weighted(exps, key)

    def _weighted(self, exps: Value, key: int) -> Value:
        """The last product, per chunk; chunks are its first dim."""
        form, weighted = self.form, self.form.weighted
        rank = weighted.rank
        loops = [Linear.dim(d + 1) for d in range(rank)]
        loops.append(self.chunks.key(0, rank + 1))
        probability = form.softmax[-1].output
        at = [p.compose(loops) for p in form.masked_index]
        at[key : key + 1] = [Linear.dim(0), Linear.dim(rank + 1)]
        inputs = [exps if v is probability else self._before(v) for v in weighted.inputs]
        maps = [
            IndexMap(tuple(at)) if v is probability else self._read(m, loops, rank)
            for v, m in zip(weighted.inputs, weighted.maps, strict=True)
        ]
        body = over_loops(weighted.body, loops)
        extents = (self.chunks.count, *weighted.extents[:rank], self.chunks.size)
        return self._generic(inputs, maps, extents, body, "part", combiner="add")

    # The merge ------------------------------------------------------------------------------
    def _merge(self, top: Value, total: Value, part: Value) -> None:
        form, weighted = self.form, self.form.weighted
        rank = weighted.rank
        domain = weighted.extents[:rank]
        chunk = Linear.dim(rank)
        length = Linear.dim(weighted.reduced[0])
        row = IndexMap(tuple(chunk if p == length else p for p in form.masked_index))
        here = IndexMap((chunk, *(Linear.dim(d) for d in range(rank))))
        inner, point = IndexMap.identity(rank + 1), IndexMap.identity(rank)
        extents = (*domain, self.chunks.count)
        arg = Arg(0, F32)
        row_max = self._generic([top], [row], extents, arg, "row_max", combiner="max")
        largest: Scalar = Arg(1, F32)
        above: Scalar = arg
        below: Scalar = largest
        tops, at_tops = [row_max], [IndexMap(inner.results[:-1])]
        inputs, maps = list[Value](), list[IndexMap]()
        if self.rows is not None:
            ops = NewRowOps(form, self.rows, self._generic, self._reshape)
            score, value = ops.masked(), ops.value()
            at = IndexMap(tuple(p for p in form.masked_index if p != length))
            tops, at_tops = [row_max, score], [*at_tops, at]
            largest = Apply("max", (largest, Arg(2, F32)), F32)
            inputs, maps = [row_max, score, *value.inputs], [point, at, *value.maps]
            top_of_all = Apply("max", (Arg(2, F32), Arg(3, F32)), F32)
            power = _power(Arg(3, F32), top_of_all)
            above = Apply("add", (above, Apply("mul", (power, value.behind(4)), F32)), F32)
            below = Apply("add", (below, power), F32)
        share = self._generic([top, *tops], [row, *at_tops], extents, _power(arg, largest), "share")
        times = Apply("mul", (arg, Arg(1, F32)), F32)
        # As a separate map the product is not a contraction, and all of this becomes one kernel.
        scaled = self._generic([share, total], [inner, row], extents, times, "scaled")
        sums = self._generic([scaled], [inner], extents, arg, "sums", combiner="add")
        parts = self._generic([share, part], [inner, here], extents, times, "parts", combiner="add")
        divisor = below
        if form.divisor is not None:
            divisor = Apply("max", (divisor, Const(form.divisor, F32)), F32)
        elif dims.bounds(self.length)[0] == 0:  # a sum of nothing
            empty = Apply("eq", (DimValue(self.length), Const(0, DType.I64)), DType.BOOL)
            divisor = Apply("select", (empty, Const(1.0, F32), divisor), F32)
        body: Scalar = Apply("div", (above, divisor), F32)
        if form.guarded:
            zero = Const(0.0, F32)
            body = Apply("select", (Apply("gt", (below, zero), DType.BOOL), body, zero), F32)
        inputs, maps = [parts, sums, *inputs], [point, point, *maps]
        self._generic(inputs, maps, domain, body, "merged", result=weighted.output)
        if self.rows is not None:
            self.updates.update(dict.fromkeys(self.rows.scatters.values()))
            self.last = len(self.ops)


def _power(score: Scalar, largest: Scalar) -> Scalar:
    """The exponential of a score less the largest one of its row; 0 in a row without keys."""
    shift = Apply("max", (largest, Const(_LOWEST, F32)), F32)
    return Apply("exp", (Apply("sub", (score, shift), F32),), F32)
