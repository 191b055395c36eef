"""Evaluation of ops on known content: arithmetic of shapes, of indices and of loop counters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.tensor import Content, Tensor
from mansard.frontends.linalg import dimmath
from mansard.frontends.stablehlo.node import Node, content_of

_MAX_ELEMENTS = 1 << 12
Function = Callable[..., Any]


def fold(node: Node) -> Content | None:
    """The result of an op, or None where it is not known."""
    if len(node.op.results) != 1 or not node.inputs:
        return None
    shape = node.shape()
    if any(d is None for d in shape) or math.prod(d for d in shape if d is not None) > _MAX_ELEMENTS:
        return None
    if node.name == "stablehlo.broadcast_in_dim" and node.dtype().is_float:
        return None  # read where it is
    if node.name == "stablehlo.and" and any(_is_false(entry) for entry in node.inputs):
        return np.zeros(node.static_shape(), np.bool_)  # whatever the other is
    operands: list[Content] = []
    for entry in node.inputs:
        if not isinstance(entry, Tensor):
            return None
        content = entry.content
        if content is None and entry.splat is not None and not entry.dtype.is_float:
            content = content_of(entry)
        if content is None:
            return None
        operands.append(content)
    if any(isinstance(entry, Tensor) and entry.symbolic for entry in node.inputs):
        return _symbolic(node, operands)
    function = _NUMPY.get(node.name)
    if function is None:
        return None
    with np.errstate(all="ignore"):
        return np.asarray(function(node, *operands))


def _is_false(entry: Any) -> bool:
    content = entry.content if isinstance(entry, Tensor) and not entry.symbolic else None
    return content is not None and content.dtype == np.bool_ and not content.any()


# Content without symbolic dims --------------------------------------------------------------
def _wrapped(function: Function) -> Function:
    """Arithmetic of one type: integers wrap in it, bf16 is rounded to it."""
    return lambda node, *xs: np.asarray(function(*xs)).astype(xs[-1].dtype)


def _divide(a: Content, b: Content) -> Content:
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = np.floor_divide(a, safe)
    exact = quotient + ((np.remainder(a, safe) != 0) & ((a < 0) != (b < 0))).astype(a.dtype)
    return np.where(b == 0, np.asarray(-1).astype(a.dtype), exact)


def _remainder(a: Content, b: Content) -> Content:
    if a.dtype.kind not in "iu":
        return np.fmod(a, b)
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, b.dtype.type(1), b)))


_COMPARE: dict[str, Function] = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater,
    "GE": np.greater_equal,
}  # fmt: skip


def _compare(node: Node, a: Content, b: Content) -> Content | None:
    return np.asarray(_COMPARE[node.word("comparison_direction")](a, b))


def _broadcast(node: Node, x: Content) -> Content:
    shape = node.static_shape()
    placed = [1] * len(shape)
    for axis, place in enumerate(node.ints("broadcast_dimensions")):
        placed[place] = x.shape[axis]
    return np.broadcast_to(x.reshape(placed), shape)


def _slice(node: Node, x: Content) -> Content:
    starts, limits = node.ints("start_indices"), node.ints("limit_indices")
    steps = node.ints("strides", [1] * x.ndim)
    return np.asarray(x[tuple(map(slice, starts, limits, steps))])


def _dynamic_slice(node: Node, x: Content, *starts: Content) -> Content:
    sizes = node.ints("slice_sizes")
    low = [min(max(int(s), 0), d - n) for s, d, n in zip(starts, x.shape, sizes, strict=True)]
    return np.asarray(x[tuple(slice(s, s + n) for s, n in zip(low, sizes, strict=True))])


def _dynamic_update_slice(node: Node, x: Content, update: Content, *starts: Content) -> Content:
    low = [min(max(int(s), 0), d - n) for s, d, n in zip(starts, x.shape, update.shape, strict=True)]
    result = np.array(x)
    result[tuple(slice(s, s + n) for s, n in zip(low, update.shape, strict=True))] = update
    return result


def _convert(node: Node, x: Content) -> Content | None:
    dtype = node.dtype()
    if x.dtype.kind not in "iub":
        return x.astype(dtype.numpy) if dtype.is_float else None
    return x != 0 if dtype is DType.BOOL else x.astype(dtype.numpy)


_NUMPY: dict[str, Function] = {
    "stablehlo.add": lambda node, a, b: a | b if a.dtype == np.bool_ else np.add(a, b),
    "stablehlo.subtract": _wrapped(np.subtract),
    "stablehlo.multiply": lambda node, a, b: a & b if a.dtype == np.bool_ else np.multiply(a, b),
    "stablehlo.divide": _wrapped(_divide), "stablehlo.remainder": _wrapped(_remainder),
    "stablehlo.maximum": _wrapped(np.maximum), "stablehlo.minimum": _wrapped(np.minimum),
    "stablehlo.sign": _wrapped(np.sign),
    "stablehlo.negate": _wrapped(np.negative), "stablehlo.abs": _wrapped(np.abs),
    "stablehlo.and": _wrapped(np.bitwise_and), "stablehlo.or": _wrapped(np.bitwise_or),
    "stablehlo.xor": _wrapped(np.bitwise_xor), "stablehlo.not": _wrapped(np.invert),
    "stablehlo.compare": _compare, "stablehlo.convert": _convert,
    "stablehlo.select": lambda node, c, a, b: np.where(c, a, b),
    "stablehlo.clamp": lambda node, low, x, high: np.minimum(np.maximum(x, low), high),
    "stablehlo.reshape": lambda node, x: x.reshape(node.static_shape()),
    "stablehlo.transpose": lambda node, x: x.transpose(node.ints("permutation")),
    "stablehlo.broadcast_in_dim": _broadcast, "stablehlo.slice": _slice,
    "stablehlo.concatenate": lambda node, *xs: np.concatenate(xs, node.integer("dimension")),
    "stablehlo.reverse": lambda node, x: np.flip(x, node.ints("dimensions")),
    "stablehlo.dynamic_slice": _dynamic_slice, "stablehlo.dynamic_update_slice": _dynamic_update_slice,
}  # fmt: skip


# Content with symbolic dims -----------------------------------------------------------------
def _dim(value: Any) -> DimLike:
    return value if isinstance(value, dims.Expr) else int(value)


def _each(function: Callable[[DimLike, DimLike], Any]) -> Function:
    def evaluate(node: Node, a: Content, b: Content) -> Content | None:
        left, right = np.broadcast_arrays(a.astype(object), b.astype(object))
        results = [function(_dim(x), _dim(y)) for x, y in zip(left.ravel(), right.ravel(), strict=True)]
        if any(r is None for r in results):
            return None
        out = np.empty(left.shape, object)
        out.reshape(-1)[:] = results
        return out

    return evaluate


def _quotient(a: DimLike, b: DimLike) -> DimLike | None:
    if dims.bounds(b)[0] > 0 and dims.bounds(a)[0] >= 0:
        return dimmath.floordiv(a, b)
    return dims.exact_div(a, b)


def _rest(a: DimLike, b: DimLike) -> DimLike | None:
    return dimmath.mod(a, b) if dims.bounds(b)[0] > 0 and dims.bounds(a)[0] >= 0 else None


def _decide(direction: str) -> Callable[[DimLike, DimLike], bool | None]:
    def compare(a: DimLike, b: DimLike) -> bool | None:
        low, high = dims.bounds(dimmath.sub(a, b))
        yes, no = {
            "EQ": (low == high == 0, low > 0 or high < 0),
            "NE": (low > 0 or high < 0, low == high == 0),
            "GT": (low > 0, high <= 0),
            "GE": (low >= 0, high < 0),
            "LT": (high < 0, low >= 0),
            "LE": (high <= 0, low > 0),
        }[direction]
        return True if yes else False if no else None

    return compare


def _symbolic_compare(node: Node, a: Content, b: Content) -> Content | None:
    decided: Content | None = _each(_decide(node.word("comparison_direction")))(node, a, b)
    return decided


def _negated(node: Node, x: Content) -> Content | None:
    product: Content | None = _each(dims.mul)(node, x, np.asarray(-1))
    return product


def _symbolic_sign(node: Node, x: Content) -> Content | None:
    return np.ones(x.shape, np.int64) if all(dims.bounds(_dim(d))[0] > 0 for d in x.ravel()) else None


def _symbolic_convert(node: Node, x: Content) -> Content | None:
    return x if node.dtype() in (DType.I32, DType.I64, DType.U32, DType.U64) else None


def _symbolic_clamp(node: Node, low: Content, x: Content, high: Content) -> Content | None:
    raised = _each(dims.maximum)(node, x, low)
    limited: Content | None = None if raised is None else _each(dims.minimum)(node, raised, high)
    return limited


def _symbolic_select(node: Node, c: Content, a: Content, b: Content) -> Content | None:
    return np.where(c, a.astype(object), b.astype(object)) if c.dtype != np.object_ else None


_SYMBOLIC: dict[str, Function] = {
    "stablehlo.add": _each(dims.add), "stablehlo.subtract": _each(dimmath.sub),
    "stablehlo.multiply": _each(dims.mul), "stablehlo.divide": _each(_quotient),
    "stablehlo.remainder": _each(_rest), "stablehlo.maximum": _each(dims.maximum),
    "stablehlo.minimum": _each(dims.minimum), "stablehlo.negate": _negated,
    "stablehlo.sign": _symbolic_sign,
    "stablehlo.compare": _symbolic_compare, "stablehlo.convert": _symbolic_convert,
    "stablehlo.clamp": _symbolic_clamp, "stablehlo.select": _symbolic_select,
    **{name: _NUMPY[name] for name in (
        "stablehlo.reshape", "stablehlo.transpose", "stablehlo.broadcast_in_dim", "stablehlo.slice",
        "stablehlo.reverse")},
    "stablehlo.concatenate": lambda node, *xs: np.concatenate(
        [x.astype(object) for x in xs], node.integer("dimension")),
}  # fmt: skip


def _symbolic(node: Node, operands: list[Content]) -> Content | None:
    function = _SYMBOLIC.get(node.name)
    content: Content | None = None if function is None else function(node, *operands)
    if content is None:
        return None
    content = np.asarray(content)
    if content.dtype == np.object_ and content.size:
        flat = list(content.ravel())
        if all(isinstance(x, (bool, np.bool_)) for x in flat):
            return content.astype(np.bool_)
        if all(isinstance(x, (int, np.integer)) for x in flat):
            return content.astype(np.int64)
    return content
