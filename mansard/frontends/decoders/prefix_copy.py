"""A Graph that copies the beginning of one sequence's cache to another: texts that begin equally need not be
read twice."""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.ir.graph import Graph, GraphBuilder, State
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Value

_ONE = IndexMap.of_dims((None,))


def caches(graph: Graph, context: int) -> list[State]:
    """The caches of keys and values among a decoder's states: those with positions, in their second dim or,
    with heads before these, in the third of four."""
    return [s for s in graph.states if _positions(s.before.type.shape, context) is not None]


def _positions(shape: Sequence[DimLike], context: int) -> int | None:
    """The dim of a cache's positions; None for other states."""
    if len(shape) == 4 and shape[2] == context:
        return 2
    return 1 if len(shape) > 2 and shape[1] == context else None


def build_prefix_copy(states: Sequence[State], sequences: int, rows: Dim) -> Graph:
    """The Graph over the caches of keys and values in ``states``, each (sequences, context, …) or (sequences,
    heads, context, …).

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
    places = _places(builder, target, positions, None)
    of_heads: dict[int, Value] = {}
    for state in states:
        before, kind = state.before, state.before.type
        cache = builder.state(before.name, kind.shape, kind.dtype, state.initial)
        whose, position = Arg(0, DType.I64), Arg(1, DType.I64)
        where: tuple[Scalar, ...] = (whose, position, Index(1))
        shape, rows_of = kind.shape[2:], places
        if len(kind.shape) == 4:
            heads = kind.shape[1]
            assert isinstance(heads, int)
            where, shape = (whose, Index(1), position, Index(2)), (heads, kind.shape[3])
            if heads not in of_heads:
                of_heads[heads] = _places(builder, target, positions, heads)
            rows_of = of_heads[heads]
        copied = builder.generic(
            (source, positions, cache),
            (_ONE, IndexMap.of_dims((0,)), None),
            (count, *shape),
            Gather(2, where, kind.dtype),
            name="copied",
        )
        copied = builder.reshape(copied, (rows_of.type.shape[0], shape[-1]))
        builder.update_state(cache, builder.scatter(cache, rows_of, copied))
    done = builder.generic((target,), (IndexMap.of_dims((0,)),), (1,), Arg(0, DType.I64), name="done")
    return builder.build([done], ["copied"])


def _places(builder: GraphBuilder, target: Value, positions: Value, heads: int | None) -> Value:
    """(R, 2): the target's number, and each position; with ``heads`` (R * heads, 3): each head between
    these."""
    axis, number = (1, 2) if heads is None else (2, 3)

    def at(index: int) -> Scalar:
        return Apply("eq", (Index(axis), Const(index, DType.I64)), DType.BOOL)

    body: Scalar = Arg(1, DType.I64)
    if heads is not None:
        body = Apply("select", (at(1), Index(1), body), DType.I64)
    body = Apply("select", (at(0), Arg(0, DType.I64), body), DType.I64)
    count = positions.type.shape[0]
    shape = (count, number) if heads is None else (count, heads, number)
    places = builder.generic((target, positions), (_ONE, IndexMap.of_dims((0,))), shape, body, name="places")
    return places if heads is None else builder.reshape(places, (dims.mul(count, heads), number))
