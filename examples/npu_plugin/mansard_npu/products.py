"""Products of matrices and convolutions by NumPy's matrix product, on one strided view of each operand.

Every operand becomes a view with one axis for each iteration dim that its index map uses; a convolution's
windows overlap there. Axes are then rows, columns, depth and batch of one matrix product (a copy brings them
in order: im2col). Integers are multiplied in f32 as long as no partial sum can leave the 24 bits that f32
holds exactly, a piece of the depth at a time, and added up in f64: results are those of the reference
interpreter bit for bit. Products of bf16 numbers are exact in f32; only the order of their sums differs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard import dims
from mansard.dtypes import DType
from mansard.ir.interpreter import scalar as scalars
from mansard.ir.ops import Generic
from mansard.ir.scalar import Apply, Arg, Cast, Scalar
from mansard.ir.types import IndexMap

Array = npt.NDArray[Any]

EXACT = 1 << 24
"""Integers below it are exact in f32."""
TAPS = 64
"""Up to this depth a batch of thin products (a depthwise convolution) is a sum of elementwise ones."""
_LARGEST = {DType.I8: 128, DType.U8: 255}


def view(
    array: Array,
    index_map: IndexMap,
    extents: Sequence[int],
    sizes: Mapping[str, int],
    convert: Callable[[Array], Array] | None = None,
) -> Array:
    """``array`` read by a map: one axis for each extent, of size 1 where the map does not use the dim.

    ``convert`` is applied to the elements, padding included, each once however often it is read.
    """
    shape, strides = [1] * len(extents), [0] * len(extents)
    starts = []
    terms = [[(d, dims.evaluate(c, sizes)) for d, c in result.terms] for result in index_map.results]
    for axis, result in enumerate(index_map.results):
        first = dims.evaluate(result.offset, sizes)
        reaches = [c * (extents[d] - 1) for d, c in terms[axis]]
        low = first + sum(min(r, 0) for r in reaches)
        high = first + sum(max(r, 0) for r in reaches)
        outside = max(0, -low), max(0, high + 1 - array.shape[axis])
        if any(outside):
            widths = [outside if a == axis else (0, 0) for a in range(array.ndim)]
            array = np.pad(array, widths, constant_values=index_map.fill or 0)
        starts.append(slice(first + outside[0], None))
    array = array if convert is None else convert(array)
    for axis, parts in enumerate(terms):
        for d, c in parts:
            shape[d] = extents[d]
            strides[d] += c * array.strides[axis]
    return np.lib.stride_tricks.as_strided(array[tuple(starts)], shape, strides, writeable=False)


def factors_of(op: Generic) -> tuple[Scalar, Scalar] | None:
    """The two factors of a product, when each is one operand under casts alone."""
    body = op.body
    if not isinstance(body, Apply) or body.op != "mul":
        return None
    left, right = body.args
    return (left, right) if isinstance(_source(left), Arg) and isinstance(_source(right), Arg) else None


def _source(node: Scalar) -> Scalar:
    while isinstance(node, Cast):
        node = node.arg
    return node


def run_product(op: Generic, operands: Sequence[Array], sizes: Mapping[str, int]) -> Array:
    """The result of a sum of products (see `factors_of`), in the type that it is computed in."""
    factors = factors_of(op)
    assert factors is not None
    extents = [dims.evaluate(e, sizes) for e in op.extents]
    sides, largest = [], 1
    for node in factors:
        arg = _source(node)
        assert isinstance(arg, Arg)
        index_map = op.maps[arg.index]
        assert index_map is not None
        convert = functools.partial(_numbers, node=node)
        sides.append(view(operands[arg.index], index_map, extents, sizes, convert))
        largest *= _LARGEST.get(arg.dtype, EXACT)
    exact = not op.body.dtype.is_float
    step = max(1, EXACT // largest) if exact else 0
    result = _Product(op, extents, sides).run(step)
    return result.astype(scalars.register_dtype(op.body.dtype), copy=False)


def _numbers(array: Array, node: Scalar) -> Array:
    """An operand under casts as f32, where that is exact."""
    if isinstance(node, Arg):
        return widened(array, node.dtype)
    assert isinstance(node, Cast)
    inner = _numbers(array, node.arg)
    if node.dtype is DType.F32 or (node.dtype.is_int and node.arg.dtype.is_int):
        return inner
    return scalars.cast(inner, node.arg.dtype, node.dtype)


def widened(array: Array, dtype: DType) -> Array:
    """Stored numbers as f32, without rounding."""
    if dtype is DType.BF16:
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False)


class _Product:
    """Which iteration dims are rows, columns, depth and batch, and the product over them."""

    def __init__(self, op: Generic, extents: Sequence[int], sides: Sequence[Array]) -> None:
        self.extents, self.rank = extents, op.rank
        used = [{d for d, s in enumerate(side.shape) if s != 1} for side in sides]
        reduced = set(op.reduced)
        # A reduced dim of one factor alone is summed first.
        self.sides = []
        for side, ours, other in zip(sides, used, reversed(used), strict=True):
            alone = tuple(sorted((ours - other) & reduced))
            self.sides.append(side.sum(axis=alone, keepdims=True) if alone else side)
        both = used[0] & used[1]
        self.batch, self.depth = sorted(both - reduced), sorted(both & reduced)
        self.rows = sorted(used[0] - used[1] - reduced)
        self.columns = sorted(used[1] - used[0] - reduced)
        unused = reduced - used[0] - used[1]
        self.times = math.prod(extents[d] for d in unused)

    def run(self, step: int) -> Array:
        """f32, or with ``step``, the depth at a time that is exact, f64 where f32 would not be."""
        depth = math.prod(self.extents[d] for d in self.depth)
        groups = math.prod(self.extents[d] for d in self.batch)
        if groups > 1 and depth <= min(TAPS, step or TAPS) and not (self.rows and self.columns):
            result = self._by_taps()
        else:
            result = self._by_matrices(depth, step)
        return result * self.times if self.times != 1 else result

    def _by_taps(self) -> Array:
        """Element by element: there is nothing for a matrix product to reuse."""
        shape = [self.extents[d] for d in range(self.rank)]
        total = np.zeros(shape, np.float32)
        term = np.empty(shape, np.float32)
        left, right = self.sides
        for place in itertools.product(*(range(self.extents[d]) for d in self.depth)):
            at = dict(zip(self.depth, place, strict=True))
            cut = tuple(
                slice(at.get(d, 0), at.get(d, 0) + 1) if d >= self.rank else slice(None)
                for d in range(len(self.extents))
            )
            axes = tuple(range(self.rank, len(self.extents)))
            # Weights lie taps innermost; a tap of them is small, and read fast in one piece.
            parts = [side[cut].squeeze(axes) for side in (left, right)]
            parts = [part.copy() if part.size < total.size else part for part in parts]
            np.multiply(*parts, out=term)
            total += term
        return total

    def _by_matrices(self, depth: int, step: int) -> Array:
        left, right = self.sides
        rest = [d for d in range(len(self.extents)) if d not in {*self.batch, *self.rows, *self.depth}]
        a = self._ordered(left, self.batch, self.rows, self.depth, rest)
        rest = [d for d in range(len(self.extents)) if d not in {*self.batch, *self.depth, *self.columns}]
        b = self._ordered(right, self.batch, self.depth, self.columns, rest)
        if not step or depth <= step:
            result = np.matmul(a, b)
        else:
            result = np.zeros((*a.shape[:2], b.shape[2]), np.float64)
            for at in range(0, depth, step):
                result += np.matmul(a[:, :, at : at + step], b[:, at : at + step])
        order = [*self.batch, *self.rows, *self.columns]
        result = result.reshape([self.extents[d] for d in order])
        result = result.transpose([order.index(d) for d in sorted(order)])
        return (
            result.reshape([self.extents[d] for d in range(self.rank)])
            if self._full(order)
            else (self._spread(result, order))
        )

    def _ordered(
        self, side: Array, first: list[int], second: list[int], third: list[int], rest: list[int]
    ) -> Array:
        sizes = [math.prod(self.extents[d] for d in group) for group in (first, second, third)]
        return side.transpose(*first, *second, *third, *rest).reshape(sizes)

    def _full(self, order: Sequence[int]) -> bool:
        return all(self.extents[d] == 1 or d in order for d in range(self.rank))

    def _spread(self, result: Array, order: Sequence[int]) -> Array:
        """A result dim that no factor uses repeats."""
        shape = [self.extents[d] if d in order else 1 for d in range(self.rank)]
        return np.broadcast_to(result.reshape(shape), [self.extents[d] for d in range(self.rank)])
