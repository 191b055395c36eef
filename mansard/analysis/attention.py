"""Find attention in its lowered form: a product, maps, a row softmax and another product.

The form is what `mansard.passes.canonical.lower_attention` makes and what models spell out by hand::

    scores[i, s]  = sum(d) q[i, d] * k[s, d]
    masked[i, s]  = any map of the scores (scale, mask, bias)
    top[i]        = max(s) masked[i, s]
    exps[i, s]    = exp(masked[i, s] - top[i])           or max(top, literal)
    total[i]      = sum(s) exps[i, s]
    probs[i, s]   = exps[i, s] / total[i]                or max(total, literal); or 0 unless total > 0
    out[i, e]     = sum(s) probs[i, s] * v[s, e]

``i`` and ``e`` are any dims in any order. Everything is followed over the iteration dims of the last
product, so permuted reads are found as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from mansard import dims
from mansard.dtypes import DType
from mansard.ir.dispatch import is_contraction
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Arg, Const, Scalar, operands
from mansard.ir.types import Linear, Value

_LOW = -1e38
FEW_ROWS = 16
"""Up to this many query rows per head share a tile with those of the other heads on the same keys, of which
each is then read about once."""

Index = tuple[Linear, ...]
"""An op's own dims over the iteration dims of the last product."""


@dataclass(frozen=True)
class AttentionForm:
    """The ops of one attention and where each is computed, over the iteration dims of ``weighted``.

    ``query`` and ``key`` are the factors in the body of ``scores``, ``value`` the one in that of
    ``weighted``; ``probability`` is the operand of ``weighted`` that reads the softmax.
    ``index`` gives the parallel dims of ``scores``, and all dims of the maps ``chain`` between it and
    the softmax (outermost first). ``divisor`` is the least divisor of a row, None for the bare sum.
    """

    weighted: Generic
    scores: Generic
    masked: Value
    chain: tuple[Generic, ...]
    softmax: tuple[Generic, ...]
    query: Scalar
    key: Scalar
    value: Scalar
    index: Mapping[Generic, Index]
    masked_index: Index
    divisor: float | None
    guarded: bool = False
    """Whether rows whose sum is not positive, which have NaN among their scores, give 0."""
    partial: tuple[tuple[Generic, Index], tuple[Generic, Index]] | None = None
    """For the weighted sum of the bare exponentials (`mansard.passes.parallel.split_attention`): the ops
    that give
    the rows' maxima and sums, and where."""

    @property
    def key_index(self) -> Index:
        """The index of the keys, with the depth and the other dims of the scores at 0."""
        scores = self.scores
        places = (*self.index[scores], *(Linear() for _ in scores.reduced))
        reads = [m for i in operands(self.key) if (m := scores.maps[i]) is not None]
        return tuple(r.compose(places) for m in reads for r in m.results)

    def key_dim(self, op: Generic) -> int:
        """The dim of ``scores``, or of a map behind it, that runs along the keys."""
        return self.index[op].index(Linear.dim(self.weighted.reduced[0]))

    @property
    def scores_key(self) -> int:
        """`key_dim` of ``scores``."""
        return self.key_dim(self.scores)

    @property
    def is_cyclic(self) -> bool:
        """Whether it has every n-th key of a buffer: a chunk of keys that are distributed cyclically."""
        reads = [m for i in operands(self.key) if (m := self.scores.maps[i]) is not None]
        steps = (dict(r.terms).get(self.scores_key, 1) for m in reads for r in m.results)
        return any(step != 1 for step in steps)

    @property
    def depth(self) -> int:
        """Elements of a query and of a key."""
        depth = self.scores.extents[-1]
        assert isinstance(depth, int)
        return depth

    @property
    def columns(self) -> int:
        """Elements of a value, and of a row of the result."""
        scored = {d for p in self.masked_index for d, _ in p.terms}
        unscored = (e for d, e in enumerate(self.weighted.extents[: self.weighted.rank]) if d not in scored)
        columns = dims.product(unscored)
        assert isinstance(columns, int)
        return columns

    @property
    def read_elsewhere(self) -> set[Generic]:
        """The ops other than ``weighted`` whose results are read outside the form."""
        return {op for op, _ in self.partial} if self.partial is not None else set()

    @property
    def ops(self) -> tuple[Generic, ...]:
        """Every op of the form."""
        return (self.scores, *self.chain, *self.softmax, self.weighted)


def find_attention(weighted: Op, producers: Mapping[Value, Op]) -> AttentionForm | None:
    """The attention whose last product is ``weighted``, or None."""
    if not isinstance(weighted, Generic) or not is_contraction(weighted) or len(weighted.reduced) != 1:
        return None
    return _Finder(weighted, producers).run()


