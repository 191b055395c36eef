"""What the bodies of reductions, scatters and sorts compute, found by looking at them or by evaluating them.

A body of comparisons and choices between its arguments depends on nothing but their order; evaluated for
arguments in every order, zeros of both signs, infinities and NaN among them, it is known completely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.frontends.stablehlo import attributes

Array = npt.NDArray[Any]

_COMBINERS = {
    "stablehlo.add": "add", "stablehlo.multiply": "mul", "stablehlo.maximum": "max",
    "stablehlo.minimum": "min", "stablehlo.and": "and", "stablehlo.or": "or", "stablehlo.xor": "xor",
}  # fmt: skip
_LOGICAL = {"add": "or", "mul": "and", "max": "or", "min": "and"}


def combiners_of(block: Any) -> list[str | None] | None:
    """For each result of a body of pairs of arguments, how it combines its pair.

    None for one that is the second of its pair. No list for a body that computes something else.
    """
    arguments, operations = list(block.arguments), [view.operation for view in block.operations]
    count = len(arguments) // 2
    results = list(operations[-1].operands)
    names: list[str | None] = []
    for number, value in enumerate(results):
        pair = (arguments[number], arguments[count + number])
        if value == pair[1]:
            names.append(None)
            continue
        producer = next((op for op in operations if any(r == value for r in op.results)), None)
        if producer is None or producer.name not in _COMBINERS:
            return None
        a, b = producer.operands
        if not ((a == pair[0] and b == pair[1]) or (a == pair[1] and b == pair[0])):
            return None
        name = _COMBINERS[producer.name]
        dtype = attributes.element_type(value.type)
        names.append(_LOGICAL.get(name, name) if dtype is DType.BOOL else name)
    return names


# Bodies that compare ------------------------------------------------------------------------
class _UnknownError(Exception):
    """The body has an op that is not evaluated."""


_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater,
    "GE": np.greater_equal,
}  # fmt: skip
_EXTREMES: dict[str, Callable[[Array, Array], Array]] = {
    "stablehlo.maximum": np.maximum, "stablehlo.minimum": np.minimum,
}  # fmt: skip
_LOGIC: dict[str, Callable[..., Array]] = {
    "stablehlo.and": np.logical_and, "stablehlo.or": np.logical_or, "stablehlo.xor": np.logical_xor,
    "stablehlo.not": np.logical_not,
}  # fmt: skip


def evaluate(block: Any, arguments: Sequence[Array]) -> list[Array] | None:
    """The results of a body of comparisons and choices for arrays of arguments; None for other bodies."""
    values = dict(zip(block.arguments, arguments, strict=True))
    for view in block.operations:
        op = view.operation
        operands = [values.get(v) for v in op.operands]
        if any(x is None for x in operands):
            return None
        if op.name == "stablehlo.return":
            return [x for x in operands if x is not None]
        try:
            values[op.results[0]] = _evaluated(op, operands)
        except _UnknownError:
            return None
    return None


def _evaluated(op: Any, operands: Sequence[Any]) -> Array:
    if op.name == "stablehlo.constant":
        return np.asarray(attributes.dense(op.attributes["value"]))
    if op.name == "stablehlo.select":
        return np.asarray(np.where(operands[0], operands[1], operands[2]))
    if op.name in _EXTREMES:
        return np.asarray(_EXTREMES[op.name](*operands))
    if op.name in _LOGIC and all(x.dtype == np.bool_ for x in operands):
        return np.asarray(_LOGIC[op.name](*operands))
    if op.name == "stablehlo.compare":
        a, b = operands
        if "TOTALORDER" in attributes.stated(op, "compare_type"):
            a, b = _ordered(a), _ordered(b)
        return np.asarray(_COMPARE[attributes.word(op.attributes["comparison_direction"])](a, b))
    raise _UnknownError


def _ordered(x: Array) -> Array:
    """Integers in the total order of floats."""
    if x.dtype.kind in "iub":
        return x
    bits = x.view(np.dtype(f"i{x.dtype.itemsize}"))
    return np.where(bits < 0, bits ^ np.asarray((1 << (8 * x.dtype.itemsize - 1)) - 1, bits.dtype), bits)


def _samples(dtype: DType, *, nan: bool = True) -> Array:
    if dtype is DType.BOOL:
        return np.array([False, True])
    if dtype.is_float:
        numbers = [-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, *([math.nan] if nan else [])]
        return np.array(numbers).astype(dtype.numpy)
    return np.arange(3).astype(dtype.numpy)


def extreme_of(block: Any) -> str | None:
    """``argmax`` or ``argmin`` for a body that keeps the first extreme and its index.

    NaN counts as the extreme, also where the body leaves it open.
    """
    arguments = list(block.arguments)
    if len(arguments) != 4:
        return None
    dtypes = [attributes.element_type(a.type) for a in arguments]
    if not dtypes[1].is_int:
        return None
    known = (_extreme_among(block, dtypes, _samples(dtypes[0], nan=nan)) for nan in (True, False))
    return next((name for name in known if name is not None), None)


def _extreme_among(block: Any, dtypes: Sequence[DType], samples: Array) -> str | None:
    """The extreme that a body keeps of pairs of some numbers, whose indices are in order."""
    first, second = (x.ravel() for x in np.meshgrid(samples, samples, indexing="ij"))
    low = np.zeros(first.shape, dtypes[1].numpy)
    results = evaluate(block, [first, low, second, low + 1])
    if results is None or len(results) != 2:
        return None
    for name, better in (("argmax", np.greater), ("argmin", np.less)):
        a, b = first.astype(np.float64), second.astype(np.float64)
        keeps = np.isnan(a) | (~np.isnan(b) & (better(a, b) | (a == b)))
        same = np.array_equal(results[0].astype(np.float64), np.where(keeps, a, b), equal_nan=True)
        if same and np.array_equal(results[1], np.where(keeps, 0, 1)):
            return name
    return None


@dataclass(frozen=True)
class SortOrder:
    """The operands that a sort compares, the first one before all, and whether each descends."""

    keys: tuple[tuple[int, bool], ...]


def order_of(block: Any) -> SortOrder | None:
    """The order of a comparator that is lexicographic in some operands, or None for another.

    NaN comes last in ascending and first in descending order, also where the comparator leaves it open.
    """
    arguments = list(block.arguments)
    dtypes = [attributes.element_type(a.type) for a in arguments[::2]]
    for candidate in _candidates(_read_operands(block, arguments), len(dtypes)):
        if _follows(block, dtypes, candidate, nan=True) or _follows(block, dtypes, candidate, nan=False):
            return SortOrder(candidate)
    return None


def _read_operands(block: Any, arguments: Sequence[Any]) -> list[int]:
    """The operands that a comparator reads, in the order of their first use."""
    used: list[int] = []
    for view in block.operations:
        for value in view.operation.operands:
            for number, argument in enumerate(arguments):
                if value == argument and number // 2 not in used:
                    used.append(number // 2)
    return used


def _candidates(used: Sequence[int], count: int) -> list[tuple[tuple[int, bool], ...]]:
    orders: list[tuple[tuple[int, bool], ...]] = []
    if not used or len(used) > 3 or count < len(used):
        return orders
    for sequence in (list(used), list(reversed(used))):
        orders += [
            tuple((k, bool(directions >> i & 1)) for i, k in enumerate(sequence))
            for directions in range(1 << len(used))
        ]
    return orders


def _follows(block: Any, dtypes: Sequence[DType], keys: Sequence[tuple[int, bool]], *, nan: bool) -> bool:
    axes = [_samples(dtypes[k], nan=nan) for k, _ in keys for _ in range(2)]
    if len(keys) > 2:
        axes = [a[:: max(1, len(a) // 3)] for a in axes]
    grids = [x.ravel() for x in np.meshgrid(*axes, indexing="ij")]
    arguments = [np.zeros(grids[0].shape, dtypes[i // 2].numpy) for i in range(2 * len(dtypes))]
    for position, (key, _) in enumerate(keys):
        arguments[2 * key], arguments[2 * key + 1] = grids[2 * position], grids[2 * position + 1]
    results = evaluate(block, arguments)
    if results is None or len(results) != 1:
        return False
    before = np.zeros(grids[0].shape, np.bool_)
    equal = np.ones(grids[0].shape, np.bool_)
    zeros = np.ones(grids[0].shape, np.bool_)
    for position, (_, descending) in enumerate(keys):
        a, b = (_rank(x) for x in grids[2 * position : 2 * position + 2])
        before |= equal & ((a > b) if descending else (a < b))
        equal &= a == b
        raw = [x.astype(np.float64) for x in grids[2 * position : 2 * position + 2]]
        zeros &= ~((raw[0] == 0) & (raw[1] == 0) & (np.signbit(raw[0]) != np.signbit(raw[1])))
    # A sort may tell -0 from 0; the answers are equal as numbers all the same.
    return bool((results[0] == before)[zeros].all())


def _rank(x: Array) -> Array:
    """Numbers in the order of a sort: NaN after all others."""
    wide = x.astype(np.float64)
    return np.where(np.isnan(wide), np.inf, np.arctan(wide))


def choice_of(block: Any) -> str | None:
    """``argmax`` or ``argmin`` for a body that says whether the first of two elements is preferred."""
    (argument, _) = block.arguments
    samples = _samples(attributes.element_type(argument.type), nan=False)
    first, second = (x.ravel() for x in np.meshgrid(samples, samples, indexing="ij"))
    results = evaluate(block, [first, second])
    if results is None:
        return None
    for name, compare in (("argmax", np.greater_equal), ("argmin", np.less_equal)):
        if np.array_equal(results[0], compare(first, second)):
            return name
    return None
