"""Every scalar op and conversion on every element type, with all pairs of the values that hurt."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from mansard.dtypes import DType
from mansard.ir import Graph, GraphBuilder, IndexMap, Value
from mansard.ir.scalar import Apply, Arg, Bitcast, Cast, Const, Scalar
from mansard.ir.scalar_ops import ScalarOp, scalar_ops
from support.fuzzing.case import Array, Case
from support.fuzzing.comparison import EXACT, Tolerance
from support.fuzzing.values import DTYPES, mixed, specials

BUILT_IN = tuple(scalar_ops())
"""The ops of the package: tests that register others do so later."""
ULPS = {
    "exp": 1, "exp2": 2, "expm1": 2, "log": 1, "log2": 2, "log1p": 2, "tanh": 3, "sinh": 3, "cosh": 2,
    "erf": 7, "sin": 3, "cos": 3, "tan": 4, "asin": 3, "acos": 3, "atan": 2, "rsqrt": 2, "pow": 2, "atan2": 3,
}  # fmt: skip
"""Largest errors that the lowerings' docstrings state, of f32 and f64; every other op is exact."""
REFERENCE_ULPS = 2
"""What NumPy's own functions may be off by."""
UNDEFINED_ZERO = frozenset({"min", "max", "sign"})
"""Ops whose result may be either zero (`mansard.ir.interpreter.scalar`)."""


def tolerance(op: str, dtype: DType) -> Tolerance:
    """What a result of an op may be off by."""
    if op in UNDEFINED_ZERO:
        return Tolerance(zero_sign=False)
    if op not in ULPS or not dtype.is_float:
        return EXACT
    # Narrow types are computed in f32 and rounded once: either neighbour of what lies between them.
    wide = dtype in (DType.F32, DType.F64)
    return Tolerance(ulps=ULPS[op] + REFERENCE_ULPS if wide else 1)


def scalar_graph(dtype: DType, length: int) -> tuple[Graph, tuple[Tolerance, ...]]:
    """All ops that take an element type over the same operands, each with an output of its name."""
    b = GraphBuilder(f"scalars_{dtype.value}")
    operands = [b.input("x", (length,), dtype), b.input("y", (length,), dtype)]
    condition = b.input("c", (length,), DType.BOOL)
    ops = [op for op in BUILT_IN if op.accepts(dtype)]
    results = [apply(b, op, operands, condition, dtype) for op in ops]
    return b.build(results, [op.name for op in ops]), tuple(tolerance(op.name, dtype) for op in ops)


def apply(b: GraphBuilder, op: ScalarOp, operands: list[Value], condition: Value, dtype: DType) -> Value:
    """One op on whole operands of the same shape."""
    count = op.arity - op.conditional
    inputs = operands[:count]
    args: list[Arg] = [Arg(i, dtype) for i in range(count)]
    if op.conditional:
        inputs, args = [condition, *inputs], [Arg(0, DType.BOOL), *(Arg(i + 1, dtype) for i in range(count))]
    identity = IndexMap.identity(inputs[0].type.rank)
    body = Apply(op.name, tuple(args), op.result_dtype(dtype))
    return b.generic(inputs, [identity] * len(inputs), inputs[0].type.shape, body, name=op.name)


def scalar_operands(dtype: DType, rng: np.random.Generator, extra: int = 200) -> tuple[Array, Array, Array]:
    """Two operands with every pair of specials and ``extra`` random ones, and a condition."""
    points = specials(dtype)
    pairs = np.array(list(itertools.product(range(len(points)), repeat=2)))
    x = np.concatenate([points[pairs[:, 0]], mixed(rng, dtype, (extra,))])
    y = np.concatenate([points[pairs[:, 1]], mixed(rng, dtype, (extra,))])
    return x, y, rng.integers(0, 2, x.size).astype(np.bool_)


def scalar_case(dtype: DType, seed: int) -> Case:
    """All ops of an element type on all pairs of specials; the length is odd, so that vectors have a rest."""
    rng = np.random.default_rng(seed)
    inputs = scalar_operands(dtype, rng, 200 + int(rng.integers(0, 17)))
    graph, tolerances = scalar_graph(dtype, inputs[0].size)
    return Case("scalar op", graph, (inputs,), tolerances)


def conversion_case(source: DType, seed: int) -> Case:
    """A type to every other, by value and, where as wide, by bits."""
    rng = np.random.default_rng(seed)
    points = specials(source)
    data = np.concatenate([points, mixed(rng, source, (300 + int(rng.integers(0, 17)),))])
    b = GraphBuilder(f"conversions_{source.value}")
    x = b.input("x", data.shape, source)
    names, outputs = [], []
    for target in DTYPES:
        bodies: dict[str, Scalar] = {"cast": Cast(Arg(0, source), target)}
        if source.bits == target.bits and source not in (DType.BOOL, DType.BF16) and target.is_int:
            bodies["bits"] = Bitcast(_not_nan(source), target)
        for kind, body in bodies.items():
            names.append(f"{kind}_{target.value}")
            outputs.append(b.generic([x], [IndexMap.identity(1)], data.shape, body, name=names[-1]))
    graph = b.build(outputs, names)
    return Case("conversion", graph, ((data,),), (EXACT,) * len(outputs))


def _not_nan(dtype: DType) -> Scalar:
    """The operand, or 1 for a NaN, whose bits no register keeps."""
    x = Arg(0, dtype)
    if not dtype.is_float:
        return x
    return Apply("select", (Apply("isnan", (x,), DType.BOOL), Const(1.0, dtype), x), dtype)


def scalar_cases(seed: int) -> Iterator[Case]:
    """Every op and conversion once."""
    for number, dtype in enumerate(DTYPES):
        yield scalar_case(dtype, seed + number)
        yield conversion_case(dtype, seed + number)