class _Finder:
    def __init__(self, weighted: Generic, producers: Mapping[Value, Op]) -> None:
        self.weighted, self.producers = weighted, producers
        self.extents = weighted.extents
        self.length = Linear.dim(weighted.reduced[0])
        self.index: dict[Generic, Index] = {}
        self.chain: list[Generic] = []
        self.apart: set[Op] = set()  # maps that no product of this attention leads to

    def run(self) -> AttentionForm | None:
        factors = _factors(self.weighted.body)
        if factors is None:
            return None
        for weight, value in (factors, factors[::-1]):
            if isinstance(weight, Arg) and operands(value).isdisjoint({weight.index}):
                form = self._softmax(weight.index, value)
                if form is not None:
                    return form
        return None

    def _map(self, value: Value) -> Generic | None:
        op = self.producers.get(value)
        return op if isinstance(op, Generic) and op.combiner is None else None

    def _read(self, op: Generic, operand: int, index: Index) -> Index | None:
        """Where ``op`` at ``index`` reads an operand."""
        index_map = op.maps[operand]
        if index_map is None or getattr(index_map, "fill", None) is not None:
            return None
        return tuple(self._plain(r.compose(index)) for r in index_map.results)

    def _plain(self, linear: Linear) -> Linear:
        """The position without loops that have one iteration."""
        kept = tuple(t for t in linear.terms if not dims.is_one(self.extents[t[0]]))
        return Linear(kept, linear.offset)

    # Softmax --------------------------------------------------------------------------------
    def _softmax(self, operand: int, value: Scalar) -> AttentionForm | None:
        everywhere = tuple(Linear.dim(d) for d in range(len(self.extents)))
        probs = self._map(self.weighted.inputs[operand])
        at = self._read(self.weighted, operand, everywhere)
        if probs is None or at is None or probs.output.type.dtype is not DType.F32:
            return None
        if isinstance(probs.body, Apply) and probs.body.op == "exp":
            return self._partial(probs, at, value)
        quotient, guard = _guarded(probs.body)
        if not (isinstance(quotient, Apply) and quotient.op == "div"):
            return None
        above, below = quotient.args
        floor = floored(below)
        if not isinstance(above, Arg) or floor is None or guard not in (None, below):
            return None
        exps, exps_at = self._map(probs.inputs[above.index]), self._read(probs, above.index, at)
        shifted = _shifted(exps.body) if exps is not None else None
        if exps is None or exps_at is None or shifted is None:
            return None
        total = self._reduction(probs, floor[0].index, at, "add", exps.output, exps_at)
        masked, masked_at = exps.inputs[shifted[0].index], self._read(exps, shifted[0].index, exps_at)
        if total is None or masked_at is None:
            return None
        top = self._reduction(exps, shifted[1].index, exps_at, "max", masked, masked_at)
        if top is None:
            return None
        softmax = (top, exps, total, probs)
        form = self._form(value, self._scores(masked, masked_at), masked, masked_at, softmax, floor[1])
        return dataclasses.replace(form, guarded=True) if form is not None and guard is not None else form

    def _partial(self, exps: Generic, exps_at: Index, value: Scalar) -> AttentionForm | None:
        """The form without its last division, where another op reads the row sums."""
        shifted = _shifted(exps.body)
        if shifted is None:
            return None
        masked, masked_at = exps.inputs[shifted[0].index], self._read(exps, shifted[0].index, exps_at)
        top_at = self._read(exps, shifted[1].index, exps_at)
        if masked_at is None or top_at is None:
            return None
        top = self._reduction(exps, shifted[1].index, exps_at, "max", masked, masked_at)
        sums = [o for o in self.producers.values() if isinstance(o, Generic) and o.inputs == (exps.output,)]
        if top is None or len(sums) != 1 or sums[0].combiner != "add" or not isinstance(sums[0].body, Arg):
            return None
        (total,) = sums
        if len(total.reduced) != 1 or self._read(total, 0, (*top_at, self.length)) != exps_at:
            return None
        form = self._form(value, self._scores(masked, masked_at), masked, masked_at, (top, exps, total), None)
        if form is None:
            return None
        return dataclasses.replace(form, partial=((top, top_at), (total, top_at)))

    def _reduction(
        self, reader: Generic, operand: int, at: Index, combiner: str, value: Value, value_at: Index
    ) -> Generic | None:
        """The reduction behind an operand, if it combines ``value`` at ``value_at`` along the keys."""
        reduction = self.producers.get(reader.inputs[operand])
        where = self._read(reader, operand, at)
        if not isinstance(reduction, Generic) or reduction.combiner != combiner or where is None:
            return None
        if len(reduction.reduced) != 1 or reduction.inputs != (value,) or not isinstance(reduction.body, Arg):
            return None
        return reduction if self._read(reduction, 0, (*where, self.length)) == value_at else None

    # Scores ---------------------------------------------------------------------------------
    def _scores(self, value: Value, at: Index) -> Generic | None:
        """The one product that ``value`` at ``at`` is a map of; notes the maps on the way."""
        op = self.producers.get(value)
        if not isinstance(op, Generic) or op in self.apart or self.index.get(op, at) != at:
            return None
        if op.combiner is not None:
            if not is_contraction(op):
                return None
            self.index[op] = at
            return op
        sources = {s for s in (self._through(op, i, at) for i in operands(op.body)) if s is not None}
        if len(sources) != 1:
            self.apart.add(op)
            return None
        if op not in self.index:
            self.index[op] = at
            self.chain.append(op)
        return next(iter(sources))

    def _through(self, op: Generic, operand: int, at: Index) -> Generic | None:
        where = self._read(op, operand, at)
        return self._scores(op.inputs[operand], where) if where is not None else None

    def _form(
        self,
        value: Scalar,
        scores: Generic | None,
        masked: Value,
        masked_at: Index,
        softmax: tuple[Generic, ...],
        divisor: float | None,
    ) -> AttentionForm | None:
        if scores is None or len(scores.reduced) != 1 or scores.body.dtype is not DType.F32:
            return None
        depth = scores.extents[scores.reduced[0]]
        sides = _factors(scores.body)
        keys = [d for d, p in enumerate(self.index[scores]) if p == self.length]
        if not isinstance(depth, int) or sides is None or len(keys) != 1:
            return None
        walks = [_walks(scores, side, keys[0]) for side in sides]
        if sorted(walks) != [False, True]:
            return None
        if not self._one_column(masked_at):
            return None
        query, key = sides if walks[1] else sides[::-1]
        index = self.index
        return AttentionForm(
            self.weighted,
            scores,
            masked,
            tuple(self.chain),
            softmax,
            query,
            key,
            value,
            index,
            masked_at,
            divisor,
        )

    def _one_column(self, masked_at: Index) -> bool:
        """Whether the result has at most one dim that the softmax has not, of a known extent."""
        scored = {d for p in masked_at for d, _ in p.terms}
        unscored = [e for d, e in enumerate(self.extents) if d not in scored and not dims.is_one(e)]
        return len(unscored) <= 1 and all(isinstance(e, int) for e in unscored)


