"""Reductions over axes, positions of extremes, running sums."""

from __future__ import annotations

from mansard import dims
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import axis_of
from mansard.frontends.emission.expressions import Num, size
from mansard.frontends.emission.reductions import reversed_along
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.real import moved, parameters, requantised
from mansard.frontends.tflite.table import Rule, enter, rule


def _axes(node: Node) -> list[int]:
    rank = node.tensor(0).rank
    return sorted({axis_of(a, rank) for a in node.ints(1)})


def _sum(*, divided: bool) -> Rule:
    def apply(g: GraphImporter, node: Node) -> Tensor:
        x, axes, keep = node.tensor(0), _axes(node), node.flag("keep_dims")
        count = dims.product(x.shape[a] for a in axes)
        source, q = node.scaled(0), node.result_scaled()
        if source is None or q is None:
            total = g.reduce(x, axes, "add", keepdims=keep)
            if not divided:
                return total
            return g.map(lambda e: e / (count if isinstance(count, int) else _number(e, count)), total)
        (scale, zero), (target, shift) = parameters(source), parameters(q)
        total = g.reduce(x, axes, "add", keepdims=keep, function=lambda e: e.cast(DType.I32))

        def code(e: Num) -> Num:
            elements = size(e.space, count)
            centred = (e - elements.cast(DType.I32) * zero).cast(DType.F32)
            factor: Num | float = scale / target
            if divided:
                factor = (
                    factor / int(str(count)) if isinstance(count, int) else factor / elements.cast(DType.F32)
                )
            return requantised(centred, factor, shift, x.dtype)

        return g.map(code, total)

    return apply


def _number(e: Num, count: dims.DimLike) -> Num:
    return size(e.space, count).cast(e.dtype)


enter("SUM", _sum(divided=False))
enter("MEAN", _sum(divided=True))


def _reduce(combiner: str) -> Rule:
    def apply(g: GraphImporter, node: Node) -> Tensor:
        if combiner == "mul" and node.result_scaled() is not None:
            raise node.fail("products of stored numbers")
        y = g.reduce(node.tensor(0), _axes(node), combiner, keepdims=node.flag("keep_dims"))
        return moved(g, node, y)

    return apply


for _name, _combiner in {
    "REDUCE_MAX": "max", "REDUCE_MIN": "min", "REDUCE_PROD": "mul", "REDUCE_ANY": "or", "REDUCE_ALL": "and",
}.items():  # fmt: skip
    enter(_name, _reduce(_combiner))


def _position(combiner: str) -> Rule:
    def apply(g: GraphImporter, node: Node) -> Tensor:
        x = node.tensor(0)
        axis = axis_of(node.ints(1)[0], x.rank)
        return g.cast(g.reduce(x, [axis], combiner), node.result().dtype)

    return apply


enter("ARG_MAX", _position("argmax"))
enter("ARG_MIN", _position("argmin"))


@rule("CUMSUM")
def cumsum(g: GraphImporter, node: Node) -> Tensor:
    """Running sums, from either end, with or without the element itself."""
    x = node.tensor(0)
    axis = axis_of(node.ints(1)[0], x.rank)
    backwards = node.flag("reverse")
    source = reversed_along(g, x, axis) if backwards else x
    y = g.tensor(g.builder.scan(g.value(source), axis, "add", inclusive=not node.flag("exclusive")))
    return reversed_along(g, y, axis) if backwards else y


@rule("TOPK_V2")
def top_k(g: GraphImporter, node: Node) -> list[Tensor]:
    """The largest elements of the last axis, and where they are."""
    x, count = node.tensor(0), node.ints(1)[0]
    values, order = g.builder.sort(g.value(x), x.rank - 1, True, count)
    return [g.tensor(values), g.cast(g.tensor(order), node.result(1).dtype)]
