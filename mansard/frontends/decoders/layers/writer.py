"""Writes the ops of a decoder: a GraphBuilder with the checkpoint's weights and NumPy's broadcasting."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Union

import numpy as np
import numpy.typing as npt

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.frontends.decoders.checkpoint import Checkpoint
from mansard.frontends.decoders.checkpoint.quantised import QuantisedTensor, StoredFactor
from mansard.hal.small_integers import unpack_nibbles
from mansard.ir.graph import GraphBuilder
from mansard.ir.quantised_weight import GroupFactor, QuantisedWeight, element, product
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index, Scalar
from mansard.ir.types import Constant, IndexMap, Linear, Location, TensorType, Value

Matrix = Union[Value, QuantisedWeight]
"""A weight (N, K), or a stack of such, as floating point or as integers with scales."""


class Writer:
    """Appends ops to a Graph. Activations are of type ``dtype``; sums and norms are in f32."""

    def __init__(
        self,
        builder: GraphBuilder,
        checkpoint: Checkpoint,
        dtype: DType,
        *,
        unpack: bool = False,
        skip_empty_groups: Collection[str] = (),
    ) -> None:
        """``unpack``: matrices that the checkpoint has as small integers become floating point.
        ``skip_empty_groups``: see `DecoderOptions`."""
        self.builder, self.dtype, self.skip_empty_groups = builder, dtype, skip_empty_groups
        self._checkpoint, self._unpack = checkpoint, unpack
        self._weights: dict[str, Value] = {}
        self._quantised: dict[str, QuantisedWeight | None] = {}
        self.choices: list[Value] = []
        """The experts that rows choose, (rows, chosen) i64, of each layer that has some so far."""

    def at(self, place: str) -> None:
        """Ops from here on are located at a module of the model, such as ``model.layers.0.mlp``."""
        self.builder.location = Location(place)

    def weight(self, name: str, shape: Sequence[int]) -> Value:
        """A weight of the checkpoint, of the shape that the architecture states, in the type it is stored in.

        Raises ImportModelError for one that is missing or has another shape.
        """
        if name not in self._weights:
            stored = self._checked(name, shape)
            constant = self._checkpoint.constant(name)
            self._weights[name] = self.builder.constant(name, constant, stored.shape, stored.dtype)
        return self._weights[name]

    def matrix(self, name: str, shape: Sequence[int]) -> Matrix:
        """A weight (…, N, K) for `linear`, `rows_of` and `product_of_chosen`, as integers with scales where
        the checkpoint has it so; raises as `weight` does."""
        if name not in self._quantised:
            self._checked(name, shape)
            tensor = None if self._unpack else self._checkpoint.quantised(name)
            self._quantised[name] = None if tensor is None else self._stored(tensor)
        kept = self._quantised[name]
        return self.weight(name, shape) if kept is None else kept

    def rows(self, name: str, shape: Sequence[int], rows: Sequence[int], part: str) -> Matrix:
        """Rows of the first dim of a `matrix` as a weight of its own, which ``part`` names."""
        numbers = np.array(rows, np.int64)
        digest = hashlib.sha256(numbers.tobytes()).hexdigest()[:16]

        def chosen(value: Value, constant: Constant) -> Value:
            key = f"{constant.key}.{part}({len(numbers)} rows, {digest})"
            data = Constant(key, lambda: constant.load()[numbers])
            return self.builder.constant(
                f"{value.name}.{part}", data, (len(numbers), *value.type.shape[1:]), value.type.dtype
            )

        stored = self._checked(name, shape)
        tensor = None if self._unpack else self._checkpoint.quantised(name)
        if tensor is None:
            return chosen(Value(name, stored), self._checkpoint.constant(name))
        return self._stored(tensor, chosen)

    def _checked(self, name: str, shape: Sequence[int]) -> TensorType:
        stored = self._checkpoint.tensor_type(name)
        if stored.shape != tuple(shape):
            raise ImportModelError(
                f"weight {name!r} of {self._checkpoint.path} has shape {stored.shape}; "
                f"its configuration says {tuple(shape)}"
            )
        return stored

    def _stored(
        self, tensor: QuantisedTensor, add: Callable[[Value, Constant], Value] | None = None
    ) -> QuantisedWeight:
        """The constants of a quantised tensor; ``add`` adds one to the graph."""
        *rows, depth = tensor.type.shape
        assert isinstance(depth, int)

        def added(constant: Constant, shape: Sequence[DimLike], dtype: DType) -> Value:
            if add is not None:
                return add(Value(constant.key, TensorType(tuple(shape), dtype)), constant)
            return self.builder.constant(constant.key, constant, shape, dtype)

        def factor(stored: StoredFactor) -> GroupFactor:
            shape = (*rows, depth // stored.size)
            return GroupFactor(added(stored.constant, shape, stored.dtype), stored.size)

        values, dtype = tensor.values, tensor.type.dtype
        codes = Constant(values.key, functools.partial(unpacked, values.load, dtype))
        return QuantisedWeight(
            added(codes, tensor.type.shape, dtype),
            tuple(map(factor, tensor.scale_factors)),
            offsets=tuple(map(factor, tensor.offset_factors)),
        )

    def table(self, name: str, numbers: Sequence[int]) -> Value:
        """A constant i64 vector."""
        data = np.array(numbers, np.int64)
        key = f"{name}({hashlib.sha256(data.tobytes()).hexdigest()[:16]})"
        return self.builder.constant(name, Constant.of(data, key), data.shape, DType.I64)

    def map(self, inputs: Sequence[Value], body: Callable[..., Scalar], name: str = "v") -> Value:
        """An element-wise op; shapes are broadcast as NumPy does. ``body`` gets an Arg for each input."""
        rank = max(value.type.rank for value in inputs)
        extents: list[DimLike] = [1] * rank
        for value in inputs:
            for axis, extent in enumerate(value.type.shape, rank - value.type.rank):
                if not dims.is_one(extent):
                    extents[axis] = extent
        maps = [self._broadcast(value, rank) for value in inputs]
        args = [Arg(number, value.type.dtype) for number, value in enumerate(inputs)]
        return self.builder.generic(inputs, maps, extents, body(*args), name=name)

    def cast(self, value: Value, dtype: DType) -> Value:
        """``value`` in another type."""
        if value.type.dtype is dtype:
            return value
        return self.map([value], lambda x: Cast(x, dtype), "cast")

    def scaled(self, value: Value, factor: float) -> Value:
        """``value * factor``; ``value`` itself for factor 1."""
        if factor == 1.0:
            return value
        dtype = value.type.dtype
        return self.map([value], lambda x: mul(x, Const(factor, dtype)), "scaled")

    def rows_of(self, table: Matrix, tokens: Value) -> Value:
        """The rows (…, K) of a matrix (N, K) that tokens (…) of type i64 name, in its type or ``dtype``."""
        stored = table.codes if isinstance(table, QuantisedWeight) else table
        rank = tokens.type.rank
        row, k = Arg(0, DType.I64), Index(rank)
        values: tuple[Value, ...] = (stored,)
        body: Scalar = Gather(1, (row, k), stored.type.dtype)
        if isinstance(table, QuantisedWeight):
            values, body = element(table, (row,), k, 1)
            body = cast(body, self.dtype)
        maps = (IndexMap.identity(rank), *(None for _ in values))
        shape = (*tokens.type.shape, stored.type.shape[1])
        return self.builder.generic((tokens, *values), maps, shape, body, name="embedded")

    def linear(self, x: Value, weight: Matrix, bias: Value | None = None, name: str = "linear") -> Value:
        """``x @ weight.T + bias`` for x (rows, K) and weight (N, K); sums are in f32, the result in
        ``dtype``."""
        sums = self._product(x, weight, name)
        if bias is not None:
            sums = self.map([sums, bias], lambda a, b: add(a, cast(b, DType.F32)), name)
        return self.cast(sums, self.dtype)

    def _product(self, x: Value, weight: Matrix, name: str) -> Value:
        rows, depth = x.type.shape
        if isinstance(weight, QuantisedWeight):
            extents = (rows, weight.codes.type.shape[0])
            out = self.builder.value(name, extents, DType.F32)
            read = (x, IndexMap.of_dims((0, 2)), 1)
            factor = cast(Arg(0, x.type.dtype), DType.F32)
            return self.builder.append(product(weight, [read], factor, extents, Linear.dim(1), out))
        columns = weight.type.shape[0]
        body = mul(cast(Arg(0, x.type.dtype), DType.F32), cast(Arg(1, weight.type.dtype), DType.F32))
        maps = (IndexMap.of_dims((0, 2)), IndexMap.of_dims((1, 2)))
        return self.builder.generic(
            (x, weight), maps, (rows, columns, depth), body, reduced=1, combiner="add", name=name
        )

    @staticmethod
    def _broadcast(value: Value, rank: int) -> IndexMap:
        first = rank - value.type.rank
        return IndexMap(
            tuple(
                Linear() if dims.is_one(extent) else Linear.dim(first + axis)
                for axis, extent in enumerate(value.type.shape)
            )
        )


def shape_of(matrix: Matrix) -> tuple[DimLike, ...]:
    """The shape of a weight, however it is stored."""
    return (matrix.codes if isinstance(matrix, QuantisedWeight) else matrix).type.shape


def cast(x: Scalar, dtype: DType) -> Scalar:
    """``x`` converted, where it is of another type."""
    return x if x.dtype is dtype else Cast(x, dtype)


def add(a: Scalar, b: Scalar) -> Scalar:
    """``a + b``."""
    return Apply("add", (a, b), a.dtype)


def mul(a: Scalar, b: Scalar) -> Scalar:
    """``a * b``."""
    return Apply("mul", (a, b), a.dtype)


def unpacked(load: Callable[[], npt.NDArray[np.generic]], dtype: DType) -> npt.NDArray[np.generic]:
    """The integers of `QuantisedTensor.values`, one for each element."""
    stored = load()
    if dtype.bits >= 8:
        return stored
    codes = unpack_nibbles(stored.view(np.uint8))
    if dtype.is_signed:
        codes = (codes ^ np.uint8(8)) - np.uint8(8)  # the sign in all bits
    return codes.view(dtype.numpy)
