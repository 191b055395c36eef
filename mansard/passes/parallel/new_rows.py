"""The rows that a step writes into the caches which its attention reads.

An attention in decoding reads keys and values behind the scatters that write those of the new position::

    keys[b, s, ...]  = scatter(cache, (b, position[b]), new_key[b])
    scores[..., s]   = sum(d) q[..., d] * keys[b, s, d]

It depends on all that computes these rows and, since a cache is written in place, waits until they are in
memory. What `find_new_rows` returns lets `mansard.passes.parallel.split_attention` read the cache as it was
before the step, without the new position, and the new rows where they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mansard import dims
from mansard.analysis.attention import AttentionForm
from mansard.analysis.linear import dim_scalar, over_loops, to_scalar
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op, Reshape, Scatter
from mansard.ir.producers import base_of
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar, operands, rewrite, walk
from mansard.ir.shapes import same_dim
from mansard.ir.types import IndexMap, Linear, Value
from mansard.passes.canonical.simplify import simplify_op

F32, I64 = DType.F32, DType.I64


@dataclass(frozen=True)
class Expression:
    """A scalar expression and what it reads: `Arg` ``i`` is an element of ``inputs[i]``."""

    inputs: tuple[Value, ...]
    maps: tuple[IndexMap, ...]
    body: Scalar

    def at(self, loops: Sequence[Linear]) -> Expression:
        """The same over other loops."""
        maps = tuple(m.compose(loops) for m in self.maps)
        return Expression(self.inputs, maps, over_loops(self.body, loops))

    def behind(self, count: int) -> Scalar:
        """The expression where its operands follow ``count`` others."""
        return rewrite(self.body, lambda n: replace(n, index=n.index + count) if isinstance(n, Arg) else n)


@dataclass(frozen=True)
class NewRows:
    """One new row of every cache that an attention reads, for each sequence."""

    scatters: Mapping[Value, Scatter]
    """What writes the rows, by the operands of the attention that are the caches with them. Their first dims
    are the sequences and the positions."""
    sequence: Linear
    """The sequence, over the loops of the attention's last product."""
    position: Expression
    """The new row's position, over the sequence as the only loop."""

    def sequence_of(self, index: Sequence[Linear]) -> Linear | None:
        """The sequence over the loops of an op which are these over those of the attention's last product."""
        if not self.sequence.terms:
            return self.sequence
        return Linear.dim(index.index(self.sequence)) if self.sequence in index else None


def find_new_rows(
    form: AttentionForm, graph: Graph, producers: Mapping[Value, Op], users: Mapping[Value, Sequence[Op]]
) -> NewRows | None:
    """The new rows of an attention all of whose keys and values are in states, and which alone reads these
    behind their updates; None where that is not so."""
    scatters, sequences = dict[Value, Scatter](), set[Linear]()
    everywhere = [Linear.dim(d) for d in range(len(form.weighted.extents))]
    for op, side, key, index in (
        (form.scores, form.key, form.scores_key, [*form.index[form.scores], Linear()]),
        (form.weighted, form.value, form.weighted.reduced[0], everywhere),
    ):
        for number in operands(side):
            value, reads = op.inputs[number], op.maps[number]
            if reads is None:
                return None
            moving = [n for n, r in enumerate(reads.results) if _uses(r, key)]
            if not moving:
                continue
            scatter = _update(value, graph, producers)
            if scatter is None or moving != [1] or reads.results[1].single != key or reads.fill is not None:
                return None
            if op is form.scores and _uses(reads.results[0], op.reduced[0]):
                return None
            scatters[value] = scatter
            sequence = reads.results[0].compose(index)
            kept = tuple(t for t in sequence.terms if not dims.is_one(form.weighted.extents[t[0]]))
            sequences.add(Linear(kept, sequence.offset))
    if len(sequences) != 1 or len({s.inputs[1] for s in scatters.values()}) != 1:
        return None
    position = _position(next(iter(scatters.values())), producers)
    rows = NewRows(scatters, next(iter(sequences)), position) if position is not None else None
    if rows is None or not all(_plain(op, form) for op in form.chain):
        return None
    if any(rows.sequence_of(form.index[op]) is None for op in (form.scores, *form.chain)):
        return None
    if not all(_read_only_by(scatter.output, {*form.ops}, users) for scatter in scatters.values()):
        return None
    return rows


