"""Operand lists of ops: renaming, tidying and recognising copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from mansard.analysis.linear import to_scalar
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Arg, Gather, Index, Scalar, count_ops, rewrite, walk
from mansard.ir.scalar_ops import scalar_op
from mansard.ir.types import IndexMap, Value

AnyOp = TypeVar("AnyOp", bound=Op)


def is_light(body: Scalar, limit: int) -> bool:
    """Whether computing ``body`` again costs less than reading it: few ops, none of them a function."""
    if count_ops(body) > limit:
        return False
    return not any(isinstance(n, Apply) and not scalar_op(n.op).recomputable for n in walk(body))


def renamed(op: AnyOp, names: Mapping[Value, Value]) -> AnyOp:
    """``op`` with its operands replaced by ``names``; the same op when none is."""
    if not any(v in names for v in op.inputs):
        return op
    return replace(op, inputs=tuple(names.get(v, v) for v in op.inputs))


def is_copy(op: Op | None) -> bool:
    """Whether ``op`` is a Generic that only moves elements of its one operand by an index map."""
    if not isinstance(op, Generic) or op.combiner is not None or not isinstance(op.body, Arg):
        return False
    index_map = op.maps[op.body.index]
    return index_map is not None and index_map.fill is None


def copied(op: Generic) -> tuple[Value, IndexMap]:
    """The operand and index map of a copy."""
    assert isinstance(op.body, Arg)
    index_map = op.maps[op.body.index]
    assert index_map is not None
    return op.inputs[op.body.index], index_map


def is_gathered(op: Generic, operand: int) -> bool:
    """Whether the body reads an operand at computed indices."""
    return any(isinstance(n, Gather) and n.operand == operand for n in walk(op.body))


def tidy(op: Generic) -> Generic:
    """``op`` with each operand listed once for each way it is read, in the order of first use.

    Before: ``(x, y, x) maps (d0), (d0), (d0) {arg0 + arg2}``   After: ``(x) maps (d0) {arg0 + arg0}``.
    Operands that are gathered have no map. Returns ``op`` itself when it is tidy.
    """
    inputs: list[Value] = []
    maps: list[IndexMap | None] = []
    places: dict[tuple[Value, IndexMap | None], int] = {}

    def place(index: int, index_map: IndexMap | None) -> int:
        key = (op.inputs[index], index_map)
        if key not in places:
            places[key] = len(inputs)
            inputs.append(key[0])
            maps.append(index_map)
        return places[key]

    for node in walk(op.body):
        if isinstance(node, Arg):
            place(node.index, op.maps[node.index])
        elif isinstance(node, Gather):
            place(node.operand, None)

    def leaf(node: Scalar) -> Scalar:
        if isinstance(node, Arg):
            new = place(node.index, op.maps[node.index])
            return node if new == node.index else Arg(new, node.dtype)
        if isinstance(node, Gather):
            new = place(node.operand, None)
            return node if new == node.operand else Gather(new, node.indices, node.dtype)
        return node

    if tuple(inputs) == op.inputs and tuple(maps) == op.maps:
        return op
    return replace(op, inputs=tuple(inputs), maps=tuple(maps), body=rewrite(op.body, leaf))


def with_body(op: Generic, body: Scalar) -> Generic:
    """``op`` with another body over its operands, tidied; ``op`` itself when the body is its own."""
    return op if body is op.body else tidy(replace(op, body=body))


def composed_reads(source: Generic, reads: IndexMap) -> list[IndexMap]:
    """Where a map reads its operands, each through an IndexMap, if it is itself read at ``reads``."""
    return [each.compose(reads.results) for each in source.maps if each is not None]


def inlined(
    op: Generic,
    sources: Mapping[Value, Generic],
    reads_of: Callable[[Generic, IndexMap], Sequence[IndexMap]] = composed_reads,
) -> Generic:
    """``op`` computing the maps ``sources`` at the places where it reads them; the same op if it reads none
    through a map without padding. ``reads_of`` says where it then reads the operands of a map that it reads
    at given places."""
    inputs: list[Value] = list(op.inputs)
    maps: list[IndexMap | None] = list(op.maps)

    def leaf(node: Scalar) -> Scalar:
        if not isinstance(node, Arg) or node.index >= len(op.inputs):
            return node
        source, reads = sources.get(op.inputs[node.index]), op.maps[node.index]
        if source is None or reads is None or reads.fill is not None:
            return node
        first, places = len(inputs), [to_scalar(result) for result in reads.results]
        inputs.extend(source.inputs)
        maps.extend(reads_of(source, reads))

        def moved(inner: Scalar) -> Scalar:
            if isinstance(inner, Index):
                return places[inner.dim]
            return Arg(first + inner.index, inner.dtype) if isinstance(inner, Arg) else inner

        return rewrite(source.body, moved)

    body = rewrite(op.body, leaf)
    return op if body is op.body else with_reads(op, inputs, maps, body)


def with_reads(
    op: Generic, inputs: Sequence[Value], maps: Sequence[IndexMap | None], body: Scalar
) -> Generic:
    """``op`` over other operands and another body, tidied."""
    return tidy(replace(op, inputs=tuple(inputs), maps=tuple(maps), body=body))
