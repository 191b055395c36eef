"""A Graph that copies the beginning of one sequence's cache to another: texts that begin equally need not be
read twice."""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir.graph import Graph, GraphBuilder, State
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index
from mansard.ir.types import IndexMap, Value

_ONE = IndexMap.of_dims((None,))


def caches(graph: Graph, context: int) -> list[State]:
    """The caches of keys and values among a decoder's states: those with positions."""
    return [s for s in graph.states if s.before.type.rank > 2 and s.before.type.shape[1] == context]


def build_prefix_copy(states: Sequence[State], sequences: int, rows: Dim) -> Graph:
    """The Graph over the caches of keys and values in ``states``, (sequences, context, …) each.

    Inputs ``rows`` (R) i64, the positions to copy, ``source`` (1) i64 and ``target`` (1) i64, the sequences.
    R is what ``rows`` allows. Output ``copied`` (1) i64, the number of the target.
    """
    builder = GraphBuilder("prefix_copy")
    count = dims.symbol(rows)
    positions = builder.input("rows", (count,), DType.I64)
    source, target = builder.input("source", (1,), DType.I64), builder.input("target", (1,), DType.I64)
    builder.assert_indices(positions, "the cache", 0, rows.max)
    for sequence in (source, target):
        builder.assert_indices(sequence, "the sequences", 0, sequences)
    places = _places(builder, target, positions)
    for state in states:
        before, kind = state.before, state.before.type
        cache = builder.state(before.name, kind.shape, kind.dtype, state.initial)
        behind = [Index(1 + axis) for axis in range(len(kind.shape) - 2)]
        read = Gather(2, (Arg(0, DType.I64), Arg(1, DType.I64), *behind), kind.dtype)
        copied = builder.generic(
            (source, positions, cache),
            (_ONE, IndexMap.of_dims((0,)), None),
            (count, *kind.shape[2:]),
            read,
            name="copied",
        )
        builder.update_state(cache, builder.scatter(cache, places, copied))
    done = builder.generic((target,), (IndexMap.of_dims((0,)),), (1,), Arg(0, DType.I64), name="done")
    return builder.build([done], ["copied"])


def _places(builder: GraphBuilder, target: Value, positions: Value) -> Value:
    """(R, 2): the target's number, and each position."""
    first = Apply("eq", (Index(1), Const(0, DType.I64)), DType.BOOL)
    body = Apply("select", (first, Arg(0, DType.I64), Arg(1, DType.I64)), DType.I64)
    shape = (positions.type.shape[0], 2)
    return builder.generic((target, positions), (_ONE, IndexMap.of_dims((0,))), shape, body, name="places")
