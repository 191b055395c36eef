"""Writes the ops of a decoder: a GraphBuilder with the checkpoint's weights and NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.frontends.decoders.checkpoint import Checkpoint
from mansard.ir.graph import GraphBuilder
from mansard.ir.scalar import Apply, Arg, Cast, Const, Scalar
from mansard.ir.types import IndexMap, Linear, Location, Value


class Writer:
    """Appends ops to a Graph. Activations are of type ``dtype``; sums and norms are in f32."""

    def __init__(self, builder: GraphBuilder, checkpoint: Checkpoint, dtype: DType) -> None:
        self.builder, self.dtype = builder, dtype
        self._checkpoint = checkpoint
        self._weights: dict[str, Value] = {}

    def at(self, place: str) -> None:
        """Ops from here on are located at a module of the model, such as ``model.layers.0.mlp``."""
        self.builder.location = Location(place)

    def weight(self, name: str, shape: Sequence[int]) -> Value:
        """A weight of the checkpoint, of the shape that the architecture states, in the type it is stored in.

        Raises ImportModelError for one that is missing or has another shape.
        """
        if name not in self._weights:
            stored = self._checkpoint.tensor_type(name)
            if stored.shape != tuple(shape):
                raise ImportModelError(
                    f"weight {name!r} of {self._checkpoint.path} has shape {stored.shape}; "
                    f"its configuration says {tuple(shape)}"
                )
            constant = self._checkpoint.constant(name)
            self._weights[name] = self.builder.constant(name, constant, stored.shape, stored.dtype)
        return self._weights[name]

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

    def linear(self, x: Value, weight: Value, bias: Value | None = None, name: str = "linear") -> Value:
        """``x @ weight.T + bias`` for x (rows, K) and weight (N, K); sums are in f32, the result in
        ``dtype``."""
        rows, depth = x.type.shape
        columns = weight.type.shape[0]
        body = mul(cast(Arg(0, x.type.dtype), DType.F32), cast(Arg(1, weight.type.dtype), DType.F32))
        maps = (IndexMap.of_dims((0, 2)), IndexMap.of_dims((1, 2)))
        sums = self.builder.generic(
            (x, weight), maps, (rows, columns, depth), body, reduced=1, combiner="add", name=name
        )
        if bias is not None:
            sums = self.map([sums, bias], lambda a, b: add(a, cast(b, DType.F32)), name)
        return self.cast(sums, self.dtype)

    @staticmethod
    def _broadcast(value: Value, rank: int) -> IndexMap:
        first = rank - value.type.rank
        return IndexMap(
            tuple(
                Linear() if dims.is_one(extent) else Linear.dim(first + axis)
                for axis, extent in enumerate(value.type.shape)
            )
        )


def cast(x: Scalar, dtype: DType) -> Scalar:
    """``x`` converted, where it is of another type."""
    return x if x.dtype is dtype else Cast(x, dtype)


def add(a: Scalar, b: Scalar) -> Scalar:
    """``a + b``."""
    return Apply("add", (a, b), a.dtype)


def mul(a: Scalar, b: Scalar) -> Scalar:
    """``a * b``."""
    return Apply("mul", (a, b), a.dtype)
