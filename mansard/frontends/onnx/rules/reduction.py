"""Reductions over axes, positions of extremes, running sums."""

from __future__ import annotations

import math
from collections.abc import Callable

from mansard import dims
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import axis_of
from mansard.frontends.emission.expressions import Num, size
from mansard.frontends.emission.reductions import mean, reversed_along, total
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import enter, rule

Function = Callable[[Num], Num]


def reduced_axes(node: Node, x: Tensor) -> list[int]:
    """The axes of a reduction, from the attribute or the operand."""
    by_operand = node.version >= (13 if node.op == "ReduceSum" else 18)
    axes = node.int_list(1) if by_operand else node.ints("axes")
    if not axes:
        return [] if node.integer("noop_with_empty_axes") else list(range(x.rank))
    return sorted({axis_of(a, x.rank) for a in axes})


def _rule(
    combiner: str, before: Function | None = None, after: Function | None = None
) -> Callable[..., Tensor]:
    def reduce(g: GraphImporter, node: Node) -> Tensor:
        x = node.tensor(0)
        axes, keep = reduced_axes(node, x), bool(node.integer("keepdims", 1))
        if not axes and node.integer("noop_with_empty_axes") and node.optional(1) is None and x.rank:
            return x if before is None and after is None else _each(g, x)
        if combiner == "add":
            result = total(g, x, axes, keep, before)
        else:
            logical = (
                {"min": "and", "max": "or"}.get(combiner, combiner) if x.dtype is DType.BOOL else combiner
            )
            result = g.reduce(x, axes, logical, keepdims=keep, function=before)
        return g.map(after, result) if after else result

    def _each(g: GraphImporter, x: Tensor) -> Tensor:
        def both(e: Num) -> Num:
            e = before(e) if before else e
            return after(e) if after else e

        return g.map(both, x)

    return reduce


enter("ReduceSum", _rule("add"))
enter("ReduceProd", _rule("mul"))
enter("ReduceMax", _rule("max"))
enter("ReduceMin", _rule("min"))
enter("ReduceL1", _rule("add", lambda e: e.unary("abs")))
enter("ReduceSumSquare", _rule("add", lambda e: e * e))


def _root(e: Num) -> Num:
    return e.sqrt() if e.dtype.is_float else e.cast(DType.F64).sqrt().cast(e.dtype)


def _log(e: Num) -> Num:
    return e.log() if e.dtype.is_float else e.cast(DType.F64).log().cast(e.dtype)


enter("ReduceL2", _rule("add", lambda e: e * e, _root))
enter("ReduceLogSum", _rule("add", None, _log))


@rule("ReduceMean")
def reduce_mean(g: GraphImporter, node: Node) -> Tensor:
    """The mean."""
    x = node.tensor(0)
    axes = reduced_axes(node, x)
    if x.dtype.is_float and x.dtype.bits < 32:
        wide = mean(g, x, axes, bool(node.integer("keepdims", 1)), lambda e: e.cast(DType.F32))
        return g.cast(wide, x.dtype)
    return mean(g, x, axes, bool(node.integer("keepdims", 1)))


@rule("ReduceLogSumExp")
def reduce_log_sum_exp(g: GraphImporter, node: Node) -> Tensor:
    """The logarithm of a sum of exponentials, without overflow."""
    x = node.tensor(0)
    axes, keep = reduced_axes(node, x), bool(node.integer("keepdims", 1))
    if not axes and node.integer("noop_with_empty_axes"):
        return x
    top = g.map(lambda e: (e.unary("abs") < math.inf).select(e, 0.0), g.reduce(x, axes, "max", keepdims=True))
    sums = total(g, g.map(lambda e, m: (e - m).exp(), x, top), axes, True)
    result = g.map(lambda s, m: s.log() + m, sums, top)
    return result if keep else g.reshape(result, [d for i, d in enumerate(x.shape) if i not in axes])


@rule("ArgMax", "ArgMin")
def arg_extreme(g: GraphImporter, node: Node) -> Tensor:
    """The index of the first (or last) extreme."""
    x = node.tensor(0)
    axis, keep = axis_of(node.integer("axis"), x.rank), bool(node.integer("keepdims", 1))
    combiner = node.op.lower()
    if not node.integer("select_last_index"):
        return g.reduce(x, [axis], combiner, keepdims=keep)
    backwards = reversed_along(g, x, axis)
    place = g.reduce(backwards, [axis], combiner, keepdims=keep)
    return g.map(lambda e: size(e.space, dims.add(x.shape[axis], -1)) - e, place)


@rule("CumSum", "CumProd")
def cumulative(g: GraphImporter, node: Node) -> Tensor:
    """Running sums or products."""
    x = node.tensor(0)
    given = node.tensor(1)
    if given.content is None and x.rank == 1:
        axis = 0
    else:
        axis = axis_of(int(node.numbers(1).reshape(-1)[0]), x.rank)
    backwards = bool(node.integer("reverse"))
    source = reversed_along(g, x, axis) if backwards else x
    combiner = "add" if node.op == "CumSum" else "mul"
    running = g.tensor(g.builder.scan(g.value(source), axis, combiner, not node.integer("exclusive")))
    return reversed_along(g, running, axis) if backwards else running
