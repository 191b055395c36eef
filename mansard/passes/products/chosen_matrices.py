"""Read the matrices of products where they are stored, if a computed index chooses them out of a stack.

Before (layers of experts as frontends produce them: the chosen matrices are copied first)::

    %m: 5x64x96xf32 = generic (d0:5, d1:64, d2:96) {%w{min(%e[d0], 7), d2, d1}}
    %y: 5x96xf32 = generic (d0:5, d1:96 | d2:64) add {%x[d0, d2] * %m[d0, d2, d1]}

After (the indices are a value of their own, so that kernels load one for each matrix)::

    %m.index: 5xi64 = generic (d0:5) {min(%e[d0], 7)}
    %y: 5x96xf32 = generic (d0:5, d1:96 | d2:64) add {%x[d0, d2] * %w{%m.index[d0], d1, d2}}

Only where one product alone reads the copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mansard.analysis.operands import tidy, with_reads
from mansard.dtypes import DType
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Arg, Cast, Gather, Index, Scalar, rewrite, walk
from mansard.ir.types import IndexMap, Linear, TensorType, Value

I64 = DType.I64
MATRIX = 2
"""The least rank of what is chosen."""


@dataclass(frozen=True)
class _Copy:
    """A map that copies what an index chooses, at ``axis`` of a stack for each point of its own ``dims``."""

    op: Generic
    gather: Gather
    axis: int
    dims: tuple[int, ...]


def read_chosen_matrices(graph: Graph) -> Graph:
    """Let products gather from stacks of matrices themselves; the same graph if none reads a copy of such."""
    users, live = graph.users(), graph.live_outs()
    copies: dict[Value, _Copy] = {}
    for op in graph.ops:
        if isinstance(op, Generic) and op.output not in live and len(users.get(op.output, ())) == 1:
            copy, (reader,) = _copy_of(op), users[op.output]
            if copy is not None and _reads_matrices(reader, copy):
                copies[op.output] = copy
    if not copies:
        return graph
    taken = {v.name for v in graph.values()}
    ops: list[Op] = []
    indices: dict[Value, Value] = {}
    for op in graph.ops:
        if op.outputs[:1] and (copy := copies.get(op.outputs[0])) is not None:
            index = _index(copy, taken)
            indices[copy.op.output] = index.output
            ops.append(index)
        else:
            ops.append(_in_place(op, copies, indices) if isinstance(op, Generic) else op)
    return graph.with_ops(ops)


def _copy_of(op: Generic) -> _Copy | None:
    gather = op.body.arg if isinstance(op.body, Cast) else op.body
    if op.combiner is not None or not isinstance(gather, Gather):
        return None
    computed = [axis for axis, index in enumerate(gather.indices) if not isinstance(index, Index)]
    plain = [index.dim for index in gather.indices if isinstance(index, Index)]
    if len(computed) != 1 or len(plain) < MATRIX or len(set(plain)) < len(plain):
        return None
    used: set[int] = set()
    for node in walk(gather.indices[computed[0]]):
        if isinstance(node, (Gather, Index)):
            return None
        if isinstance(node, Arg):
            index_map = op.maps[node.index]
            if index_map is None or index_map.fill is not None:
                return None
            used |= {d for result in index_map.results for d, _ in result.terms}
    if used & set(plain) or used | set(plain) != set(range(op.rank)):
        return None
    return _Copy(op, gather, computed[0], tuple(sorted(used)))


def _reads_matrices(reader: Op, copy: _Copy) -> bool:
    """Whether a product reads the copy at plain dims, with the same matrix for all of a sum."""
    if not isinstance(reader, Generic) or not is_contraction(reader):
        return False
    if reader.inputs.count(copy.op.output) > 1:
        return False
    index_map = reader.maps[reader.inputs.index(copy.op.output)]
    plain = index_map.plain_dims if index_map is not None and index_map.fill is None else None
    if plain is None or None in plain or len(set(plain)) < len(plain):
        return False
    return all(d is not None and d < reader.rank for d in (plain[own] for own in copy.dims))


def _index(copy: _Copy, taken: set[str]) -> Generic:
    """The op that computes the index for each matrix."""
    op, places = copy.op, {d: at for at, d in enumerate(copy.dims)}
    inner = [Linear.dim(places[d]) if d in places else Linear((), 0) for d in range(op.rank)]
    maps = tuple(m.compose(inner) if m is not None else None for m in op.maps)
    shape = tuple(op.extents[d] for d in copy.dims)
    output = Value(fresh_name(taken, f"{op.output.name}.index"), TensorType(shape, I64))
    index = replace(op, outputs=(output,), extents=shape, maps=maps, body=copy.gather.indices[copy.axis])
    return tidy(index)


def _in_place(op: Generic, copies: Mapping[Value, _Copy], indices: Mapping[Value, Value]) -> Generic:
    """A product reading stacks instead of copies."""
    inputs, maps = list(op.inputs), list(op.maps)
    bodies: dict[int, Scalar] = {}
    for number, value in enumerate(op.inputs):
        copy, index_map = copies.get(value), op.maps[number]
        if copy is None or index_map is None or index_map.plain_dims is None:
            continue
        plain = index_map.plain_dims
        places: list[Scalar] = []
        for own in copy.gather.indices:
            if isinstance(own, Index):
                place = plain[own.dim]
                assert place is not None
                places.append(Index(place))
            else:
                places.append(Arg(len(inputs) + 1, I64))
        gather = Gather(len(inputs), tuple(places), copy.gather.dtype)
        inputs += [copy.op.inputs[copy.gather.operand], indices[value]]
        maps += [None, IndexMap.of_dims([plain[d] for d in copy.dims])]
        bodies[number] = replace(copy.op.body, arg=gather) if isinstance(copy.op.body, Cast) else gather
    if not bodies:
        return op
    body = rewrite(op.body, lambda n: bodies.get(n.index, n) if isinstance(n, Arg) else n)
    return with_reads(op, inputs, maps, body)
