"""Evaluation of ops on content with symbolic dims: the arithmetic of shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mansard import dims
from mansard.dims import DimLike
from mansard.frontends.emission.tensor import Content
from mansard.frontends.linalg import dimmath
from mansard.frontends.onnx.node import Node


def _dim(value: Any) -> DimLike:
    return value if isinstance(value, dims.Expr) else int(value)


def _each(function: Callable[[DimLike, DimLike], Any]) -> Callable[[Node], Content | None]:
    def evaluate(node: Node) -> Content | None:
        a, b = np.broadcast_arrays(node.content(0).astype(object), node.content(1).astype(object))
        results = [function(_dim(x), _dim(y)) for x, y in zip(a.ravel(), b.ravel(), strict=True)]
        if any(r is None for r in results):
            return None
        out = np.empty(a.shape, object)
        out.reshape(-1)[:] = results
        return out

    return evaluate


def _divide(a: DimLike, b: DimLike) -> DimLike | None:
    if dims.bounds(b)[0] > 0 and dims.bounds(a)[0] >= 0:
        return dimmath.floordiv(a, b)
    return dims.exact_div(a, b)


def _mod(a: DimLike, b: DimLike) -> DimLike | None:
    return dimmath.mod(a, b) if dims.bounds(b)[0] > 0 and dims.bounds(a)[0] >= 0 else None


def _compare(name: str) -> Callable[[DimLike, DimLike], bool | None]:
    def compare(a: DimLike, b: DimLike) -> bool | None:
        low, high = dims.bounds(dimmath.sub(a, b))
        truths = {
            "Equal": (low == high == 0, low > 0 or high < 0),
            "Greater": (low > 0, high <= 0),
            "GreaterOrEqual": (low >= 0, high < 0),
            "Less": (high < 0, low >= 0),
            "LessOrEqual": (high <= 0, low > 0),
        }
        yes, no = truths[name]
        return True if yes else False if no else None

    return compare


def _gather(node: Node) -> Content | None:
    return np.asarray(np.take(node.content(0), node.numbers(1).astype(np.int64), node.integer("axis")))


def _concat(node: Node) -> Content | None:
    parts = [node.content(i).astype(object) for i in range(len(node.inputs))]
    return np.concatenate(parts, node.integer("axis"))


def _slice(node: Node) -> Content | None:
    data = node.content(0)
    given = [node.int_list(i) for i in range(1, 5)] if node.version >= 10 else []
    starts, ends, axes, steps = given or (node.ints("starts"), node.ints("ends"), node.ints("axes"), None)
    assert starts is not None and ends is not None
    axes = axes if axes is not None else list(range(len(starts)))
    steps = steps or [1] * len(starts)
    where: list[Any] = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        low = -data.shape[axis] - 1
        where[axis] = slice(start, None if step < 0 and end < low else end, step)
    return np.asarray(data[tuple(where)])


def _squeeze(node: Node) -> Content | None:
    axes = node.int_list(1) if node.version >= 13 else node.ints("axes")
    return np.squeeze(node.content(0), None if axes is None else tuple(axes))


def _unsqueeze(node: Node) -> Content | None:
    axes = node.int_list(1) if node.version >= 13 else node.ints("axes")
    return np.expand_dims(node.content(0), tuple(axes or ()))


def _reduce(function: Callable[..., DimLike]) -> Callable[[Node], Content | None]:
    def evaluate(node: Node) -> Content | None:
        data = node.content(0)
        if data.ndim != 1:
            return None
        out = np.empty((1,) if node.integer("keepdims", 1) else (), object)
        out[...] = function(_dim(d) for d in data)
        return out

    return evaluate


def _where(node: Node) -> Content | None:
    condition = node.numbers(0)
    return np.where(condition, node.content(1).astype(object), node.content(2).astype(object))


def _same(node: Node) -> Content | None:
    return node.content(0)


def _cast(node: Node) -> Content | None:
    return node.content(0) if node.integer("to") in (6, 7) else None


_RULES: dict[str, Callable[[Node], Content | None]] = {
    "Add": _each(dims.add), "Sub": _each(dimmath.sub), "Mul": _each(dims.mul), "Div": _each(_divide),
    "Mod": _each(_mod), "Min": _each(dims.minimum), "Max": _each(dims.maximum),
    **{name: _each(_compare(name)) for name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")},
    "Gather": _gather, "Concat": _concat, "Slice": _slice, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze,
    "ReduceProd": _reduce(dims.product), "Where": _where, "Identity": _same, "Cast": _cast,
}  # fmt: skip


def evaluate(node: Node) -> Content | None:
    """The content of a node's result where its operands have symbolic dims, or None where it is no dim."""
    if node.op in ("Min", "Max") and len(node.inputs) != 2:
        return None
    rule = _RULES.get(node.op) if node.proto.domain in ("", "ai.onnx") else None
    return None if rule is None else rule(node)
