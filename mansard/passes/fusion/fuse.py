"""Fusion: group ops into dispatches, each of which becomes one kernel.

Before (a linear layer with GELU, then layer norm; ``-`` is one op)::

    - contraction  - map(bias)  - map(gelu)  - reduce_add  - map  - reduce_add  - map  - map

After::

    [contraction map map]  [reduce_add map reduce_add map map]

A group is *elementwise* (maps over one domain), *contraction* (one sum of products and its
epilogue), *rows* (reductions over inner dims of one domain and maps over domain x inner dims:
softmax, norms) or, if enabled, *attention* (two products with a row softmax between them, over the domain of
the second). Inside a group nothing is stored: maps are evaluated where they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from mansard import dims
from mansard.analysis.attention import AttentionForm
from mansard.analysis.linear import within
from mansard.analysis.loops import refine
from mansard.dims import DimLike
from mansard.ir.dispatch import Dispatch, DispatchGraph, is_contraction
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Assert, Generic, Op, Reshape
from mansard.ir.region import Partition
from mansard.ir.scalar import Gather, walk
from mansard.ir.types import Linear
from mansard.passes.fusion.attention import merge_attention
from mansard.passes.fusion.groups import (
    MAX_BINDINGS,
    MAX_OPS,
    Group,
    Groups,
    dependencies,
    flat_identity,
    flat_read,
    map_cost,
)
from mansard.passes.fusion.outputs import materialise_outputs
from mansard.passes.fusion.products import join_products
from mansard.passes.fusion.prologues import pull_prologues, push_squares
from mansard.passes.fusion.row_siblings import join_siblings
from mansard.passes.fusion.scatters import join_scatters, separate_scatters
from mansard.passes.fusion.transposed_results import join_transposes

MAX_AGAIN = 16
"""The most arithmetic of a map that is computed again for another element of its row."""

MIN_ROWS = 16
"""Fewer rows than this occupy fewer cores than a map over all their elements."""
MAX_INLINE = 24
"""The most arithmetic of a map over few rows that is a part of their dispatch, which computes it for each of
its readers: an exponential and its argument, but no round of a search. Alone, a map is computed once, on all
cores."""


def fuse(
    graph: Graph,
    *,
    attention: Callable[[AttentionForm], bool] | None = None,
    products: Callable[[Dispatch], bool] | None = None,
    transposes: Callable[[Dispatch], bool] | None = None,
    partition: Callable[[Graph], Mapping[str, Partition]] | None = None,
    max_bindings: int = MAX_BINDINGS,
) -> DispatchGraph:
    """Group the ops of a canonical graph (Generic, Reshape, Scatter, Sort, Scan, Assert) into dispatches.

    ``attention`` decides which attentions become one dispatch each: those that every target's schedules
    support. ``products`` decides which products are one dispatch with each other, or with a norm before them.
    ``transposes`` decides which results are stored in the order of a transpose after them.
    ``partition`` gives the regions of the graph by device: a dispatch lies in a region as a whole or not at
    all. ``max_bindings`` are the buffers that a dispatch may have.
    """
    graph = separate_scatters(materialise_outputs(graph))
    partitions = partition(graph) if partition is not None else {}
    return _Fusion(graph, partitions.values(), max_bindings).run(attention, products, transposes, partitions)


class _Fusion(Groups):
    def run(
        self,
        attention: Callable[[AttentionForm], bool] | None,
        products: Callable[[Dispatch], bool] | None,
        transposes: Callable[[Dispatch], bool] | None,
        partitions: Mapping[str, Partition],
    ) -> DispatchGraph:
        asserts = []
        for number, op in enumerate(self.graph.ops):
            if isinstance(op, Assert):
                asserts.append(op)
            elif isinstance(op, Generic):
                self._assign_group(op, number)
            elif not isinstance(op, Reshape):
                self.add("special", (), 1, op, number)
        if attention is not None:
            merge_attention(self, attention)
        users = self.users()
        for group in tuple(self.groups):
            push_squares(self, group, users)
        pull_prologues(self)
        join_siblings(self)
        if products is not None:
            join_products(self, products)
        join_scatters(self)
        if transposes is not None:
            join_transposes(self, transposes)
        return DispatchGraph(
            self.graph, tuple(self._dispatches()), self.bases, tuple(asserts), partitions=partitions
        )

    # Forming groups -------------------------------------------------------------------------
    def _assign_group(self, op: Generic, number: int) -> None:
        for group in self._candidates(op):
            joined = self._join_reduction(op, group) if op.combiner else self._join_map(op, group)
            if joined is None:
                continue
            level, domain = joined
            group.domain = domain
            group.ops.append(op)
            group.last = number
            self.group_of[op.output] = group
            self.level[op.output] = level
            return
        parallel = op.extents[: op.rank]
        if op.combiner is None:
            self.add("elementwise", parallel, 1, op, number)
        else:
            inner = dims.product(op.extents[op.rank :])
            self.add("contraction" if is_contraction(op) else "rows", parallel, inner, op, number)

    def _candidates(self, op: Generic) -> list[Group]:
        """Groups that produce an operand and can include the op without a cycle, latest first."""
        producers = {g for v in op.inputs if (g := self.group_of.get(self.base(v))) is not None}
        regions = self.regions(op)
        candidates = [
            g
            for g in sorted(producers, key=lambda g: -g.last)
            if g.kind != "special"
            and g.regions == regions
            and len(g.ops) < MAX_OPS
            and len(self.bindings([*g.ops, op])) <= self.max_bindings
        ]
        if not candidates or len(producers) == 1:
            return candidates
        needed = dependencies(self, producers, candidates)
        return [g for g in candidates if g not in needed]

    def _join_map(self, op: Generic, group: Group) -> tuple[str, tuple[DimLike, ...]] | None:
        whole = len(op.extents)
        if dims.product(op.extents) == group.total:
            domain = refine(group.domain, op.extents)
            if domain is not None and self._reads_fit(op, group, whole, whole):
                return "point", domain
        if group.kind != "rows" or self._is_better_alone(op, group):
            return None
        for split in range(whole + 1):
            if dims.product(op.extents[split:]) != group.inner:
                continue
            domain = refine(group.domain, op.extents[:split])
            if domain is not None and self._reads_fit(op, group, split, whole):
                return "inner", domain
        return None

    @staticmethod
    def _is_better_alone(op: Generic, group: Group) -> bool:
        return map_cost(op) > MAX_INLINE and dims.bounds(group.total)[0] < MIN_ROWS

    def _join_reduction(self, op: Generic, group: Group) -> tuple[str, tuple[DimLike, ...]] | None:
        if group.kind != "rows" or is_contraction(op):
            return None
        if dims.product(op.extents[op.rank :]) != group.inner:
            return None
        domain = refine(group.domain, op.extents[: op.rank])
        if domain is None or not self._reads_fit(op, group, op.rank, len(op.extents)):
            return None
        return "point", domain

    def _reads_fit(self, op: Generic, group: Group, split: int, whole: int) -> bool:
        """Whether the op reads each value of the group only at the point where the group computes it."""
        for i, value in enumerate(op.inputs):
            base = self.base(value)
            if self.group_of.get(base) is not group:
                continue
            wanted = split if self.level[base] == "point" else whole
            if flat_read(op, i) == flat_identity(op.extents, wanted):
                if self.level[base] == "inner" and not self._has_loops_of(op, self.producers[base]):
                    return False
                continue
            if not self._reads_row(op, i, group, split):
                return False
        return not any(
            isinstance(n, Gather) and self.group_of.get(self.base(op.inputs[n.operand])) is group
            for n in walk(op.body)
        )

    @staticmethod
    def _has_loops_of(op: Generic, source: Op) -> bool:
        """Whether an op's loops, or parts of them, are those of what it reads: a line of 16 elements does not
        say which of 2 rows of 8 an element is in."""
        loops = tuple(d for d in op.extents if not dims.is_one(d))
        return not isinstance(source, Generic) or refine(loops, source.extents[: source.rank]) == loops

    def _reads_row(self, op: Generic, operand: int, group: Group, split: int) -> bool:
        """Whether a map reads another element of its row that a cheap map of the group computes, which is
        then computed again: the other half of a vector, for a rotary embedding."""
        base = self.base(op.inputs[operand])
        source, reads = self.producers[base], flat_read(op, operand)
        if op.combiner is not None or self.level[base] != "inner" or reads is None:
            return False
        if not isinstance(source, Generic) or source.combiner is not None or map_cost(source) > MAX_AGAIN:
            return False
        point = Linear(tuple(t for t in reads.terms if t[0] < split))
        rest = Linear(tuple(t for t in reads.terms if t[0] >= split), reads.offset)
        rows = tuple((d, dims.mul(c, group.inner)) for d, c in flat_identity(op.extents[:split], split).terms)
        return point.terms == rows and within(rest, op.extents, group.inner)

    # Result ---------------------------------------------------------------------------------
    def _dispatches(self) -> Iterable[Dispatch]:
        taken: set[str] = set()
        live = self.live()
        users = self.users()
        for group in self.ordered():
            defined = {v for op in group.ops for v in op.outputs}
            reads = dict.fromkeys(self.base(v) for op in group.ops for v in op.inputs)
            # Who computes a value again does not read it.
            outputs = tuple(
                v
                for op in group.ops
                for v in op.outputs
                if v in live or any(g is not group and op not in g.ops for g in users.get(v, ()))
            )
            inputs = tuple(v for v in reads if v not in defined)
            name = fresh_name(taken, _name(group))
            yield Dispatch(
                name, self.with_reshapes(group.ops), inputs, outputs or group.ops[-1].outputs, group.domain
            )


def _name(group: Group) -> str:
    last = group.ops[-1]
    if last.in_place_operand is not None:
        return last.name
    if group.kind in ("contraction", "rows", "attention"):
        return group.kind
    return "map" if group.kind == "elementwise" else last.name
