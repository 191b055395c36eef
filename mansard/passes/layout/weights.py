"""Weight layout: store constants of contractions in the order in which kernels read them.

Before (a linear layer; the weight has the framework's layout, output features outermost)::

    %y[d0, d1] = sum(d2) %x[d0, d2] * %w[d1, d2]        %w: 1536x384 constant

After (output features innermost, so that vectors of outputs are contiguous)::

    %y[d0, d1] = sum(d2) %x[d0, d2] * %w_t[d2, d1]      %w_t: 384x1536 constant, permuted when loaded

A weight is stored once: one that has other readers with another order is unchanged, and so is one that other
methods of the model read, some of them by rows (`mansard.passes.layout.shared_weights`).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from mansard import dims
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic
from mansard.passes.layout.constants import transpose_constants

MIN_ROWS = 4
"""With fewer rows that share a weight, the product is bound by reading it, which is contiguous in either
layout."""


def lay_out_weights(graph: Graph, shared: AbstractSet[str] = frozenset()) -> Graph:
    """Permute constant operands of contractions so that the result's innermost dim is theirs too, except
    those with a key in ``shared``."""
    users = graph.users()
    wanted = {}
    for op in graph.ops:
        if not (isinstance(op, Generic) and is_contraction(op)):
            continue
        for i, value in enumerate(op.inputs):
            other_readers = users[value] != [op] or op.inputs.count(value) > 1
            if other_readers or (value in graph.constants and graph.constants[value].holds(shared)):
                continue
            permutation = _preferred_permutation(graph, op, i)
            if permutation is not None:
                wanted[value] = permutation
    return transpose_constants(graph, wanted) if wanted else graph


def _preferred_permutation(graph: Graph, op: Generic, operand: int) -> tuple[int, ...] | None:
    """The permutation of a constant operand's dims that suits the kernel better, or None."""
    index_map = op.maps[operand]
    if op.inputs[operand] not in graph.constants or index_map is None or not op.rank:
        return None
    plain = index_map.plain_dims
    column = op.rank - 1
    if plain is None or None in plain or column not in plain or plain[-1] == column:
        return None
    if len(set(plain)) != len(plain) or plain[-1] not in op.reduced:
        return None
    walked = {d for d in plain if d is not None}
    rows = dims.product(op.extents[d] for d in range(op.rank) if d not in walked)
    if dims.representative(rows) < MIN_ROWS or any(_depends_on(op, i, column) for i in _others(op, operand)):
        return None
    place = plain.index(column)
    return (*(d for d in range(len(plain)) if d != place), place)


def _others(op: Generic, operand: int) -> list[int]:
    return [i for i in range(len(op.inputs)) if i != operand]


def _depends_on(op: Generic, operand: int, dim: int) -> bool:
    index_map = op.maps[operand]
    return index_map is None or any(d == dim for r in index_map.results for d, _ in r.terms)
