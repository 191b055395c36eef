"""Values that norms read: what counts of their errors is the part of each row that they are.

A norm divides every row by its own size. In encoders of texts a few rows hold values that are hundreds of
times those of the others, in the sums before norms (Bondarenko et al., "Understanding and Overcoming the
Challenges of Efficient Transformer Quantization", 2021). A range chosen for the smallest squared error is
that of these rows, and its step is larger than most elements of all others. Clamped to a part of their size,
such rows are nearly the same after the norm.
"""

from __future__ import annotations

from collections.abc import Iterator

from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.scalar import Apply, Arg, walk
from mansard.ir.types import IndexMap, Value


def normalised(graph: Graph) -> dict[Value, Value]:
    """Values that a norm over their last axis reads, and the terms of their sums, with those values."""
    producers, users = graph.producers(), graph.users()
    found: dict[Value, Value] = {}
    for op in graph.ops:
        if isinstance(op, Generic) and _sums_rows(op) and _meets(op, users):
            found[op.inputs[0]] = op.inputs[0]
    for value in list(found):
        for term in _terms(producers.get(value)):
            while isinstance(source := producers.get(term), Reshape):
                found.setdefault(term, value)
                term = source.inputs[0]
            found.setdefault(term, value)
    return found


def _sums_rows(op: Generic) -> bool:
    """Whether an op adds up the elements of each row of one value, or their squares."""
    value = op.inputs[0]
    if op.combiner != "add" or set(op.inputs) != {value} or value.type.rank < 2 or len(op.reduced) != 1:
        return False
    if any(index_map != op.maps[0] for index_map in op.maps):
        return False
    places = [r.single for r in op.maps[0].results] if op.maps[0] is not None else []
    square = isinstance(op.body, Apply) and op.body.op == "mul"
    plain = all(isinstance(node, (Arg, Apply)) for node in walk(op.body))
    return plain and (isinstance(op.body, Arg) or square) and places[-1:] == [op.reduced[0]]


def _meets(op: Generic, users: dict[Value, list[Op]]) -> bool:
    """Whether elementwise steps from a sum lead back to the value that it sums."""
    values, seen = [op.output], set[Value]()
    while values:
        value = values.pop()
        if value in seen:
            continue
        seen.add(value)
        for reader in users.get(value, []):
            if isinstance(reader, Generic) and op.inputs[0] in reader.inputs:
                return True
            small = reader.outputs[0].type.rank <= op.inputs[0].type.rank
            if isinstance(reader, Reshape) or (
                isinstance(reader, Generic) and reader.combiner is None and small
            ):
                values.extend(reader.outputs)
    return False


def _terms(op: Op | None) -> Iterator[Value]:
    """The operands of a plain sum of two values."""
    if isinstance(op, Generic) and op.combiner is None and isinstance(op.body, Apply) and op.body.op == "add":
        identity = IndexMap.identity(op.rank)
        if all(isinstance(a, Arg) for a in op.body.args) and all(m == identity for m in op.maps):
            yield from op.inputs
