"""Evaluation of operators on known content: the arithmetic of shapes, and the counters of loops.

Elements may be dims (in arrays of objects). What is not whole numbers or bools is left to the Graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mansard import dims
from mansard.dims import DimLike
from mansard.frontends.emission.tensor import Content, Tensor
from mansard.frontends.linalg import dimmath
from mansard.frontends.tflite.node import Node, quantisation_of
from mansard.frontends.tflite.slicing import slices_of

MAX_ELEMENTS = 1024
Fold = Callable[[Node], Content | Sequence[Content] | None]


def fold(node: Node) -> list[Content] | None:
    """The results of an operator, or None where they are not known."""
    rule = _RULES.get(node.op)
    if rule is None or node.operator.custom or not node.operator.outputs:
        return None
    if node.op not in ("SHAPE", "RANK"):
        if not all(entry is None or _is_known(entry) for entry in node.inputs):
            return None
        if any(quantisation_of(node.info(i)) for i, entry in enumerate(node.inputs) if entry is not None):
            return None
    result = rule(node)
    if result is None:
        return None
    results = list(result) if isinstance(result, (list, tuple)) else [result]
    return [_plain(r) for r in results] if all(np.size(r) <= MAX_ELEMENTS for r in results) else None


def _is_known(entry: Any) -> bool:
    known = isinstance(entry, Tensor) and entry.content is not None
    return known and not entry.dtype.is_float


def _plain(content: Any) -> Content:
    """Content without dims as numbers or bools."""
    array = np.asarray(content)
    if array.dtype != np.object_ or not array.size:
        return array if array.dtype != np.object_ else array.astype(np.int64)
    flat = list(array.ravel())
    if all(isinstance(x, (bool, np.bool_)) for x in flat):
        return array.astype(np.bool_)
    return array.astype(np.int64) if all(isinstance(x, (int, np.integer)) for x in flat) else array


def _dim(value: Any) -> Any:
    return value if isinstance(value, dims.Expr) else int(value)


def _each(function: Callable[[Any, Any], Any]) -> Fold:
    def evaluate(node: Node) -> Content | None:
        if len(node.inputs) != 2 or node.activation != "NONE":
            return None
        a, b = np.broadcast_arrays(node.content(0).astype(object), node.content(1).astype(object))
        return _collected(a.shape, [function(_dim(x), _dim(y)) for x, y in zip(a.flat, b.flat, strict=True)])

    return evaluate


def _collected(shape: tuple[int, ...], results: list[Any]) -> Content | None:
    if any(r is None for r in results):
        return None
    out = np.empty(shape, object)
    out.reshape(-1)[:] = results
    return out


def _quotient(a: DimLike, b: DimLike) -> DimLike | None:
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return _floor_quotient(a, b)


def _floor_quotient(a: DimLike, b: DimLike) -> DimLike | None:
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b else None
    if dims.bounds(b)[0] > 0 and dims.bounds(a)[0] >= 0:
        return dimmath.floordiv(a, b)
    return dims.exact_div(a, b)


def _remainder(a: DimLike, b: DimLike) -> DimLike | None:
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else None
    return dimmath.mod(a, b) if dims.bounds(b)[0] > 0 and dims.bounds(a)[0] >= 0 else None


def _compare(name: str) -> Callable[[DimLike, DimLike], bool | None]:
    def compare(a: DimLike, b: DimLike) -> bool | None:
        low, high = dims.bounds(dimmath.sub(a, b))
        yes, no = {
            "EQUAL": (low == high == 0, low > 0 or high < 0),
            "NOT_EQUAL": (low > 0 or high < 0, low == high == 0),
            "GREATER": (low > 0, high <= 0),
            "GREATER_EQUAL": (low >= 0, high < 0),
            "LESS": (high < 0, low >= 0),
            "LESS_EQUAL": (high <= 0, low > 0),
        }[name]
        return True if yes else False if no else None

    return compare


def _shape(node: Node) -> Content:
    return _listed(node.tensor(0).shape)


def _listed(values: Sequence[Any]) -> Content:
    out = np.empty(len(values), object)
    out[:] = list(values)
    return out


def _reshape(node: Node) -> Content:
    wanted = node.ints(1) if len(node.inputs) > 1 else node.integers("new_shape")
    return node.content(0).reshape(wanted)


def _squeeze(node: Node) -> Content:
    axes = node.integers("squeeze_dims")
    return np.squeeze(node.content(0), tuple(axes) if axes else None)


def _concatenation(node: Node) -> Content:
    parts = [node.content(i).astype(object) for i in range(len(node.inputs))]
    return np.concatenate(parts, node.integer("axis"))


def _pack(node: Node) -> Content:
    return np.stack([node.content(i).astype(object) for i in range(len(node.inputs))], node.integer("axis"))


def _unpack(node: Node) -> list[Content]:
    content, axis = node.content(0), node.integer("axis")
    return [np.asarray(np.take(content, i, axis)) for i in range(content.shape[axis])]


def _split(node: Node) -> list[Content]:
    return np.split(node.content(1), node.integer("num_splits"), node.ints(0)[0])


def _gather(node: Node) -> Content | None:
    if node.integer("batch_dims"):
        return None
    return np.asarray(np.take(node.content(0), node.numbers(1).astype(np.int64), node.integer("axis")))


def _strided_slice(node: Node) -> Content:
    x = node.content(0)
    taken = slices_of(node, x.shape)
    where: list[Any] = []
    for extent, s in zip(x.shape, taken.axes, strict=True):
        first, count = int(str(s.first)), int(str(s.count))
        where.append([first + i * s.step for i in range(count)] if extent else [])
    return x[np.ix_(*where)].reshape([int(str(d)) for d in taken.shape])


def _slice(node: Node) -> Content:
    x, begin, size = node.content(0), node.ints(1), node.ints(2)
    return x[tuple(slice(b, None if s < 0 else b + s) for b, s in zip(begin, size, strict=True))]


def _reduce(function: Callable[[Any, Any], Any]) -> Fold:
    def evaluate(node: Node) -> Content | None:
        data = node.content(0)
        if data.ndim != 1 or not data.size:
            return None
        out = np.empty((1,) if node.flag("keep_dims") else (), object)
        out[...] = functools.reduce(function, (_dim(d) for d in data))
        return out

    return evaluate


def _logical(function: Callable[..., Any]) -> Fold:
    def evaluate(node: Node) -> Content | None:
        operands = [node.content(i) for i in range(len(node.inputs))]
        if any(x.dtype == np.object_ for x in operands):
            return None
        return np.asarray(function(*operands))

    return evaluate


def _select(node: Node) -> Content:
    condition = node.numbers(0)
    return np.where(condition, node.content(1).astype(object), node.content(2).astype(object))


def _fill(node: Node) -> Content:
    return np.full(node.ints(0), node.content(1).reshape(-1)[0], object)


def _range(node: Node) -> Content:
    start, limit, delta = (int(node.numbers(i).reshape(-1)[0]) for i in range(3))
    return np.arange(start, limit, delta)


def _cast(node: Node) -> Content | None:
    dtype = node.result().dtype
    if dtype.is_float:
        return None
    content = node.content(0)
    return content if content.dtype == np.object_ else content.astype(dtype.numpy)


def _broadcast_args(node: Node) -> Content | None:
    a, b = node.dims(0), node.dims(1)
    rank = max(len(a), len(b))
    pairs = zip([1] * (rank - len(a)) + a, [1] * (rank - len(b)) + b, strict=True)
    return _listed([y if isinstance(x, int) and x == 1 else x for x, y in pairs])


def _reverse(node: Node) -> Content:
    return np.flip(node.content(0), tuple(node.ints(1)))


_RULES: dict[str, Fold] = {
    "ADD": _each(dims.add), "SUB": _each(dimmath.sub), "MUL": _each(dims.mul), "DIV": _each(_quotient),
    "FLOOR_DIV": _each(_floor_quotient), "FLOOR_MOD": _each(_remainder),
    "MAXIMUM": _each(dims.maximum), "MINIMUM": _each(dims.minimum),
    **{
        name: _each(_compare(name))
        for name in ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")
    },
    "SHAPE": _shape, "RANK": lambda node: np.asarray(node.tensor(0).rank), "RESHAPE": _reshape,
    "SQUEEZE": _squeeze, "EXPAND_DIMS": lambda node: np.expand_dims(node.content(0), node.ints(1)[0]),
    "CONCATENATION": _concatenation, "PACK": _pack, "UNPACK": _unpack, "SPLIT": _split, "GATHER": _gather,
    "STRIDED_SLICE": _strided_slice, "SLICE": _slice, "SELECT": _select, "SELECT_V2": _select,
    "REDUCE_PROD": _reduce(dims.mul), "SUM": _reduce(dims.add),
    "REDUCE_MAX": _reduce(dims.maximum), "REDUCE_MIN": _reduce(dims.minimum),
    "LOGICAL_AND": _logical(np.logical_and), "LOGICAL_OR": _logical(np.logical_or),
    "LOGICAL_NOT": _logical(np.logical_not), "NEG": _logical(np.negative), "ABS": _logical(np.abs),
    "FILL": _fill, "RANGE": _range, "CAST": _cast, "BROADCAST_ARGS": _broadcast_args, "REVERSE_V2": _reverse,
    "ZEROS_LIKE": lambda node: np.zeros(node.content(0).shape, np.int64),
}  # fmt: skip
