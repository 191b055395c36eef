"""Reductions over windows; running sums are windows that begin at the edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.convolution import spread_axis
from mansard.frontends.emission.expressions import Num, index, size
from mansard.frontends.emission.reductions import reversed_along
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.linalg import dimmath
from mansard.frontends.stablehlo import regions
from mansard.frontends.stablehlo.entries import Entry
from mansard.frontends.stablehlo.graph import StableHloImporter
from mansard.frontends.stablehlo.node import Node
from mansard.frontends.stablehlo.rules.reduction import with_start
from mansard.frontends.stablehlo.rules.slices import cut_and_padded
from mansard.frontends.stablehlo.table import rule
from mansard.ir.combiners import ARITHMETIC_COMBINERS, neutral
from mansard.ir.types import Linear


@dataclass(frozen=True)
class Windows:
    """Windows over every dim of a tensor."""

    sizes: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    """Of the window's elements."""
    spread: Sequence[int]
    """Of the tensor's elements."""
    low: Sequence[int]
    high: Sequence[int]

    @classmethod
    def of(cls, node: Node, rank: int) -> Windows:
        """The windows of an op's attributes."""
        ones = [1] * rank
        padding = node.ints("padding", [0] * (2 * rank))
        return cls(
            node.ints("window_dimensions", ones),
            node.ints("window_strides", ones),
            node.ints("window_dilations", ones),
            node.ints("base_dilations", ones),
            padding[::2],
            padding[1::2],
        )

    @property
    def wide(self) -> list[int]:
        """The dims along which windows have several elements."""
        return [i for i, n in enumerate(self.sizes) if n != 1]

    def prepared(self, g: StableHloImporter, x: Tensor, value: float | int | bool) -> Tensor:
        """The tensor with its margin and gaps of a number."""
        for axis, factor in enumerate(self.spread):
            if factor != 1:
                x = spread_axis(g, x, axis, factor, value)
        return cut_and_padded(g, x, list(self.low), list(self.high), value)

    def counts(self, shape: Sequence[DimLike]) -> list[DimLike]:
        """How many windows there are along each dim of a prepared tensor."""
        return [
            dims.add(dimmath.floordiv(dims.add(d, -(dilation * (n - 1) + 1)), stride), 1)
            for d, n, stride, dilation in zip(shape, self.sizes, self.strides, self.dilations, strict=True)
        ]


@rule("stablehlo.reduce_window")
def reduce_window(g: StableHloImporter, node: Node) -> list[Entry]:
    """Windows combined, of one tensor or of several side by side."""
    count = len(node.inputs) // 2
    names = regions.combiners_of(node.region())
    if names is None or None in names or "xor" in names:
        raise node.fail("windows reduced by a body that is not known")
    results: list[Entry] = []
    for i, name in enumerate(names):
        assert name is not None
        x = node.tensor(i)
        windows = Windows.of(node, x.rank)
        result = _scanned(g, x, windows, name)
        if result is None:
            result = _reduced(g, x, windows, name)
        results.append(with_start(g, result, node.tensor(count + i), name))
    return results


def _scanned(g: StableHloImporter, x: Tensor, windows: Windows, name: str) -> Tensor | None:
    """A running combination, where windows along one axis reach from its edge to each element."""
    axes = windows.wide
    plain = all(n == 1 for n in (*windows.strides, *windows.dilations, *windows.spread))
    if len(axes) != 1 or not plain or name not in ARITHMETIC_COMBINERS or x.dtype is DType.BOOL:
        return None
    axis = axes[0]
    extent, margin = x.shape[axis], windows.sizes[axis] - 1
    if extent != windows.sizes[axis] or any(p for p in (*windows.low, *windows.high) if p not in (0, margin)):
        return None
    low, high = windows.low[axis], windows.high[axis]
    if sorted((low, high)) != [0, margin] or sum(windows.low) + sum(windows.high) != margin:
        return None
    source = reversed_along(g, x, axis) if high else x
    running = g.tensor(g.builder.scan(g.value(source), axis, name, True))
    return reversed_along(g, running, axis) if high else running


def _reduced(g: StableHloImporter, x: Tensor, windows: Windows, name: str) -> Tensor:
    wide = windows.wide
    padded = windows.prepared(g, x, neutral(name, x.dtype))
    counts = windows.counts(padded.shape)
    narrow = name == "add" and x.dtype.is_float and x.dtype.bits < 32
    body = g.body([*counts, *(windows.sizes[i] for i in wide)])
    places = [
        Linear.dim(i, windows.strides[i]).plus(
            Linear.dim(x.rank + wide.index(i), windows.dilations[i]) if i in wide else Linear()
        )
        for i in range(x.rank)
    ]
    element = g.read(body, padded, places)
    if not wide:
        return g.finish(body, element)
    element = element.cast(DType.F32) if narrow else element
    return g.cast(g.finish(body, element, len(wide), name), x.dtype)


@rule("stablehlo.select_and_scatter")
def select_and_scatter(g: StableHloImporter, node: Node) -> Entry:
    """Each window's update added to where its extreme lies: the gradient of a maximum over windows."""
    x, source, start = node.tensors()
    selected = regions.choice_of(node.region(0))
    added = regions.combiners_of(node.region(1))
    if selected is None or added != ["add"]:
        raise node.fail("a choice that is no extreme, or updates that are not added")
    windows = Windows.of(node, x.rank)
    lowest = neutral({"argmax": "max", "argmin": "min"}[selected], x.dtype)
    padded = windows.prepared(g, x, lowest)
    wide = windows.wide
    body = g.body([*source.shape, *(windows.sizes[i] for i in wide)])
    places = [
        Linear.dim(i, windows.strides[i]).plus(Linear.dim(x.rank + wide.index(i)) if i in wide else Linear())
        for i in range(x.rank)
    ]
    elements = g.finish(body, g.read(body, padded, places))
    length = 1
    for i in wide:
        length *= windows.sizes[i]
    best = g.reduce(g.reshape(elements, (*source.shape, length)), [x.rank], selected)
    rows = _rows(g, x, best, windows)
    count = dims.product(source.shape)
    target = g.expand(g.reshape(start, (1,) * x.rank), x.shape)
    put = g.builder.scatter(
        g.value(target),
        g.value(g.reshape(rows, (count, x.rank))),
        g.value(g.reshape(source, (count,))),
        "add",
    )
    return g.tensor(put)


def _rows(g: StableHloImporter, x: Tensor, best: Tensor, windows: Windows) -> Tensor:
    """The indices into the tensor of each window's extreme."""
    body = g.body((*best.shape, x.rank))
    rest = g.read(body, best, [Linear.dim(i) for i in range(x.rank)])
    steps: dict[int, Num] = {}
    for i in reversed(windows.wide):
        steps[i] = rest % windows.sizes[i]
        rest = rest // windows.sizes[i]
    column = index(body.space, x.rank)
    result: Num | None = None
    for i in range(x.rank):
        place = index(body.space, i) * windows.strides[i] - size(body.space, windows.low[i])
        place = place + steps[i] if i in steps else place
        result = place if result is None else (column == i).select(place, result)
    assert result is not None
    return g.finish(body, result)
