"""Sequences and optionals of known length and content, which are there during the import only."""

from __future__ import annotations

import numpy as np

from mansard.dims import DimLike
from mansard.frontends.emission.emitter import axis_of
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.entries import Absent, Entry, Sequence
from mansard.frontends.onnx.graph import GraphImporter, dtype_named
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.rules.shape import split_sizes
from mansard.frontends.onnx.table import rule


def _position(node: Node, operand: int, default: int) -> int:
    return default if node.optional(operand) is None else int(node.numbers(operand).reshape(-1)[0])


@rule("SequenceConstruct")
def sequence_construct(g: GraphImporter, node: Node) -> Entry:
    """A sequence of tensors."""
    return Sequence(tuple(node.tensors()))


@rule("SequenceEmpty")
def sequence_empty(g: GraphImporter, node: Node) -> Entry:
    """A sequence without tensors."""
    return Sequence((), dtype_named(node.integer("dtype", 1), node))


@rule("SequenceInsert")
def sequence_insert(g: GraphImporter, node: Node) -> Entry:
    """A sequence with one more tensor."""
    items = list(node.sequence(0).items)
    place = _position(node, 2, len(items))
    items.insert(place, node.tensor(1))
    return Sequence(tuple(items))


@rule("SequenceErase")
def sequence_erase(g: GraphImporter, node: Node) -> Entry:
    """A sequence with one tensor fewer."""
    items = list(node.sequence(0).items)
    del items[_position(node, 1, len(items) - 1)]
    return Sequence(tuple(items))


@rule("SequenceAt")
def sequence_at(g: GraphImporter, node: Node) -> Entry:
    """A tensor of a sequence."""
    items = node.sequence(0).items
    place = _position(node, 1, 0)
    if not -len(items) <= place < len(items):
        raise node.fail(f"position {place} of a sequence of {len(items)}")
    return items[place]


@rule("SequenceLength")
def sequence_length(g: GraphImporter, node: Node) -> Entry:
    """The number of tensors."""
    return g.literal(np.array(len(node.sequence(0).items), np.int64))


@rule("SplitToSequence")
def split_to_sequence(g: GraphImporter, node: Node) -> Entry:
    """Parts of a tensor along an axis."""
    x = node.tensor(0)
    axis = axis_of(node.integer("axis"), x.rank)
    extent = x.shape[axis]
    if not isinstance(extent, int):
        raise node.fail(f"a dim of {extent}, in parts whose number is not known")
    given = node.optional(1)
    drop = given is None and not node.integer("keepdims", 1)
    if given is None:
        sizes: list[DimLike] = [1] * extent
    elif given.rank == 0:
        each = int(node.numbers(1).reshape(-1)[0])
        sizes = [min(each, extent - i) for i in range(0, extent, each)]
    else:
        sizes = split_sizes(node, extent, node.int_list(1), 0)
    parts: list[Entry] = []
    start = 0
    for size in sizes:
        part = g.part(x, axis, start, size)
        parts.append(g.reshape(part, [d for i, d in enumerate(part.shape) if i != axis]) if drop else part)
        start += int(str(size))
    return Sequence(tuple(parts))


@rule("ConcatFromSequence")
def concat_from_sequence(g: GraphImporter, node: Node) -> Entry:
    """The tensors of a sequence one after another, or along a new axis."""
    items = [item for item in node.sequence(0).items if isinstance(item, Tensor)]
    new = node.integer("new_axis")
    axis = axis_of(node.integer("axis"), items[0].rank + new)
    return g.stack(items, axis) if new else g.concat(items, axis)


@rule("Optional")
def optional(g: GraphImporter, node: Node) -> Entry:
    """The operand, or nothing."""
    entry = node.inputs[0] if node.inputs else None
    return Absent() if entry is None else entry


@rule("OptionalHasElement")
def optional_has_element(g: GraphImporter, node: Node) -> Entry:
    """Whether there is something."""
    entry = node.inputs[0] if node.inputs else None
    return g.literal(np.array(entry is not None and not isinstance(entry, Absent)))


@rule("OptionalGetElement")
def optional_get_element(g: GraphImporter, node: Node) -> Entry:
    """What is there."""
    entry = node.inputs[0]
    if entry is None or isinstance(entry, Absent):
        raise node.fail("an optional without content")
    return entry
