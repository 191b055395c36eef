"""A Graph that copies the beginning of one sequence's cache to another: texts that begin equally need not be
read twice."""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.frontends.decoders.layers.cache_rows import index_rows
from mansard.ir.graph import Graph, GraphBuilder, State
from mansard.ir.scalar import Arg, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Value

_ONE = IndexMap.of_dims((None,))


def caches(graph: Graph, context: int) -> list[State]:
    """The caches of keys and values among a decoder's states: those with positions, in their last dim but
    one."""
    return [s for s in graph.states if s.before.type.rank > 2 and s.before.type.shape[-2] == context]


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
    maps, places = (_ONE, IndexMap.of_dims((0,))), dict[int | None, Value]()
    whose, position = Arg(0, DType.I64), Arg(1, DType.I64)
    for state in states:
        before, kind = state.before, state.before.type
        cache = builder.state(before.name, kind.shape, kind.dtype, state.initial)
        heads = kind.shape[1] if kind.rank == 4 else None
        assert heads is None or isinstance(heads, int)
        row: tuple[DimLike, ...] = (count,) if heads is None else (count, heads)
        where: tuple[Scalar, ...] = (whose, position) if heads is None else (whose, Index(1), position)
        if heads not in places:
            places[heads] = index_rows(builder, (target, positions), maps, row, where)
        copied = builder.generic(
            (source, positions, cache),
            (*maps, None),
            (*row, kind.shape[-1]),
            Gather(2, (*where, Index(len(row))), kind.dtype),
            name="copied",
        )
        copied = builder.reshape(copied, (places[heads].type.shape[0], kind.shape[-1]))
        builder.update_state(cache, builder.scatter(cache, places[heads], copied))
    done = builder.generic((target,), (IndexMap.of_dims((0,)),), (1,), Arg(0, DType.I64), name="done")
    return builder.build([done], ["copied"])
