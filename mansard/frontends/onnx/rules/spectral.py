"""Fourier transforms, as products with tables of cosines and sines, and windows of signals."""

from __future__ import annotations

import math

import numpy as np

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import axis_of
from mansard.frontends.emission.expressions import Num, index, size
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.graph import GraphImporter, dtype_named
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import enter, rule
from mansard.ir.types import Linear

MAX_LENGTH = 4096


@rule("DFT")
def dft(g: GraphImporter, node: Node) -> Tensor:
    """A transform along one axis of (…, 1) real or (…, 2) complex numbers."""
    x = node.tensor(0)
    if node.version >= 20:
        axis = int(node.numbers(2).reshape(-1)[0]) if node.optional(2) is not None else -2
    else:
        axis = node.integer("axis", 1)
    axis = axis_of(axis, x.rank)
    inverse, onesided = bool(node.integer("inverse")), bool(node.integer("onesided"))
    stated = node.optional(1)
    given = int(node.numbers(1).reshape(-1)[0]) if stated is not None else None
    extent = x.shape[axis]
    if not isinstance(extent, int) or max(extent, given or 0) > MAX_LENGTH:
        raise node.fail(f"a transform of {extent} numbers; up to {MAX_LENGTH} are supported")
    if inverse and onesided:
        length = given or 2 * (extent - 1)
        return transform(
            g, _mirrored(g, _fitted(g, x, axis, length // 2 + 1), axis, length), axis, length, -1, real=True
        )
    length = given or extent
    count = length // 2 + 1 if onesided else length
    return transform(g, _fitted(g, x, axis, length), axis, count, -1 if inverse else 1)


def _fitted(g: GraphImporter, x: Tensor, axis: int, length: int) -> Tensor:
    """An axis cut off or filled with zeros."""
    extent = int(str(x.shape[axis]))
    if extent >= length:
        return g.part(x, axis, 0, length)
    high: list[DimLike] = [0] * x.rank
    high[axis] = length - extent
    return g.pad(x, [0] * x.rank, high)


def _mirrored(g: GraphImporter, x: Tensor, axis: int, length: int) -> Tensor:
    """All bins of a real signal, from the first half: the others are conjugates."""
    half = int(str(x.shape[axis]))
    body = g.body((*x.shape[:axis], length, *x.shape[axis + 1 :]))
    here = [index(body.space, i) for i in range(x.rank)]
    upper = here[axis] >= half
    here[axis] = upper.select(length - here[axis], here[axis])
    element = g.at(body, x, here)
    conjugate = upper & (index(body.space, x.rank - 1) == 1)
    return g.finish(body, conjugate.select(-element, element))


def transform(g: GraphImporter, x: Tensor, axis: int, count: int, sign: int, *, real: bool = False) -> Tensor:
    """``count`` bins; the inverse (``sign`` -1) is divided by the length; ``real`` drops imaginary parts."""
    length = int(str(x.shape[axis]))
    angles = 2 * math.pi * (np.outer(np.arange(count), np.arange(length)) % length) / length
    scale = 1.0 if sign > 0 else 1.0 / length
    tables = [
        g.literal((f(angles) * scale).astype(np.float64).astype(x.dtype.numpy), x.dtype)
        for f in (np.cos, np.sin)
    ]
    parts = [g.take(x, x.rank - 1, i) for i in range(int(str(x.shape[-1])))]
    products = [[_along(g, part, table, axis) for table in tables] for part in parts]
    re, im = products[0][0], products[0][1]
    if len(products) == 1:
        results = [re, g.map(lambda s: s * float(-sign), im)]
    else:
        (rc, rs), (ic, is_) = products
        results = [
            g.map(lambda a, b: a + b * float(sign), rc, is_),
            g.map(lambda a, b: a - b * float(sign), ic, rs),
        ]
    return g.stack(results[:1] if real else results, x.rank - 1)


def _along(g: GraphImporter, x: Tensor, table: Tensor, axis: int) -> Tensor:
    """A product with a table (bins, length) along one axis."""
    body = g.body((*x.shape[:axis], table.shape[0], *x.shape[axis + 1 :], x.shape[axis]))
    linear = [Linear.dim(i) for i in range(x.rank)]
    linear[axis] = Linear.dim(x.rank)
    a = g.read(body, x, linear)
    b = g.read(body, table, [Linear.dim(axis), Linear.dim(x.rank)])
    return g.finish(body, a * b, 1, "add")


@rule("STFT")
def stft(g: GraphImporter, node: Node) -> Tensor:
    """Transforms of frames of a signal, times a window."""
    signal, window = node.tensor(0), node.optional(2)
    step = int(node.numbers(1).reshape(-1)[0])
    stated = node.optional(3)
    length = int(str(window.shape[0])) if window is not None else 0
    if stated is not None:
        length = int(node.numbers(3).reshape(-1)[0])
    extent = signal.shape[1]
    if not isinstance(extent, int):
        raise node.fail("a signal of symbolic length")
    if signal.rank == 2:
        signal = g.unsqueeze(signal, 2)
    frames = (extent - length) // step + 1
    body = g.body((signal.shape[0], frames, length, signal.shape[2]))
    linear = [Linear.dim(0), Linear.dim(1, step).plus(Linear.dim(2)), Linear.dim(3)]
    element = g.read(body, signal, linear)
    if window is not None:
        element = element * g.read(body, window, [Linear.dim(2)])
    count = length // 2 + 1 if node.integer("onesided", 1) else length
    return transform(g, g.finish(body, element), 2, count, 1)


def _cosines(name: str, coefficients: tuple[float, ...]) -> None:
    def window(g: GraphImporter, node: Node) -> Tensor:
        stated = g.stated_shape(node)
        dtype = dtype_named(node.integer("output_datatype", 1), node)
        if node.tensor(0).content is None and stated is not None:
            count = stated[0]
        else:
            (count,) = node.dim_list(0)
        periodic = bool(node.integer("periodic", 1))
        body = g.body((count,))
        wide = DType.F64 if dtype is DType.F64 else DType.F32
        length = size(body.space, count).cast(wide)
        turn = index(body.space, 0).cast(wide) * (2 * math.pi) / (length if periodic else length - 1.0)
        total: Num = turn.number(coefficients[0])
        for k, c in enumerate(coefficients[1:], 1):
            total = total + (turn * float(k)).unary("cos") * c
        return g.finish(body, total.cast(dtype))

    enter(name, window)


_cosines("HannWindow", (0.5, -0.5))
_cosines("HammingWindow", (25 / 46, -21 / 46))
_cosines("BlackmanWindow", (0.42, -0.5, 0.08))
