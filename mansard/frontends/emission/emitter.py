"""Tensor operations that rules are written with; each appends ops to the Graph and returns a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mansard import dims, dtypes
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.frontends.emission import expressions
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.linalg.body import Body
from mansard.frontends.linalg.importer import Builder
from mansard.frontends.linalg.scalars import Space, as_dim, dim_scalar
from mansard.ir.combiners import ARG_COMBINERS
from mansard.ir.ops import Op
from mansard.ir.scalar import Const, Scalar
from mansard.ir.shapes import same_dim, same_shape
from mansard.ir.types import Constant, IndexMap, Linear, Value


class SizesDifferError(ImportModelError):
    """Sizes that must be equal and are not, as far as is known."""

    def __init__(self, left: DimLike, right: DimLike) -> None:
        self.left, self.right = left, right
        super().__init__(f"sizes {left} and {right} must be equal")


def static(shape: Iterable[DimLike]) -> bool:
    """Whether every dim is a number."""
    return all(isinstance(d, int) for d in shape)


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front. Raises ImportModelError for one the tensor does not have."""
    if not -rank <= axis < max(rank, 1):
        raise ImportModelError(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank if rank else 0


def broadcast_shape(*shapes: Sequence[DimLike]) -> tuple[DimLike, ...]:
    """The common shape of tensors, by NumPy's rules. Raises ImportModelError where there is none."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[DimLike] = [1] * rank
    for shape in shapes:
        for i, d in enumerate(shape, rank - len(shape)):
            if isinstance(d, int) and d == 1:
                continue
            if isinstance(result[i], int) and result[i] == 1:
                result[i] = d
            elif not same_dim(result[i], d):
                raise SizesDifferError(result[i], d)
            elif isinstance(d, int):
                result[i] = d
    return tuple(result)


class Emitter:
    """Builds a Graph from tensors whose sizes are dims and whose content may be known."""

    def __init__(self, name: str) -> None:
        self.builder = Builder(name)
        self._materialised: dict[int, tuple[Tensor, Value]] = {}

    # Tensors and values -----------------------------------------------------------------------
    def tensor(self, value: Value) -> Tensor:
        """A value of the Graph as a tensor."""
        return Tensor(value.type.shape, value.type.dtype, value)

    def literal(self, content: Any, dtype: DType | None = None) -> Tensor:
        """A tensor of known numbers, or dims."""
        array = np.asarray(content)
        if array.dtype == np.object_:
            if all(isinstance(d, (int, np.integer)) for d in array.ravel()):
                array = np.asarray(array, np.int64)
            else:
                return Tensor(tuple(array.shape), dtype or DType.I64, content=array)
        kind = dtype or dtypes.from_numpy(array.dtype)
        return Tensor(tuple(array.shape), kind, content=array.astype(kind.numpy, copy=False))

    def value(self, t: Tensor) -> Value:
        """The Graph's value of a tensor: known data becomes a constant."""
        if t.value is not None:
            return t.value
        known = self._materialised.get(id(t))
        if known is None:
            known = (t, self._materialise(t))
            self._materialised[id(t)] = known
        return known[1]

    def materialise(self, entry: Value | Tensor) -> Value:
        """`value`, by the name under which `mansard.frontends.linalg.body.Body` reads tensors."""
        return entry if isinstance(entry, Value) else self.value(entry)

    def _materialise(self, t: Tensor) -> Value:
        name = t.name or "const"
        if t.splat is not None:
            return self.value(self.full(t.shape, t.splat, t.dtype))
        if t.constant is not None:
            return self.builder.constant(name, t.constant, t.shape, t.dtype)
        assert t.content is not None
        if not t.symbolic:
            return self.builder.constant(name, Constant.of(t.content), t.shape, t.dtype)
        flat = list(t.content.ravel())
        body = Body(self, t.shape)  # type: ignore[arg-type]
        here = body.space.from_linear(_row_major(t.shape))
        chosen = dim_scalar(_dim(flat[-1]), t.dtype)
        for i in reversed(range(len(flat) - 1)):
            is_here = body.space.compare("eq", here, Const(i, DType.I64))
            chosen = body.space.select(is_here, dim_scalar(_dim(flat[i]), t.dtype), chosen)
        return body.finish(chosen, name=name)

    def scalar_content(self, t: Tensor) -> Scalar | None:
        """The element of a tensor that has no other, where it is known."""
        if t.splat is not None:
            return expressions.literal(t.splat, t.dtype)
        if t.content is None or t.content.size != 1:
            return None
        element = t.content.reshape(-1)[0]
        if t.symbolic:
            return dim_scalar(_dim(element), t.dtype)
        return expressions.literal(_python(element, t.dtype), t.dtype)

    # Elementwise ------------------------------------------------------------------------------
    def body(self, extents: Sequence[DimLike]) -> Body:
        """A Generic under construction."""
        return Body(self, tuple(extents))  # type: ignore[arg-type]

    def read(self, body: Body, t: Tensor, indices: Sequence[Linear]) -> Num:
        """An element of a tensor at affine indices; of a known number, that number."""
        known = self.scalar_content(t)
        if known is not None:
            return Num(body.space, known)
        value = self.value(t)
        space = body.space
        kept = [  # a dim of 1 that is broadcast is read at 0
            Linear() if isinstance(d, int) and d == 1 and space.range_of(i) != (0, 0) else i
            for i, d in zip(indices, t.shape, strict=True)
        ]
        return Num(body.space, body.read(value, IndexMap(tuple(kept))))

    def at(self, body: Body, t: Tensor, indices: Sequence[Num]) -> Num:
        """An element of a tensor at computed i64 indices, which are clamped into the tensor."""
        return Num(body.space, body.extract(self.value(t), [i.tree for i in indices]))

    def finish(self, body: Body, tree: Num, reduced: int = 0, combiner: str | None = None) -> Tensor:
        """The tensor of a finished body."""
        return self.tensor(body.finish(tree.tree, reduced, combiner))

    def generate(self, shape: Sequence[DimLike], function: Callable[..., Num]) -> Tensor:
        """A tensor by a function of its indices (i64 scalars)."""
        body = self.body(shape)
        indices = [expressions.index(body.space, i) for i in range(len(shape))]
        return self.finish(body, function(body, *indices))

    def map(self, function: Callable[..., Num], *tensors: Tensor, shape: Sequence[DimLike] = ()) -> Tensor:
        """A tensor by a function of the elements of tensors, which are broadcast (to ``shape`` at least)."""
        extents = broadcast_shape(shape, *(t.shape for t in tensors))
        body = self.body(extents)
        reads = [self.read(body, t, _trailing(len(extents), t.rank)) for t in tensors]
        return self.finish(body, function(*reads))

    def cast(self, t: Tensor, dtype: DType) -> Tensor:
        """Conversion of all elements."""
        if t.dtype is dtype:
            return t
        return self.map(lambda x: x.cast(dtype), t)

    def splat(self, shape: Sequence[DimLike], value: float | int | bool, dtype: DType) -> Tensor:
        """A tensor whose elements are all one number, which ops that read it take as a literal."""
        return Tensor(tuple(shape), dtype, splat=value)

    def full(self, shape: Sequence[DimLike], value: float | int | bool, dtype: DType) -> Tensor:
        """A tensor whose elements are all one number."""
        body = self.body(shape)
        return self.finish(body, Num(body.space, expressions.literal(value, dtype)))

    # Views ------------------------------------------------------------------------------------
    def reshape(self, t: Tensor, shape: Sequence[DimLike]) -> Tensor:
        """The same elements under another shape."""
        if tuple(shape) == t.shape:
            return t
        if t.content is not None and static(shape):
            return Tensor(tuple(shape), t.dtype, content=t.content.reshape(_ints(shape)), name=t.name)
        before, after = dims.product(t.shape), dims.product(shape)
        if not same_dim(before, after):
            raise ImportModelError(f"a tensor of {before} elements cannot have the shape {list(shape)}")
        if t.splat is not None:
            return self.splat(shape, t.splat, t.dtype)
        return self.tensor(self.builder.reshape(self.value(t), tuple(shape)))

    def transpose(self, t: Tensor, permutation: Sequence[int]) -> Tensor:
        """The dims in another order: result dim ``i`` is dim ``permutation[i]``."""
        if list(permutation) == list(range(t.rank)):
            return t
        if t.splat is not None:
            return self.splat([t.shape[p] for p in permutation], t.splat, t.dtype)
        if t.content is not None:
            return Tensor(
                tuple(t.shape[p] for p in permutation), t.dtype, content=t.content.transpose(permutation)
            )
        body = self.body([t.shape[p] for p in permutation])
        place = {p: i for i, p in enumerate(permutation)}
        return self.finish(body, self.read(body, t, [Linear.dim(place[i]) for i in range(t.rank)]))

    def expand(self, t: Tensor, shape: Sequence[DimLike]) -> Tensor:
        """The tensor broadcast to (at least) a shape."""
        extents = broadcast_shape(t.shape, shape)
        return t if same_shape(extents, t.shape) else self.map(lambda x: x, t, shape=extents)

    def slice(
        self, t: Tensor, starts: Sequence[DimLike], sizes: Sequence[DimLike], steps: Sequence[int]
    ) -> Tensor:
        """Every so many elements of a part; steps may be negative."""
        whole = all(s == 1 for s in steps) and all(o == 0 for o in starts) and same_shape(sizes, t.shape)
        if whole:
            return t
        if t.splat is not None:
            return self.splat(sizes, t.splat, t.dtype)
        if all(s > 0 for s in steps):
            return self.tensor(self.builder.slice(self.value(t), tuple(starts), tuple(sizes), tuple(steps)))
        body = self.body(sizes)
        linear = [
            Linear.dim(i, step, start) for i, (start, step) in enumerate(zip(starts, steps, strict=True))
        ]
        return self.finish(body, self.read(body, t, linear))

    def part(self, t: Tensor, axis: int, start: DimLike, size: DimLike) -> Tensor:
        """A contiguous part along one axis."""
        starts: list[DimLike] = [0] * t.rank
        sizes = list(t.shape)
        starts[axis], sizes[axis] = start, size
        return self.slice(t, starts, sizes, [1] * t.rank)

    def take(self, t: Tensor, axis: int, place: DimLike) -> Tensor:
        """One index of an axis, which is dropped."""
        kept = self.part(t, axis, place, 1)
        return self.reshape(kept, [d for i, d in enumerate(t.shape) if i != axis])

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        """Tensors one after another."""
        if len(tensors) == 1:
            return tensors[0]
        return self.tensor(self.builder.concat([self.value(t) for t in tensors], axis))

    def stack(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        """Tensors one after another along a new axis."""
        return self.concat([self.unsqueeze(t, axis) for t in tensors], axis)

    def unsqueeze(self, t: Tensor, axis: int) -> Tensor:
        """The tensor with a new dim of 1."""
        return self.reshape(t, (*t.shape[:axis], 1, *t.shape[axis:]))

    def pad(
        self, t: Tensor, low: Sequence[DimLike], high: Sequence[DimLike], value: float | int | bool = 0
    ) -> Tensor:
        """The tensor with a margin of one number."""
        if all(p == 0 for p in (*low, *high)):
            return t
        number = expressions.literal(value, t.dtype).value
        return self.tensor(self.builder.pad(self.value(t), tuple(low), tuple(high), number))

    # Reductions and products ------------------------------------------------------------------
    def reduce(
        self,
        t: Tensor,
        axes: Sequence[int],
        combiner: str,
        *,
        keepdims: bool = False,
        function: Callable[[Num], Num] | None = None,
    ) -> Tensor:
        """The elements along axes combined, after a function of each."""
        kept = [i for i in range(t.rank) if keepdims or i not in axes]
        shape = [1 if i in axes else t.shape[i] for i in kept]
        inner = [t.shape[i] for i in axes] or [1]
        body = self.body([*shape, *inner])
        linear = [
            Linear.dim(len(kept) + list(axes).index(i)) if i in axes else Linear.dim(kept.index(i))
            for i in range(t.rank)
        ]
        element = self.read(body, t, linear)
        element = function(element) if function else element
        if not axes and combiner not in ARG_COMBINERS:
            body.space = Space(shape)
            return self.finish(body, element)
        return self.finish(body, element, len(inner), combiner)

    def matmul(self, a: Tensor, b: Tensor, accumulator: DType | None = None) -> Tensor:
        """NumPy's ``matmul``, of factors cast to the accumulator's type."""
        if a.rank == 1:
            product = self.matmul(self.unsqueeze(a, 0), b, accumulator)
            return self._drop(product, -2 if b.rank > 1 else -1)
        if b.rank == 1:
            return self._drop(self.matmul(a, self.unsqueeze(b, 1), accumulator), -1)
        if not same_dim(a.shape[-1], b.shape[-2]):
            raise ImportModelError(f"a product of {a.shape[-1]} columns and {b.shape[-2]} rows")
        batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
        lead = len(batch)
        body = self.body([*batch, a.shape[-2], b.shape[-1], a.shape[-1]])
        row, column, depth = (Linear.dim(lead + i) for i in range(3))
        x = self.read(body, a, [*_trailing(lead, a.rank - 2), row, depth])
        y = self.read(body, b, [*_trailing(lead, b.rank - 2), depth, column])
        dtype = accumulator or a.dtype
        return self.finish(body, x.cast(dtype) * y.cast(dtype), 1, "add")

    def _drop(self, t: Tensor, axis: int) -> Tensor:
        shape = list(t.shape)
        del shape[axis]
        return self.reshape(t, shape)

    def append(self, op: Op) -> Tensor:
        """The first result of an op of the Graph."""
        return self.tensor(self.builder.append(op))


def _trailing(rank: int, count: int) -> list[Linear]:
    return [Linear.dim(rank - count + i) for i in range(count)]


def _row_major(shape: Sequence[DimLike]) -> Linear:
    position, stride = Linear(), 1
    for i in reversed(range(len(shape))):
        position = Linear.dim(i, stride).plus(position)
        stride *= int(str(shape[i]))
    return position


def _ints(shape: Iterable[DimLike]) -> list[int]:
    return [d for d in shape if isinstance(d, int)]


def _dim(element: Any) -> DimLike:
    return int(element) if isinstance(element, (int, np.integer)) else element


def _python(element: Any, dtype: DType) -> float | int | bool:
    if dtype is DType.BOOL:
        return bool(element)
    return float(element) if dtype.is_float else int(element)


def dim_of(number: Num) -> DimLike | None:
    """The dim a scalar stands for, if it does."""
    return as_dim(number.tree)
