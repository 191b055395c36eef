"""Graphs whose kernels tell what a device can do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.ir import Constant, Graph, GraphBuilder, IndexMap
from mansard.ir.scalar import Apply, Arg, Cast, Const, Scalar

_STEP = 64
"""Sizes of matrices are multiples of it."""
_LEAST, _MOST = 128, 4096
_LINKS = 4
"""Products of a chain."""


def stream(elements: int) -> Graph:
    """y = x + 1 over f32: 8 bytes moved per element, and one operation."""
    b = GraphBuilder("stream")
    width = 1 << 12
    shape = (elements // width, width) if elements % width == 0 else (elements,)
    x = b.input("x", shape, DType.F32)
    body = Apply("add", (Arg(0, DType.F32), Const(1.0, DType.F32)), DType.F32)
    return b.build([b.generic([x], [IndexMap.identity(len(shape))], shape, body)])


def norm(elements: int) -> Graph:
    """x over the root of the mean of its squares, in f32: one dispatch that reads its row twice."""
    b = GraphBuilder("norm")
    shape, same = (1, elements), IndexMap.identity(2)
    x = b.input("x", shape, DType.F32)
    own, total = Arg(0, DType.F32), Arg(1, DType.F32)
    square = Apply("mul", (own, own), DType.F32)
    squares = b.generic([x], [same], shape, square, reduced=1, combiner="add")
    mean = Apply("div", (total, Const(float(elements), DType.F32)), DType.F32)
    body = Apply("mul", (own, Apply("rsqrt", (mean,), DType.F32)), DType.F32)
    return b.build([b.generic([x, squares], [same, IndexMap.of_dims((0,))], shape, body)])


def sums(elements: int) -> Graph:
    """The sums of rows of f32: 4 bytes read per element, few written."""
    b = GraphBuilder("sums")
    width = 1 << 10
    x = b.input("x", (elements // width, width), DType.F32)
    rows = IndexMap.identity(2)
    total = b.generic([x], [rows], x.type.shape, Arg(0, DType.F32), reduced=1, combiner="add")
    return b.build([total])


def products(dtype: str, operations: float) -> list[Graph]:
    """Chains of products of matrices with about so many operations each: square, and with fewer channels than
    rows, as convolutions have them."""
    edge = _size((operations / 2) ** (1 / 3))
    return [chain(DType(dtype), edge, edge), chain(DType(dtype), edge * 4, _size(edge / 2))]


def chain(dtype: DType, m: int, k: int) -> Graph:
    """x (m, k) times a constant (k, k), times another, and so on; summed in f32, or i32 for integers, each
    result converted to x's type."""
    b = GraphBuilder(f"products_{dtype.value}")
    wide = DType.F32 if dtype.is_float else DType.I32
    x = b.input("x", (m, k), dtype)
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1))]

    def widened(number: int) -> Scalar:
        return Arg(number, dtype) if dtype is wide else Cast(Arg(number, dtype), wide)

    for number in range(_LINKS):
        name = f"w{number}"
        w = b.constant(name, Constant.of(_random(dtype, k, number), name), (k, k), dtype)
        body = Apply("mul", (widened(0), widened(1)), wide)
        x = b.generic([x, w], maps, (m, k, k), body, reduced=1, combiner="add")
        if dtype is not wide:
            x = b.generic([x], [IndexMap.identity(2)], (m, k), Cast(Arg(0, wide), dtype))
    return b.build([x])


def _random(dtype: DType, edge: int, seed: int) -> npt.NDArray[np.generic]:
    """A square matrix; of floats such that products keep the size of their numbers."""
    generator, shape = np.random.default_rng(seed), (edge, edge)
    if dtype.is_float:
        most = (3 / edge) ** 0.5
        return generator.uniform(-most, most, shape).astype(np.float32).astype(dtype.numpy)
    return generator.integers(-127, 128, shape).astype(dtype.numpy)


def _size(wanted: float) -> int:
    return min(_MOST, max(_LEAST, round(wanted / _STEP) * _STEP))
