"""Analysis of an attention dispatch's loops: which are rows, heads, keys and depths, and how operands are
addressed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.analysis.attention import FEW_ROWS, AttentionForm, find_attention
from mansard.analysis.specialise import is_join
from mansard.codegen.index_masks import page_split
from mansard.codegen.kernel import KValue
from mansard.codegen.loop_nest import Nest, Read, Root
from mansard.codegen.loop_partition import LoopPiece, partition_loop
from mansard.codegen.schedules.common.base import Frame, estimate
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.ir.dispatch import Dispatch
from mansard.ir.ops import Generic, Reshape
from mansard.ir.producers import base_of
from mansard.ir.scalar import Arg, Gather, Index, Scalar, walk
from mansard.ir.types import Linear

Group = list[int]


def attention_form(dispatch: Dispatch) -> AttentionForm | None:
    """The attention that a dispatch computes, or None."""
    producers = {v: op for op in dispatch.ops for v in op.outputs}
    forms = (find_attention(op, producers) for op in reversed(dispatch.ops) if isinstance(op, Generic))
    return next((form for form in forms if form is not None), None)


class AttentionNest(Nest):
    """A nest whose roots are the scores (over domain, keys and depth), the weighted sum and the stored
    results. The softmax's reductions are not roots: the schedule carries them along the keys.
    """

    def __init__(self, dispatch: Dispatch, form: AttentionForm) -> None:
        self.form = form
        super().__init__(dispatch)

    def _roots(self) -> list[Root]:
        form, outputs = self.form, set(self.dispatch.outputs)
        self.weighted = self._root(form.weighted, form.weighted.output in outputs)
        at = tuple(p.compose(self.weighted.index) for p in form.index[form.scores])
        depth = self.new_loop(form.scores.extents[-1])
        self.scores = Root(form.scores, (*at, Linear.dim(depth)), (depth,), False)
        (self.key_loop,), self.depth_loop = self.weighted.inner, depth
        inside = {form.weighted, form.scores, *form.softmax, *form.chain}
        given = {op for op in form.read_elsewhere if op.output in outputs}
        self.statistics = [
            Root(op, (*(p.compose(self.weighted.index) for p in at), Linear.dim(self.key_loop)), (), True)
            for op, at in form.partial or ()
            if op in given
        ]
        stored = [
            self._root(op, True)
            for op in self.dispatch.ops
            if isinstance(op, Generic) and op not in inside and op.output in outputs
        ]
        if any(r.inner for r in stored):
            raise CodegenError(f"dispatch {self.dispatch.name}: an attention stores {stored[0].op.output}")
        return [self.scores, self.weighted, *self.statistics, *stored]

    def depth_and_columns(self) -> tuple[int, int]:
        """The length of a key, and of a row of the result."""
        return self.form.depth, self.form.columns

    def masked_index(self) -> tuple[Linear, ...]:
        """The index at which the masked scores are read, over the loops."""
        return tuple(p.compose(self.weighted.index) for p in self.form.masked_index)

    def factor(self, root: Root, factor: Scalar) -> Root:
        """One factor of a product as a separate root, for analysis."""
        return dataclasses.replace(root, op=dataclasses.replace(root.op, body=factor), stores=False)

    def parts(self) -> list[LoopPiece]:
        """The ranges of keys that are in separate buffers, for keys or values."""
        sides = [self.factor(self.scores, self.form.key), self.factor(self.weighted, self.form.value)]
        if not isinstance(self.extents[self.key_loop], int):
            return []
        return partition_loop(self, self.key_loop, sides)

    def key_block(self, block: int) -> int:
        """``block`` keys, or those of a page where the keys or values lie in smaller ones."""
        nodes = (node for op in self.dispatch.ops if isinstance(op, Generic) for node in walk(op.body))
        indices = (
            part for node in nodes if isinstance(node, Gather) for i in node.indices for part in walk(i)
        )
        sizes = [split[1] for part in indices if (split := page_split(part)) is not None]
        return min([block, *sizes])

    def mask_reads(self) -> list[Read]:
        """The buffer reads of the maps between the scores and the softmax."""
        producer = self.producers[self.form.masked]
        if not isinstance(producer, Generic) or producer is self.form.scores:
            return []
        return self.reads(Root(producer, self.masked_index(), (), False))


@dataclass(frozen=True)
class AttentionLoops:
    """The loop groups by role.

    ``lane`` is the longest loop of query rows (None: a single row), ``rows`` all loops of query rows,
    ``heads`` the loops that select keys and values, ``depth`` the loop of the result's columns.
    """

    lane: Group | None
    rows: list[Group]
    heads: list[Group]
    column: Group | None


def classify(nest: AttentionNest) -> AttentionLoops:
    """Classify the domain's loops by the operands that they index."""
    positions = [p for root in nest.roots for p in nest.positions(root)]
    groups = nest.collapsed(range(nest.domain), positions)
    scored = {loop for p in nest.scores.index for loop, _ in p.terms}
    sides = [
        *nest.positions(nest.factor(nest.scores, nest.form.key)),
        *nest.positions(nest.factor(nest.weighted, nest.form.value)),
    ]
    shared = {loop for p in sides for loop, _ in p.terms}
    columns = [g for g in groups if not scored & set(g)]
    if len(columns) > 1:
        raise CodegenError(f"dispatch {nest.dispatch.name}: the columns of an attention are not one loop")
    rows = [g for g in groups if scored & set(g) and not shared & set(g)]
    heads = [g for g in groups if scored & set(g) and shared & set(g)]
    lane = max(rows, key=lambda g: estimate(nest.total(g)), default=None)
    return AttentionLoops(lane, rows, heads, columns[0] if columns else None)


