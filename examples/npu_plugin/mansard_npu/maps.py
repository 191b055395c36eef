"""The NPU's vector unit: elementwise ops one after another on pieces that stay in the host's cache.

Values that only later ops of the same run read, element by element, are never stored as a whole. Bodies mean
what `mansard.ir.interpreter.scalar` says; two functions that are slow there have another way here:
conversions to integers of numbers that surely fit, and erf, which is a rational approximation within 5e-7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard import dims
from mansard.dtypes import DType
from mansard.ir.interpreter import scalar as scalars
from mansard.ir.ops import Generic
from mansard.ir.ops.generic_reference import boxes
from mansard.ir.scalar import Apply, Arg, Bitcast, Cast, Const, DimValue, Index, Scalar, walk
from mansard.ir.types import IndexMap, Value
from mansard_npu.products import view, widened

Array = npt.NDArray[Any]
Box = tuple[slice, ...]

PIECE = 1 << 14
"""Elements at a time."""
_ERF_EVEN = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF_BELOW = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
    -1.42647390514189e-02,
)  # fmt: skip
"""erf(x) = x P(x^2) / Q(x^2) for |x| <= 4, beyond which it is 1 in f32 (the approximation of Eigen)."""


@dataclass(frozen=True)
class Run:
    """Elementwise ops over one iteration space; ``kept`` are the results that others read."""

    ops: tuple[Generic, ...]
    kept: frozenset[Value]


def run_maps(run: Run, values: dict[Value, Array], sizes: Mapping[str, int]) -> None:
    """Evaluate a run; adds the kept results to ``values``, in memory that is there or in new arrays."""
    extents = [dims.evaluate(e, sizes) for e in run.ops[0].extents]
    for value in run.kept:
        if value not in values:
            values[value] = np.empty(extents, value.type.dtype.numpy)
    if 0 in extents:
        return
    inside = {op.output for op in run.ops}
    views = {
        (op.inputs[i], index_map): view(values[op.inputs[i]], index_map, extents, sizes)
        for op in run.ops
        for i, index_map in enumerate(op.maps)
        if index_map is not None and op.inputs[i] not in inside
    }
    with np.errstate(all="ignore"):
        for box in boxes(extents, PIECE):
            piece: dict[Value, Array] = {}
            for op in run.ops:
                result = _evaluate(op, box, piece, views, sizes)
                piece[op.output] = result
                if op.output in run.kept:
                    values[op.output][box] = scalars.to_storage(result, op.output.type.dtype)


def joins(op: Generic, run: Sequence[Generic]) -> bool:
    """Whether an elementwise op may follow a run: over its space, reading its results where they are made."""
    if not run:
        return True
    intermediates = {earlier.output for earlier in run}
    identity = IndexMap.identity(op.rank)
    reads = zip(op.inputs, op.maps, strict=True)
    return op.extents == run[0].extents and all(m == identity for v, m in reads if v in intermediates)


def _evaluate(
    op: Generic,
    box: Box,
    piece: Mapping[Value, Array],
    views: Mapping[tuple[Value, IndexMap], Array],
    sizes: Mapping[str, int],
) -> Array:
    done: dict[int, Array] = {}
    for node in walk(op.body):
        done[id(node)] = _node(node, op, box, done, piece, views, sizes)
    result = done[id(op.body)]
    rounded = scalars.to_register(scalars.to_storage(result, op.body.dtype), op.body.dtype)
    return rounded if op.body.dtype in scalars.NARROW else result


def _node(
    node: Scalar,
    op: Generic,
    box: Box,
    done: Mapping[int, Array],
    piece: Mapping[Value, Array],
    views: Mapping[tuple[Value, IndexMap], Array],
    sizes: Mapping[str, int],
) -> Array:
    match node:
        case Arg():
            value, index_map = op.inputs[node.index], op.maps[node.index]
            if value in piece:
                return piece[value]
            assert index_map is not None
            whole = views[value, index_map]
            cut = whole[tuple(s if n != 1 else slice(0, 1) for s, n in zip(box, whole.shape, strict=True))]
            return (
                widened(cut, node.dtype) if node.dtype is DType.BF16 else scalars.to_register(cut, node.dtype)
            )
        case Const():
            return scalars.literal(node.value, node.dtype)
        case Index():
            shape = [1] * len(box)
            shape[node.dim] = -1
            return np.arange(box[node.dim].start, box[node.dim].stop, dtype=np.int64).reshape(shape)
        case DimValue():
            return np.asarray(dims.evaluate(node.value, sizes), np.int64)
        case Cast():
            return _cast(done[id(node.arg)], node.arg.dtype, node.dtype)
        case Bitcast():
            return scalars.bitcast(done[id(node.arg)], node.arg.dtype, node.dtype)
        case Apply(op="erf", dtype=DType.F32):
            return _erf(done[id(node.args[0])])
        case Apply():
            return scalars.apply(node.op, [done[id(a)] for a in node.args], node.args[-1].dtype, node.dtype)
    raise AssertionError(f"the vector unit has no {type(node).__name__}")


def _cast(x: Array, source: DType, target: DType) -> Array:
    if source.is_float and target.is_int and target.bits >= 8 and x.size:
        info = np.iinfo(target.numpy)
        if x.min() > info.min - 1 and x.max() < min(info.max + 1, 2**62):  # false for NaN
            return x.astype(target.numpy)
    return scalars.cast(x, source, target)


def _erf(x: Array) -> Array:
    bounded = np.clip(x, np.float32(-4), np.float32(4))
    square = bounded * bounded
    return np.asarray(bounded * _polynomial(_ERF_EVEN, square) / _polynomial(_ERF_BELOW, square))


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= x
        total += np.float32(coefficient)
    return total
