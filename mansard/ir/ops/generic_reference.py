"""Evaluation of `Generic` ops with NumPy.

Every operand becomes a strided view with one axis for each iteration dim (size 1 for a dim that
its map does not use), so the body is evaluated by broadcasting: a node costs only the dims it
depends on. The iteration space is cut into boxes to bound memory. A sum of products whose factors
do not share all dims is a matrix product and goes to ``np.matmul``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mansard import dims
from mansard.dtypes import DType
from mansard.errors import VerificationError
from mansard.ir.combiners import ARG_COMBINERS, UFUNCS, neutral
from mansard.ir.interpreter import scalar as scalars
from mansard.ir.interpreter.scalar import Array
from mansard.ir.scalar import Apply, Arg, Bitcast, Cast, Const, DimValue, Gather, Index, Scalar, walk
from mansard.ir.types import IndexMap

if TYPE_CHECKING:
    from mansard.ir.ops.generic import Generic

BOX_POINTS = 1 << 20
"""Iteration points evaluated at a time."""
PRODUCT_ELEMENTS = 1 << 24
"""Elements of one factor of a matrix product copied at a time."""

Box = tuple[slice, ...]


def run_generic(op: Generic, operands: Sequence[Array], symbols: Mapping[str, int]) -> Array:
    """The result of ``op`` for stored operand arrays, under given symbol values."""
    return _Evaluation(op, operands, symbols).run()


class _Evaluation:
    def __init__(self, op: Generic, operands: Sequence[Array], symbols: Mapping[str, int]) -> None:
        self.op, self.symbols = op, symbols
        self.operands = operands
        self.extents = tuple(dims.evaluate(e, symbols) for e in op.extents)
        self.rank = op.rank
        self.shape = self.extents[: self.rank]
        empty = 0 in self.extents
        self.views = [
            None if m is None or empty else self._view(a, m) for a, m in zip(operands, op.maps, strict=True)
        ]

    def run(self) -> Array:
        op = self.op
        if 0 in self.shape:
            return np.empty(self.shape, op.output.type.dtype.numpy)
        if op.combiner in ARG_COMBINERS:
            return self._arg_reduce()
        if op.combiner is None:
            out = np.empty(self.shape, op.output.type.dtype.numpy)
            for box in boxes(self.extents, BOX_POINTS):
                out[box] = scalars.to_storage(self.evaluate(op.body, box), op.body.dtype)
            return out
        return scalars.to_storage(self._reduce(), op.body.dtype)

    # Bodies ---------------------------------------------------------------------------------
    def _view(self, array: Array, index_map: IndexMap) -> Array:
        """``array`` with one axis for each iteration dim, read as the map says, without a copy."""
        used = [0] * len(self.extents)
        steps: list[tuple[int, int, int]] = []
        start: list[int] = []
        for axis, result in enumerate(index_map.results):
            low = high = dims.evaluate(result.offset, self.symbols)
            first = low
            for d, coefficient in result.terms:
                c = dims.evaluate(coefficient, self.symbols)
                reach = c * (self.extents[d] - 1)
                low, high = low + min(reach, 0), high + max(reach, 0)
                steps.append((d, c, axis))
                used[d] = 1
            outside = max(0, -low), max(0, high + 1 - array.shape[axis])
            start.append(first + outside[0])
            if any(outside) and index_map.fill is not None:
                widths = [outside if a == axis else (0, 0) for a in range(array.ndim)]
                array = np.pad(array, widths, constant_values=index_map.fill)
            elif any(outside):
                raise VerificationError(
                    f"op generic ({self.op.output}): map {index_map} reads {low} to {high} "
                    f"of a dim of {array.shape[axis]}"
                )
        shape = [e if u else 1 for e, u in zip(self.extents, used, strict=True)]
        base = array[tuple(slice(s, None) for s in start)]
        strides = [0] * len(self.extents)
        for d, c, axis in steps:
            strides[d] += c * array.strides[axis]
        return np.lib.stride_tricks.as_strided(base, shape, strides, writeable=False)

    def evaluate(self, root: Scalar, box: Box) -> Array:
        """``root`` over a box of the iteration space, broadcastable to it, as a register array."""
        done: dict[int, Array] = {}
        for node in walk(root):
            done[id(node)] = self._node(node, box, done)
        return done[id(root)]

    def _node(self, node: Scalar, box: Box, done: Mapping[int, Array]) -> Array:
        match node:
            case Arg():
                view = self.views[node.index]
                assert view is not None
                return scalars.to_register(_cut(view, box), node.dtype)
            case Const():
                return scalars.literal(node.value, node.dtype)
            case Index():
                shape = [1] * len(self.extents)
                shape[node.dim] = -1
                return np.arange(box[node.dim].start, box[node.dim].stop, dtype=np.int64).reshape(shape)
            case DimValue():
                return np.asarray(dims.evaluate(node.value, self.symbols), np.int64)
            case Gather():
                return self._gather(node, [done[id(i)] for i in node.indices])
            case Apply():
                args = [done[id(a)] for a in node.args]
                return scalars.apply(node.op, args, node.args[-1].dtype, node.dtype)
            case Cast():
                return scalars.cast(done[id(node.arg)], node.arg.dtype, node.dtype)
            case Bitcast():
                return scalars.bitcast(done[id(node.arg)], node.arg.dtype, node.dtype)

    def _gather(self, node: Gather, indices: Sequence[Array]) -> Array:
        source = self.operands[node.operand]
        if 0 in source.shape:
            # Nothing to clamp to; the value is defined to be zero, and selects discard it.
            shape = np.broadcast_shapes(*(i.shape for i in indices))
            return np.zeros(shape, scalars.register_dtype(node.dtype))
        clamped = tuple(np.clip(i, 0, n - 1) for i, n in zip(indices, source.shape, strict=True))
        return scalars.to_register(np.asarray(source[clamped]), node.dtype)

    # Reductions -----------------------------------------------------------------------------
    def _reduce(self) -> Array:
        """The reduced result as a register array."""
        op = self.op
        assert op.combiner is not None
        dtype = scalars.register_dtype(op.body.dtype)
        if 0 in self.extents:
            return np.full(self.shape, neutral(op.combiner, op.body.dtype)).astype(dtype)
        factors = self._factors()
        if factors is not None:
            return self._product(*factors).astype(dtype, copy=False)
        # f32 sums are kept in f64: the oracle should be better than what it checks.
        wide = np.dtype(np.float64) if op.combiner == "add" and dtype == np.float32 else dtype
        out = np.full(self.shape, neutral(op.combiner, op.body.dtype)).astype(wide)
        ufunc, axes = UFUNCS[op.combiner], self.op.reduced
        for box in boxes(self.extents, BOX_POINTS):
            values = self._full(self.evaluate(op.body, box), box)
            part = ufunc.reduce(values, axis=axes, dtype=wide)
            target = box[: self.rank]
            out[target] = _wrapped(ufunc(out[target], part), op.body.dtype)
        return out.astype(dtype, copy=False)

    def _arg_reduce(self) -> Array:
        op = self.op
        if 0 in self.extents:
            raise VerificationError(f"op generic ({op.output}): {op.combiner} over an empty dim")
        find = np.argmin if op.combiner == "argmin" else np.argmax
        out = np.empty(self.shape, np.int64)
        length = self.extents[-1]
        for box in boxes(self.shape, max(BOX_POINTS // length, 1)):
            whole = (*box, slice(0, length))
            out[box] = find(self._full(self.evaluate(op.body, whole), whole), axis=-1)
        return out

    @staticmethod
    def _full(values: Array, box: Box) -> Array:
        return np.broadcast_to(values, tuple(s.stop - s.start for s in box))

    # Sums of products -----------------------------------------------------------------------
    def _factors(self) -> tuple[Scalar, Scalar] | None:
        """The two factors of a sum of products where a matrix product saves work, else None."""
        body = self.op.body
        if self.op.combiner != "add" or not isinstance(body, Apply) or body.op != "mul":
            return None
        a, b = body.args
        used_a, used_b = self._used(a), self._used(b)
        if used_a | used_b != {d for d, e in enumerate(self.extents) if e != 1}:
            return None
        return (a, b) if used_a != used_b else None

    def _used(self, root: Scalar) -> set[int]:
        """Iteration dims (of more than one point) that a node depends on."""
        dims_used: set[int] = set()
        for node in walk(root):
            if isinstance(node, Index):
                dims_used.add(node.dim)
            elif isinstance(node, Arg):
                index_map = self.op.maps[node.index]
                assert index_map is not None
                dims_used |= {d for r in index_map.results for d, _ in r.terms}
        return {d for d in dims_used if self.extents[d] != 1}

    def _product(self, a: Scalar, b: Scalar) -> Array:
        used = self._used(a), self._used(b)
        out = np.empty(self.shape, scalars.register_dtype(self.op.body.dtype))
        for box in self._product_boxes(used):
            left, right = self.evaluate(a, box), self.evaluate(b, box)
            out[box[: self.rank]] = self._matmul(left, right, used, box)
        return out

    def _product_boxes(self, used: tuple[set[int], set[int]]) -> Iterator[Box]:
        """Boxes over the parallel dims in which each factor has at most PRODUCT_ELEMENTS."""
        steps = list(self.extents)
        for factor in used:
            for d in sorted(factor - set(self.op.reduced)):
                size = math.prod(steps[i] for i in factor)
                if size > PRODUCT_ELEMENTS:
                    steps[d] = max(1, steps[d] // -(-size // PRODUCT_ELEMENTS))
        return _grid(self.extents, steps)

    def _matmul(self, a: Array, b: Array, used: tuple[set[int], set[int]], box: Box) -> Array:
        """Sum over the reduced dims of ``a * b``: one batched matrix product."""
        reduced = set(self.op.reduced)
        count = len(self.extents)
        # A reduced dim in one factor only is summed first.
        alone_a = tuple(sorted((used[0] - used[1]) & reduced))
        alone_b = tuple(sorted((used[1] - used[0]) & reduced))
        a = a.sum(axis=alone_a, keepdims=True, dtype=a.dtype) if alone_a else a
        b = b.sum(axis=alone_b, keepdims=True, dtype=b.dtype) if alone_b else b
        both = used[0] & used[1]
        batch = sorted(both - reduced)
        k = sorted(both & reduced)
        m = sorted(used[0] - used[1] - reduced)
        n = sorted(used[1] - used[0] - reduced)
        rest = [d for d in range(count) if d not in {*batch, *k, *m, *n}]
        lengths = [s.stop - s.start for s in box]
        sizes = [[lengths[d] for d in group] for group in (batch, m, k, n)]
        pb, pm, pk, pn = (math.prod(s) for s in sizes)
        left = a.reshape(a.shape or (1,) * count).transpose(*batch, *m, *k, *n, *rest).reshape(pb, pm, pk)
        right = b.reshape(b.shape or (1,) * count).transpose(*batch, *k, *n, *m, *rest).reshape(pb, pk, pn)
        result = exact_matmul(left, right, pk).reshape(*sizes[0], *sizes[1], *sizes[3])
        order = [*batch, *m, *n]
        kept = [d for d in range(self.rank) if d in order]
        result = result.transpose([order.index(d) for d in kept])
        return result.reshape([lengths[d] for d in range(self.rank)])


def exact_matmul(a: Array, b: Array, depth: int) -> Array:
    """``a @ b`` in the type of ``a``; integers through f64 when no partial sum can exceed 2**53."""
    if a.dtype.kind == "f" or a.size == 0 or b.size == 0:
        return np.asarray(np.matmul(a, b))
    largest = [max(abs(int(x.min())), abs(int(x.max()))) for x in (a, b)]
    if largest[0] * largest[1] * depth < 2**53:
        whole = np.matmul(a.astype(np.float64), b.astype(np.float64))
        return np.asarray(whole.astype(np.int64).astype(a.dtype))
    return np.asarray(np.matmul(a, b))


def _wrapped(values: Array, dtype: DType) -> Array:
    return scalars.to_register(scalars.to_storage(values, dtype), dtype) if dtype.bits == 4 else values


def _cut(view: Array, box: Box) -> Array:
    return view[tuple(s if n != 1 else slice(0, 1) for s, n in zip(box, view.shape, strict=True))]


def boxes(extents: Sequence[int], points: int) -> Iterator[Box]:
    """Boxes of at most ``points`` points that cover the extents; leading (parallel) dims are cut first."""
    steps = list(extents)
    for d in range(len(steps)):
        size = math.prod(steps)
        if size <= points:
            break
        steps[d] = max(1, steps[d] // -(-size // points))
    return _grid(extents, steps)


def _grid(extents: Sequence[int], steps: Sequence[int]) -> Iterator[Box]:
    cuts: list[list[slice]] = [
        [slice(i, min(i + step, extent)) for i in range(0, extent, step)]
        for extent, step in zip(extents, steps, strict=True)
    ]
    return itertools.product(*cuts)
