"""Sorts of one or several tensors, and the largest entries."""

from __future__ import annotations

from mansard.dtypes import DType
from mansard.frontends.emission.expressions import index
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.stablehlo import attributes, regions
from mansard.frontends.stablehlo.entries import Entry
from mansard.frontends.stablehlo.graph import StableHloImporter
from mansard.frontends.stablehlo.node import Node
from mansard.frontends.stablehlo.table import rule
from mansard.ir.types import Linear


@rule("stablehlo.sort")
def sort(g: StableHloImporter, node: Node) -> list[Entry]:
    """Tensors in the order of some of them, whose comparator is evaluated to find it."""
    tensors = node.tensors()
    axis = node.integer("dimension", -1) % max(tensors[0].rank, 1)
    found = regions.order_of(node.region())
    if found is None:
        raise node.fail("a comparator that is no order of numbers")
    order: Tensor | None = None
    for key, descending in reversed(found.keys):
        values = tensors[key] if order is None else _taken(g, tensors[key], order, axis)
        ordered, places = _sorted(g, values, axis, descending)
        if order is None and len(found.keys) == 1 and len(tensors) == 1:
            return [ordered]
        order = places if order is None else _taken(g, order, places, axis)
    assert order is not None
    return [
        g.cast(order, t.dtype) if g.is_ramp(t, axis, t.shape[axis]) else _taken(g, t, order, axis)
        for t in tensors
    ]


def _sorted(g: StableHloImporter, x: Tensor, axis: int, descending: bool) -> tuple[Tensor, Tensor]:
    source = g.cast(x, DType.U8) if x.dtype is DType.BOOL else x
    values, places = g.builder.sort(g.value(source), axis, descending)
    return g.cast(g.tensor(values), x.dtype), g.tensor(places)


def _taken(g: StableHloImporter, x: Tensor, order: Tensor, axis: int) -> Tensor:
    """Elements along an axis at the places of another tensor."""
    body = g.body(order.shape)
    here = [index(body.space, i) for i in range(x.rank)]
    here[axis] = g.read(body, order, [Linear.dim(i) for i in range(x.rank)])
    return g.finish(body, g.at(body, x, here))


@rule("chlo.top_k", "mhlo.topk")
def top_k(g: StableHloImporter, node: Node) -> list[Entry]:
    """The largest entries of the last axis and where they are."""
    x = node.tensor(0)
    count = node.shape()[-1]
    if count is None:
        raise node.fail("a number of entries that is only known at run time")
    if node.name == "stablehlo.custom_call" and "largest = false" in str(node.op.attributes):
        raise node.fail("the smallest entries")
    source = g.cast(x, DType.U8) if x.dtype is DType.BOOL else x
    values, places = g.builder.sort(g.value(source), x.rank - 1, True, count)
    index_dtype = attributes.element_type(node.op.results[1].type)
    return [g.cast(g.tensor(values), x.dtype), g.cast(g.tensor(places), index_dtype)]
