"""Graphs whose kernels measure the figures of a device."""

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
"""Sizes of matrices are multiples of this."""
_MIN_SIDE, _MAX_SIDE, _DEEPEST = 128, 4096, 1 << 14
_LINKS = 4
"""The number of products of a chain."""
_LAYERS, _WIDTH = 4, 128
"""Layers of small norms, and the channels of the first."""
_WALK, _WALKERS = 48, 128
"""The number of layers of `walk`, and its rows: as many as a small model has tokens."""


def stream(elements: int) -> Graph:
    """y = x + 1 over f32: 8 bytes moved per element, and one operation."""
    b = GraphBuilder("stream")
    width = 1 << 12
    shape = (elements // width, width) if elements % width == 0 else (elements,)
    x = b.input("x", shape, DType.F32)
    body = Apply("add", (Arg(0, DType.F32), Const(1.0, DType.F32)), DType.F32)
    return b.build([b.generic([x], [IndexMap.identity(len(shape))], shape, body)])


def norm(elements: int) -> Graph:
    """A layer norm of one row of f32: one dispatch that reads it three times."""
    b = GraphBuilder("norm")
    return b.build([normalised(b, b.input("x", (1, elements), DType.F32))])


def layers() -> Graph:
    """Norms of one row of f32, each after a product with a small matrix: a sequence of dispatches as in a
    model, in which each depends on the previous one, reads its result, and is a different kernel."""
    b = GraphBuilder("layers")
    x = b.input("x", (1, _WIDTH), DType.F32)
    widths = [_WIDTH + number * _STEP for number in range(_LAYERS + 1)]
    for number, (k, n) in enumerate(itertools.pairwise(widths)):
        x = normalised(b, multiplied(b, x, k, n, number))
    return b.build([x])


def walk() -> Graph:
    """A sequence of a hundred small products and norms: a call that never fills a large device."""
    b = GraphBuilder("walk")
    widths = [_WIDTH + _STEP * (number % _LAYERS) for number in range(_WALK + 1)]
    x = b.input("x", (_WALKERS, widths[0]), DType.F32)
    for number, (k, n) in enumerate(itertools.pairwise(widths)):
        x = normalised(b, multiplied(b, x, k, n, number % _LAYERS))
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
    """Chains of matrix products with about ``operations`` operations each: square ones, and ones with fewer
    channels than rows, as in convolutions."""
    edge, narrow = _size(square_depth(operations)), _size(square_depth(operations) / 2)
    return [chain(DType(dtype), edge, edge, edge), chain(DType(dtype), edge * 4, narrow, narrow)]


def deep_products(dtype: str, operations: float) -> Graph | None:
    """A chain of products with about ``operations`` operations each, alternately `DEEP` times deeper and
    shallower than a square one; None if the matrices would be too large."""
    depth = round(square_depth(operations) * DEEP / _STEP) * _STEP
    if depth > _DEEPEST:
        return None
    edge = max(_STEP, round((operations / 2 / depth) ** 0.5 / _STEP) * _STEP)
    return chain(DType(dtype), edge, depth, edge)


def chain(dtype: DType, m: int, k: int, n: int) -> Graph:
    """x (m, k) times a constant (k, n), times one (n, k), and so on; summed in f32, or i32 for integers, with
    each result clamped below and converted to x's type. The bounds differ, so that every product is a
    different kernel, as in models: a device must fetch the code of each."""
    b = GraphBuilder(f"products_{dtype.value}")
    x = b.input("x", (m, k), dtype)
    for number in range(_LINKS):
        x = multiplied(b, x, (k, n)[number % 2], (n, k)[number % 2], number)
    return b.build([x])


def multiplied(b: GraphBuilder, x: Value, k: int, n: int, number: int) -> Value:
    """x (m, k) times a constant (k, n), in x's type, clamped below by a value that nearly all elements
    exceed."""
    m, dtype = x.type.shape[0], x.type.dtype
    wide = DType.F32 if dtype.is_float else DType.I32

    def widened(operand: int) -> Scalar:
        return Arg(operand, dtype) if dtype is wide else Cast(Arg(operand, dtype), wide)

    name = f"w{number}"
    w = b.constant(name, Constant.of(random(dtype, (k, n), number), name), (k, n), dtype)
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1))]
    body = Apply("mul", (widened(0), widened(1)), wide)
    y = b.generic([x, w], maps, (m, n, k), body, reduced=1, combiner="add")
    bound = Const(-1000.0 - number, wide) if dtype.is_float else Const(-1000000 - number, wide)
    bounded: Scalar = Apply("max", (Arg(0, wide), bound), wide)
    result = bounded if dtype is wide else Cast(bounded, dtype)
    return b.generic([y], [IndexMap.identity(2)], (m, n), result)


def normalised(b: GraphBuilder, x: Value) -> Value:
    """A layer norm of rows of f32, without scale and shift."""
    (rows, width), same = x.type.shape, IndexMap.identity(2)
    row, other, third = (Arg(place, DType.F32) for place in range(3))
    each, count = IndexMap.of_dims((0,)), Const(float(str(width)), DType.F32)

    def mean(values: Value, maps: list[IndexMap], inputs: list[Value], body: Scalar) -> Value:
        total = b.generic([values, *inputs], [same, *maps], x.type.shape, body, reduced=1, combiner="add")
        return b.generic([total], [IndexMap.identity(1)], (rows,), Apply("div", (row, count), DType.F32))

    middle = mean(x, [], [], row)
    away = Apply("sub", (row, other), DType.F32)
    variance = mean(x, [each], [middle], Apply("mul", (away, away), DType.F32))
    bound = Const(1e-5, DType.F32)
    root = Apply("rsqrt", (Apply("add", (third, bound), DType.F32),), DType.F32)
    body = Apply("mul", (away, root), DType.F32)
    return b.generic([x, middle, variance], [same, each, each], x.type.shape, body)


def random(dtype: DType, size: tuple[int, int], seed: int) -> npt.NDArray[np.generic]:
    """A random matrix; floats are scaled so that products keep their magnitude."""
    generator = np.random.default_rng(seed)
    if dtype.is_float:
        limit = (3 / size[0]) ** 0.5
        return generator.uniform(-limit, limit, size).astype(np.float32).astype(dtype.numpy)
    return generator.integers(-127, 128, size).astype(dtype.numpy)


def _size(wanted: float) -> int:
    return min(_MAX_SIDE, max(_MIN_SIDE, round(wanted / _STEP) * _STEP))
