"""Products of rows with matrices, and the norm of the rows before them, as graphs."""

import numpy as np

from mansard.ir import Constant, GraphBuilder, IndexMap
from mansard.ir.scalar import Apply, Arg, Cast, Const
from support.graphs import F32

RNG = np.random.default_rng(11)
ROW, EVERY = IndexMap.of_dims((0,)), IndexMap.identity(2)


def wide(index, dtype):
    """An operand as f32."""
    return Arg(index, F32) if dtype is F32 else Cast(Arg(index, dtype), F32)


def op(name, *args):
    """A function of f32."""
    return Apply(name, args, F32)


def normalised(b, x, dtype):
    """The rows of x divided by the root of their mean square."""
    rows, depth = x.type.shape
    element = wide(0, dtype)
    squares = b.generic([x], [EVERY], (rows, depth), op("mul", element, element), reduced=1, combiner="add")
    mean = op("add", op("mul", Arg(1, F32), Const(1 / depth, F32)), Const(1e-6, F32))
    body = op("mul", element, op("rsqrt", mean))
    return b.generic([x, squares], [EVERY, ROW], (rows, depth), body if dtype is F32 else Cast(body, dtype))


def product(b, x, weight, dtype):
    """x (rows, depth) times weight (columns, depth), in f32."""
    rows, (columns, depth) = x.type.shape[0], weight.type.shape
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((1, 2))]
    body = op("mul", wide(0, dtype), wide(1, weight.type.dtype))
    return b.generic([x, weight], maps, (rows, columns, depth), body, reduced=1, combiner="add")


def constant(b, name, columns, depth, outliers=0):
    """Random weights (columns, depth) in f32, which can be quantised; ``outliers`` are so many of a row that
    are much larger than the others, and decide its products."""
    numbers = RNG.standard_normal((columns, depth)) / np.sqrt(depth)
    if outliers:
        numbers *= 2.0**-16
        for row in numbers:
            row[RNG.choice(depth, RNG.integers(outliers + 1), replace=False)] *= 2.0**18
    return b.constant(name, Constant.of(numbers.astype(np.float32), name), (columns, depth), F32)


def products(
    rows, columns, depth, dtype, *, norm=True, gated=False, residual=False, constants=False, outliers=0
):
    """One product, negated, or two of which one gates the other, of a norm or of the rows themselves; with
    ``residual`` something is added. With ``constants`` weights are constants in f32."""
    b = GraphBuilder()
    x = b.input("x", (rows, depth), dtype)
    count = 2 if gated else 1
    if constants:
        weights = [constant(b, f"w{i}", columns, depth, outliers) for i in range(count)]
    else:
        weights = [b.input(f"w{i}", (columns, depth), dtype) for i in range(count)]
    y = normalised(b, x, dtype) if norm else x
    first, *others = (product(b, y, w, dtype) for w in weights)
    body = op("mul", Apply("exp", (Arg(0, F32),), F32), Arg(1, F32)) if gated else op("neg", Arg(0, F32))
    values = [first, *others]
    if residual:
        values.append(b.input("residual", (rows, columns), dtype))
        body = Cast(op("add", body, wide(len(values) - 1, dtype)), dtype)
    return b.build([b.generic(values, [EVERY] * len(values), (rows, columns), body)])
