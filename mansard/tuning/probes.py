"""Graphs whose kernels tell what a device can do."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.ir import Constant, Graph, GraphBuilder, IndexMap
from mansard.ir.scalar import Apply, Arg, Cast, Const, Scalar
from mansard.ir.types import Value
from mansard.targets.profile import DEEP, square_depth

_STEP = 64
"""Sizes of matrices are multiples of it."""
_LEAST, _MOST, _DEEPEST = 128, 4096, 1 << 14
_LINKS = 4
"""Products of a chain."""
_LAYERS, _ROWS, _WIDTH = 6, 64, 128
"""Layers of small norms, their rows, and the channels of the first."""


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
    return b.build([_normalised(b, b.input("x", (1, elements), DType.F32))])


def layers() -> Graph:
    """Small norms of rows of f32, each behind a small product: dispatches as they follow each other in a
    model, where every one waits for the one before, reads what that has written, and is another kernel."""
    b = GraphBuilder("layers")
    x = b.input("x", (_ROWS, _WIDTH), DType.F32)
    widths = [_WIDTH + number * _STEP for number in range(_LAYERS + 1)]
    for number, (k, n) in enumerate(itertools.pairwise(widths)):
        x = _normalised(b, _multiplied(b, x, k, n, number))
    return b.build([x])


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
    edge, narrow = _size(square_depth(operations)), _size(square_depth(operations) / 2)
    return [chain(DType(dtype), edge, edge, edge), chain(DType(dtype), edge * 4, narrow, narrow)]


def deep_products(dtype: str, operations: float) -> Graph | None:
    """A chain of products with about so many operations each, every other `DEEP` times as deep as a square
    one and the rest as much shallower; None where the matrices would be too large."""
    depth = round(square_depth(operations) * DEEP / _STEP) * _STEP
    if depth > _DEEPEST:
        return None
    edge = max(_STEP, round((operations / 2 / depth) ** 0.5 / _STEP) * _STEP)
    return chain(DType(dtype), edge, depth, edge)


def chain(dtype: DType, m: int, k: int, n: int) -> Graph:
    """x (m, k) times a constant (k, n), times one (n, k), and so on; summed in f32, or i32 for integers, each
    result bounded from below and converted to x's type. The bounds differ, such that every product is another
    kernel, as in models: a device fetches the code of each."""
    b = GraphBuilder(f"products_{dtype.value}")
    x = b.input("x", (m, k), dtype)
    for number in range(_LINKS):
        x = _multiplied(b, x, (k, n)[number % 2], (n, k)[number % 2], number)
    return b.build([x])


def _multiplied(b: GraphBuilder, x: Value, k: int, n: int, number: int) -> Value:
    """x (m, k) times a constant (k, n), of x's type, and at least what nearly all of the result is."""
    m, dtype = x.type.shape[0], x.type.dtype
    wide = DType.F32 if dtype.is_float else DType.I32

    def widened(operand: int) -> Scalar:
        return Arg(operand, dtype) if dtype is wide else Cast(Arg(operand, dtype), wide)

    name = f"w{number}"
    w = b.constant(name, Constant.of(_random(dtype, (k, n), number), name), (k, n), dtype)
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1))]
    body = Apply("mul", (widened(0), widened(1)), wide)
    y = b.generic([x, w], maps, (m, n, k), body, reduced=1, combiner="add")
    least = Const(-1000.0 - number, wide) if dtype.is_float else Const(-1000000 - number, wide)
    bounded: Scalar = Apply("max", (Arg(0, wide), least), wide)
    result = bounded if dtype is wide else Cast(bounded, dtype)
    return b.generic([y], [IndexMap.identity(2)], (m, n), result)


def _normalised(b: GraphBuilder, x: Value) -> Value:
    """Rows of f32 over the root of the mean of their squares."""
    shape, same = x.type.shape, IndexMap.identity(2)
    own, total = Arg(0, DType.F32), Arg(1, DType.F32)
    square = Apply("mul", (own, own), DType.F32)
    squares = b.generic([x], [same], shape, square, reduced=1, combiner="add")
    mean = Apply("div", (total, Const(float(str(shape[1])), DType.F32)), DType.F32)
    body = Apply("mul", (own, Apply("rsqrt", (mean,), DType.F32)), DType.F32)
    return b.generic([x, squares], [same, IndexMap.of_dims((0,))], shape, body)


def _random(dtype: DType, size: tuple[int, int], seed: int) -> npt.NDArray[np.generic]:
    """A matrix; of floats such that products keep the size of their numbers."""
    generator = np.random.default_rng(seed)
    if dtype.is_float:
        most = (3 / size[0]) ** 0.5
        return generator.uniform(-most, most, size).astype(np.float32).astype(dtype.numpy)
    return generator.integers(-127, 128, size).astype(dtype.numpy)


def _size(wanted: float) -> int:
    return min(_MOST, max(_LEAST, round(wanted / _STEP) * _STEP))
