"""Which weights the methods of a model share, and so keep in one form.

Methods of a model (reading a prompt, generating a token) are graphs of their own, whose passes would each
choose a layout: a product of many rows wants its weights column by column, one of a single row row by row. A
weight that several methods read keeps the order of the checkpoint instead, (outputs, reduced), which every
kernel reads at full speed: it is then stored once, and where nothing else changes it, it is used where it is
mapped.

One method may still merge products (queries, keys and values of a single token) that another keeps apart.
Their weights are then stored one after another, and the other method reads its parts of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mansard.ir.dispatch import DispatchGraph
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.types import Constant, TensorType, Value

PART_ALIGNMENT = 256
"""Bytes that a part's place in a joined weight is a multiple of, as buffers of all devices are bound."""


def shared_weights(graphs: Iterable[Graph]) -> frozenset[str]:
    """The keys of constants that more than one of the graphs reads."""
    counts = Counter(key for graph in graphs for key in {c.key for c in graph.constants.values() if c.key})
    return frozenset(key for key, count in counts.items() if count > 1)


def share_joined(graphs: Sequence[DispatchGraph]) -> list[DispatchGraph]:
    """The graphs of a model's methods, in which parts of a joined constant of any of them are slices of it
    (`DispatchGraph.slices`)."""
    places: dict[str, _Place] = {}
    for graph in graphs:
        for value, constant in graph.graph.constants.items():
            places.update(_places(value.type, constant, places))
    return [_with_slices(graph, places) for graph in graphs] if places else list(graphs)


@dataclass(frozen=True)
class _Place:
    """A constant's place in a joined one."""

    joined: Constant
    joined_type: TensorType
    type: TensorType
    offset: int


def _places(whole: TensorType, constant: Constant, taken: Mapping[str, _Place]) -> dict[str, _Place]:
    """The places of a joined constant's parts by key; none where a part is in another one already, or where
    one does not begin at an aligned byte."""
    places: dict[str, _Place] = {}
    offset = 0
    for key, kind in constant.parts:
        size = kind.bytes
        if not key or key in taken or key in places or not isinstance(size, int) or offset % PART_ALIGNMENT:
            return {}
        places[key] = _Place(constant, whole, kind, offset)
        offset += size
    return places


def _with_slices(graph: DispatchGraph, places: Mapping[str, _Place]) -> DispatchGraph:
    read = {v for dispatch in graph.dispatches for v in dispatch.inputs}
    constants = dict(graph.graph.constants)
    wholes = {constant.key: value for value, constant in constants.items()}
    taken = {v.name for v in graph.graph.values()}
    slices = dict(graph.slices)
    for value, constant in graph.graph.constants.items():
        place = places.get(constant.key)
        if place is None or value not in read or value.type != place.type:
            continue
        whole = wholes.get(place.joined.key)
        if whole is None:
            whole = wholes[place.joined.key] = Value(fresh_name(taken, value.name), place.joined_type)
            constants[whole] = place.joined
        slices[value] = (whole, place.offset)
    if slices == graph.slices:
        return graph
    return replace(graph, graph=replace(graph.graph, constants=constants), slices=slices)