@dataclass(frozen=True)
class WorkDistribution:
    """How loops are distributed over workgroups of a GPU: ``rows`` in tiles, ``rest`` one index per
    workgroup."""

    rows: list[Group]
    rest: list[Group]


def distribute(nest: AttentionNest, loops: AttentionLoops) -> WorkDistribution:
    """Tiles run along the longest loop of rows, or along all of them if that one is short."""
    if loops.lane is None or dims.bounds(nest.total(loops.lane))[1] <= FEW_ROWS:
        return WorkDistribution(loops.rows, loops.heads)
    return WorkDistribution([loops.lane], [*loops.heads, *(g for g in loops.rows if g is not loops.lane)])


def is_plain_f32(nest: AttentionNest, root: Root, factor: Scalar) -> bool:
    """Whether a factor is a plain f32 buffer, so that single elements cost only the load."""
    if not isinstance(factor, Arg):
        return False
    value = root.op.inputs[factor.index]
    while isinstance(op := nest.producers.get(value), Reshape) or is_join(op):
        assert op is not None
        value = op.inputs[0]
    return value not in nest.producers and value.type.dtype is DType.F32


def needs_place(nest: AttentionNest, special: Mapping[Generic, Generic]) -> bool:
    """Whether the maps of the scores, with those in ``special`` replaced, depend on row and key."""
    producer = nest.producers[nest.form.masked]
    stack = [producer] if isinstance(producer, Generic) and producer is not nest.form.scores else []
    while stack:
        op = stack.pop()
        for node in walk(special.get(op, op).body):
            if isinstance(node, (Index, Gather)):
                return True
            if isinstance(node, Arg):
                source = nest.producers.get(base_of(op.inputs[node.index], nest.producers))
                if source is nest.form.scores:
                    continue
                if not isinstance(source, Generic):
                    return True
                stack.append(source)
    return False


def each_part(
    frame: Frame, nest: AttentionNest, end: KValue, block: int, emit: Callable[[KValue, KValue], None]
) -> None:
    """Emit ``emit(first, count)`` for blocks of keys up to ``end``, none of which spans two parts."""

    def step(first: KValue, count: KValue, _: Sequence[KValue]) -> Sequence[KValue]:
        emit(first, count)
        return ()

    fold_parts(frame, nest, end, block, (), step)


def fold_parts(
    frame: Frame,
    nest: AttentionNest,
    end: KValue,
    block: int,
    inits: Sequence[KValue],
    step: Callable[[KValue, KValue, Sequence[KValue]], Sequence[KValue]],
    start: int = 0,
) -> Sequence[KValue]:
    """`each_part` with loop-carried values, which ``step(first, count, values)`` maps to the next ones.
    ``start``: the first key, of keys that lie in one part."""
    b, ev = frame.b, frame.ev
    parts = nest.parts()
    blocks = {nest.key_loop: block} if len(parts) < 2 and block & (block - 1) == 0 else {}
    if not start and len(parts) == 1 and b.constant_value(end) == nest.extents[nest.key_loop] == block:
        with ev.scope():  # a single block needs no loop
            return step(b.idx(0), b.idx(block), inits)
    if len(parts) < 2:
        bounds: list[tuple[KValue, KValue, LoopPiece | None]] = [(b.idx(start), end, None)]
    else:
        tops = [frame.minimum(b.idx(part.upper), end) for part in parts]
        bounds = [(b.idx(part.lower), top, part) for part, top in zip(parts, tops, strict=True)]
    values = inits
    for lower, upper, part in bounds:
        with b.for_(lower, upper, b.idx(block), inits=values) as loop, ev.scope():
            ev.specialised = part.ops if part is not None else {}
            ev.blocks = {key: (loop.index, size) for key, size in blocks.items()}
            count = frame.minimum(b.idx(block), b.sub(upper, loop.index))
            loop.yield_(*step(loop.index, count, loop.carried))
        values = loop.results
        ev.specialised, ev.blocks = {}, {}
    return values