def _factors(body: Scalar) -> tuple[Scalar, Scalar] | None:
    if isinstance(body, Apply) and body.op == "mul" and body.dtype is DType.F32:
        return body.args[0], body.args[1]
    return None


def _guarded(body: Scalar) -> tuple[Scalar, Scalar | None]:
    """``q`` or ``select(total > 0, q, 0)``: the quotient and the total."""
    if isinstance(body, Apply) and body.op == "select":
        condition, then, other = body.args
        if (
            isinstance(condition, Apply)
            and condition.op == "gt"
            and _is_zero(condition.args[1])
            and _is_zero(other)
        ):
            return then, condition.args[0]
    return body, None


def _is_zero(node: Scalar) -> bool:
    return isinstance(node, Const) and node.value == 0


def floored(node: Scalar) -> tuple[Arg, float | None] | None:
    """``x`` or ``max(x, literal)``: the operand and the literal."""
    if isinstance(node, Arg):
        return node, None
    if isinstance(node, Apply) and node.op == "max":
        for arg, other in (node.args, node.args[::-1]):
            if isinstance(arg, Arg) and isinstance(other, Const):
                return arg, float(other.value)
    return None


def _shifted(body: Scalar) -> tuple[Arg, Arg] | None:
    """The operands of ``exp(x - top)``; ``top`` may have a floor that only rows without a key reach."""
    if not (isinstance(body, Apply) and body.op == "exp"):
        return None
    (inner,) = body.args
    if not (isinstance(inner, Apply) and inner.op == "sub" and isinstance(inner.args[0], Arg)):
        return None
    top = floored(inner.args[1])
    if top is None or (top[1] is not None and top[1] > _LOW):
        return None
    return inner.args[0], top[0]


def _walks(op: Generic, side: Scalar, dim: int) -> bool:
    """Whether a factor is read along a dim."""
    for operand in operands(side):
        index_map = op.maps[operand]
        if index_map is None or any(d == dim for r in index_map.results for d, _ in r.terms):
            return True
    return False
