"""Reductions over dims."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mansard.dtypes import DType
from mansard.frontends.emission.reductions import total
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.stablehlo import regions
from mansard.frontends.stablehlo.entries import Entry
from mansard.frontends.stablehlo.graph import StableHloImporter
from mansard.frontends.stablehlo.node import Node
from mansard.frontends.stablehlo.table import rule
from mansard.ir.combiners import neutral


@rule("stablehlo.reduce")
def reduce(g: StableHloImporter, node: Node) -> list[Entry]:
    """Elements along dims combined, of one tensor or of several side by side."""
    count = len(node.inputs) // 2
    tensors = [node.tensor(i) for i in range(count)]
    starts = [node.tensor(count + i) for i in range(count)]
    axes = node.ints("dimensions")
    names = regions.combiners_of(node.region())
    if names is not None and None not in names:
        return [
            with_start(g, combined(g, node, x, axes, name), start, name)
            for x, start, name in zip(tensors, starts, names, strict=True)
            if name is not None
        ]
    return _extreme(g, node, tensors, starts, axes)


def combined(g: StableHloImporter, node: Node, x: Tensor, axes: Sequence[int], name: str) -> Tensor:
    """The reduction of one tensor."""
    if name == "add":
        return total(g, x, list(axes), False)
    if name == "xor":
        if x.dtype is not DType.BOOL:
            raise node.fail("a reduction by exclusive or of integers")
        ones = g.reduce(x, axes, "add", function=lambda e: e.cast(DType.I32))
        return g.map(lambda e: (e & 1) != 0, ones)
    return g.reduce(x, axes, name)


def with_start(g: StableHloImporter, result: Tensor, start: Tensor, name: str) -> Tensor:
    """A reduction's result combined with the number that it starts from."""
    number = g.scalar_number(start)
    if number is not None and is_neutral(name, number, result.dtype):
        return result
    op = "xor" if name == "xor" else name
    return g.map(lambda a, b: a.binary(op, b), result, g.reshape(start, ()))


def is_neutral(name: str, number: float | int | bool, dtype: DType) -> bool:
    """Whether a number leaves the others as they are."""
    if name == "xor":
        return not number
    value = neutral(name, dtype)
    if dtype.is_float and math.isinf(float(value)) and dtype.bits <= 16:
        return float(number) == value
    return number == value


def _extreme(
    g: StableHloImporter, node: Node, tensors: list[Tensor], starts: list[Tensor], axes: list[int]
) -> list[Entry]:
    """The first extreme along a dim and its index."""
    name = regions.extreme_of(node.region())
    x = tensors[0]
    if name is None or len(axes) != 1:
        raise node.fail("a reduction whose body is not known")
    if not g.is_ramp(tensors[1], axes[0], x.shape[axes[0]]):
        raise node.fail("a reduction of pairs that are not an element and its index")
    first = g.scalar_number(starts[0])
    plain = {"argmax": "max", "argmin": "min"}[name]
    if first is None or not is_neutral(plain, first, x.dtype):
        raise node.fail("an extreme that starts from a number of its own")
    numbers = g.cast(x, DType.I8) if x.dtype is DType.BOOL else x
    place = g.cast(g.reduce(numbers, axes, name), tensors[1].dtype)
    logical = {"max": "or", "min": "and"}[plain] if x.dtype is DType.BOOL else plain
    return [g.reduce(x, axes, logical), place]


@rule("stablehlo.map")
def map_rule(g: StableHloImporter, node: Node) -> Entry:
    """A body for each element, of which whole tensors take the place."""
    (result,) = g.block(node.region(), [g.tensor_of(entry) for entry in node.inputs])
    return result