def _uses(linear: Linear, dim: int) -> bool:
    return any(d == dim for d, _ in linear.terms)


def _update(value: Value, graph: Graph, producers: Mapping[Value, Op]) -> Scatter | None:
    """The scatter of single rows into a state whose result a value is."""
    shape, op = value.type.shape, producers.get(base_of(value, producers))
    if not isinstance(op, Scatter) or not op.unique or op.combiner is not None:
        return None
    target, indices, _ = op.inputs
    if not any(s.before is target and s.after is op.output for s in graph.states):
        return None
    if len(shape) < 2 or target.type.rank < 2 or indices.type.shape[1] != 2:
        return None
    sizes = zip(
        (*shape[:2], indices.type.shape[0]), (*target.type.shape[:2], target.type.shape[0]), strict=True
    )
    return op if all(same_dim(a, b) for a, b in sizes) else None


def _position(scatter: Scatter, producers: Mapping[Value, Op]) -> Expression | None:
    """Where a scatter writes the row of each sequence, if it writes them in the order of the sequences."""
    op = producers.get(base_of(scatter.inputs[1], producers))
    if not isinstance(op, Generic) or op.combiner is not None or not same_dim(op.extents[-1], 2):
        return None
    loops = [d for d, e in enumerate(op.extents[:-1]) if not dims.is_one(e)]
    if len(loops) > 1 or any(isinstance(node, Gather) for node in walk(op.body)):
        return None
    row, position = (_element(op, number) for number in (0, 1))
    first = Index(loops[0]) if loops else Const(0, row.body.dtype)
    if row.body != first:
        return None
    at = [Linear.dim(0) if d in loops else Linear() for d in range(len(op.extents))]
    maps = tuple(m for m in position.maps if m is not None)
    return Expression(position.inputs, maps, position.body).at(at)


def _element(op: Generic, number: int) -> Generic:
    """One of the elements that an op computes along its last dim, of which the others are not used."""
    last = len(op.extents) - 1
    loops = [Linear((), number) if d == last else Linear.dim(d) for d in range(last + 1)]
    body = over_loops(op.body, loops)
    simple = simplify_op(replace(op, body=body, maps=tuple(m.compose(loops) if m else None for m in op.maps)))
    assert isinstance(simple, Generic)
    return simple


def _plain(op: Generic, form: AttentionForm) -> bool:
    """Whether a map of the scores depends on the key only by its position and by the scores."""
    inside = {form.scores.output, *(o.output for o in form.chain)}
    key = form.key_dim(op)
    return not any(isinstance(node, Gather) for node in walk(op.body)) and all(
        value in inside or (reads is not None and not any(_uses(r, key) for r in reads.results))
        for value, reads in zip(op.inputs, op.maps, strict=True)
    )


def _read_only_by(value: Value, ops: set[Op], users: Mapping[Value, Sequence[Op]]) -> bool:
    return all(
        op in ops or (isinstance(op, Reshape) and _read_only_by(op.output, ops, users))
        for op in users.get(value, ())
    )


class NewRowOps:
    """Builds the ops of the new rows' scores and values. ``generic`` appends a `Generic` and ``reshape`` a
    `Reshape`, and both return the results."""

    def __init__(
        self,
        form: AttentionForm,
        rows: NewRows,
        generic: Callable[..., Value],
        reshape: Callable[[Value, Sequence[DimLike]], Value],
    ) -> None:
        self.form, self.rows, self.generic, self.reshape = form, rows, generic, reshape
        self.scored: dict[Value, Value] = {}

    def masked(self) -> Value:
        """The scores of the new rows behind the maps between product and softmax: of the shape of the scores
        without the keys."""
        form = self.form
        scores = self._map(form.scores)
        extents = self._extents(form.scores)
        value = self.generic(scores.inputs, scores.maps, extents, scores.body, "new_scores", combiner="add")
        self.scored[form.scores.output] = value
        for op in reversed(form.chain):
            part = self._map(op)
            value = self.generic(part.inputs, part.maps, self._extents(op), part.body, "new_masked")
            self.scored[op.output] = value
        return self._written(self.scored[form.masked])

    def _written(self, score: Value) -> Value:
        """The scores, -inf for rows whose position is outside of the cache: these are not written."""
        form, identity = self.form, IndexMap.identity(score.type.rank)
        op = form.chain[0] if form.chain else form.scores
        loops, key = self._loops(op), form.key_dim(op)
        sequence = self.rows.sequence_of(form.index[op])
        assert sequence is not None
        position = self.rows.position.at([sequence.compose([loop or Linear() for loop in loops])])
        place = position.behind(1)
        ends = (Const(0, I64), dim_scalar(op.extents[key]))
        inside = [Apply(name, (place, end), DType.BOOL) for name, end in zip(("ge", "lt"), ends, strict=True)]
        hidden = Const(float("-inf"), F32)
        body = Apply("select", (Apply("and", tuple(inside), DType.BOOL), Arg(0, F32), hidden), F32)
        inputs, maps = [score, *position.inputs], [identity, *position.maps]
        return self.generic(inputs, maps, score.type.shape, body, "new_written")

    def _loops(self, op: Generic) -> list[Linear | None]:
        """An op's loops over those without the key, which is None."""
        key = self.form.key_dim(op)
        return [None if d == key else Linear.dim(d - (d > key)) for d in range(len(op.extents))]

    def value(self) -> Expression:
        """The new rows' values, over the loops of the attention's last product without the keys."""
        weighted = self.form.weighted
        loops = [Linear.dim(d) for d in range(weighted.rank)]
        return self._over(weighted, self.form.value, [*loops, None], self.rows.sequence)

    def _extents(self, op: Generic) -> list[DimLike]:
        key = self.form.key_dim(op)
        return [e for d, e in enumerate(op.extents) if d != key]

    def _map(self, op: Generic) -> Expression:
        """What an op computes of the new rows, over its loops without the keys."""
        sequence = self.rows.sequence_of(self.form.index[op])
        assert sequence is not None
        return self._over(op, op.body, self._loops(op), sequence)

    def _over(
        self, op: Generic, body: Scalar, loops: Sequence[Linear | None], sequence: Linear
    ) -> Expression:
        """An expression of an op's over other loops, for the new rows instead of the key, which has
        no loop."""
        key, placed = loops.index(None), [loop or Linear() for loop in loops]
        used = sorted(operands(body))
        maps = list[IndexMap]()
        for number in used:
            reads = op.maps[number]
            assert reads is not None
            kept = tuple(r.compose(placed) for r in reads.results if not _uses(r, key))
            maps.append(IndexMap(kept, reads.fill))
        position = self.rows.position.at([sequence.compose(placed)])
        here = position.behind(len(used))

        def moved(node: Scalar) -> Scalar:
            if isinstance(node, Index):
                return here if node.dim == key else to_scalar(placed[node.dim])
            return replace(node, index=used.index(node.index)) if isinstance(node, Arg) else node

        inputs = tuple(self._row(op.inputs[number]) for number in used)
        if not any(isinstance(node, Index) and node.dim == key for node in walk(body)):
            return Expression(inputs, tuple(maps), rewrite(body, moved))
        return Expression((*inputs, *position.inputs), (*maps, *position.maps), rewrite(body, moved))

    def _row(self, value: Value) -> Value:
        """An operand for the new rows."""
        scatter = self.rows.scatters.get(value)
        if scatter is None:
            return self.scored.get(value, value)
        sequences, _, *rest = value.type.shape
        return self.reshape(scatter.inputs[2], (sequences, *rest))
