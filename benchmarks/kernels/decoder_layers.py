"""Graphs of decoder layers with a cache in states, as small or large as a benchmark or a test wants them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir import Graph, GraphBuilder, IndexMap, Linear
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index, Scalar
from mansard.ir.types import Constant, Value

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL
NUMPY = {DType.F32: np.dtype(np.float32), DType.BF16: np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder; the defaults are those of Qwen3-0.6B."""

    layers: int = 28
    hidden: int = 1024
    heads: int = 16
    key_heads: int = 8
    depth: int = 128
    inner: int = 3072
    vocabulary: int = 151936
    capacity: int = 1024
    """Positions of the cache."""
    dtype: DType = DType.BF16

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights that a step reads: all but the embedding, whose copy is the head."""
        q, kv = self.heads * self.depth, self.key_heads * self.depth
        layer = self.hidden * (2 * q + 2 * kv + 3 * self.inner)
        return self.dtype.itemsize * (self.layers * layer + self.vocabulary * self.hidden)

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values of one position."""
        return self.dtype.itemsize * self.layers * 2 * self.key_heads * self.depth


def decoder(shape: Shape, rows: DimLike = 1, seed: int = 0) -> Graph:
    """Embedding, layers, norm and head over ``rows`` tokens at the position that a state holds.

    Input ``token`` (rows,) i64; outputs ``logits`` (rows, vocabulary) f32. States: ``position`` () i64,
    which a call moves on by ``rows`` where that is an int, and the keys and values of every layer,
    (1, key heads, capacity, depth).
    """
    return _Decoder(shape, rows, np.random.default_rng(seed)).run()


def times(*factors: Scalar) -> Scalar:
    """Their product in f32."""
    return _chain("mul", factors)


def plus(*terms: Scalar) -> Scalar:
    """Their sum in f32."""
    return _chain("add", terms)


def _chain(op: str, parts: Sequence[Scalar]) -> Scalar:
    total = parts[0]
    for part in parts[1:]:
        total = Apply(op, (total, part), part.dtype)
    return total


class _Decoder:
    def __init__(self, shape: Shape, rows: DimLike, generator: np.random.Generator) -> None:
        self.shape, self.rows, self.generator = shape, rows, generator
        self.b, self.dtype = GraphBuilder("decoder"), shape.dtype
        self.block = generator.standard_normal(1 << 20).astype(np.float32)

    # Data -----------------------------------------------------------------------------------
    def _weight(self, name: str, *extents: int, scale: float | None = None) -> Value:
        """Random numbers, of which large weights repeat a million: their values cost no time to make."""
        factor = np.float32(1 / math.sqrt(extents[-1]) if scale is None else scale)
        start = int(self.generator.integers(0, 1000))

        def load() -> Any:
            source = (self.block[start:] * factor).astype(NUMPY[self.dtype])
            return np.resize(source, extents)

        return self.b.constant(name, Constant(f"{name}@{start}", load), extents, self.dtype)

    def _ones(self, name: str, extent: int) -> Value:
        array = (1 + self.generator.standard_normal(extent) / 10).astype(NUMPY[self.dtype])
        return self.b.constant(name, Constant.of(array, name), (extent,), self.dtype)

    def _angles(self) -> tuple[Value, Value]:
        """Cosines and sines by position, (capacity, depth / 2) f32."""
        half = self.shape.depth // 2
        angles = np.arange(self.shape.capacity)[:, None] * 1e6 ** (-np.arange(half) / half)
        tables = ((name, f(angles).astype(np.float32)) for name, f in (("cos", np.cos), ("sin", np.sin)))
        cos, sin = (self.b.constant(n, Constant.of(a, n), a.shape, F32) for n, a in tables)
        return cos, sin

    # Bodies ---------------------------------------------------------------------------------
    def _wide(self, index: int) -> Scalar:
        return self._cast(Arg(index, self.dtype), F32)

    def _narrow(self, value: Scalar) -> Scalar:
        return self._cast(value, self.dtype)

    def _cast(self, value: Scalar, dtype: DType) -> Scalar:
        return value if value.dtype is dtype else Cast(value, dtype)

    # Layers ---------------------------------------------------------------------------------
    def run(self) -> Graph:
        shape, b = self.shape, self.b
        token = b.input("token", (self.rows,), I64)
        self.position = b.state("position", (), I64)
        self.cos, self.sin = self._angles()
        embedding = self._weight("embedding", shape.vocabulary, shape.hidden, scale=0.02)
        taken = Gather(1, (Arg(0, I64), Index(1)), self.dtype)
        maps = [IndexMap.of_dims((0,)), None]
        x = b.generic([token, embedding], maps, (self.rows, shape.hidden), taken, name="embedded")
        self.kept = self._mask()
        for number in range(shape.layers):
            x = self._layer(x, f"layer{number}")
        head = self._weight("head", shape.vocabulary, shape.hidden)
        logits = self._product(self._norm(x, "norm"), head, F32)
        if isinstance(self.rows, int):
            after = plus(Arg(0, I64), Const(self.rows, I64))
            b.update_state(self.position, b.generic([self.position], [IndexMap()], (), after, name="after"))
        return b.build([logits], ["logits"])

    def _mask(self) -> Value:
        """Whether a row sees a position of the cache: (rows, capacity)."""
        seen = Apply("le", (Index(1), plus(Index(0), Arg(0, I64))), BOOL)
        extents = (self.rows, self.shape.capacity)
        return self.b.generic([self.position], [IndexMap()], extents, seen, name="kept")

    def _layer(self, x: Value, name: str) -> Value:
        shape = self.shape
        queries, keys = shape.heads * shape.depth, shape.key_heads * shape.depth
        normed = self._norm(x, f"{name}.input_norm")
        q, k, v = (
            self._product(normed, self._weight(f"{name}.{part}", columns, shape.hidden))
            for part, columns in (("q", queries), ("k", keys), ("v", keys))
        )
        q, k = (
            self._rotated(y, h, f"{name}.{p}_norm")
            for y, h, p in ((q, shape.heads, "q"), (k, shape.key_heads, "k"))
        )
        cached = [self._cached(k, f"{name}.keys"), self._cached(self._by_head(v), f"{name}.values")]
        q = self.b.reshape(q, (1, shape.heads, self.rows, shape.depth))
        mixed = self.b.attention(q, *cached, self.kept, 1 / math.sqrt(shape.depth))
        mixed = self._by_row(mixed)
        x = self._product(mixed, self._weight(f"{name}.o", shape.hidden, queries), residual=x)
        normed = self._norm(x, f"{name}.post_norm")
        gate, up = (
            self._product(normed, self._weight(f"{name}.{p}", shape.inner, shape.hidden))
            for p in ("gate", "up")
        )
        return self._product(
            self._gated(gate, up), self._weight(f"{name}.down", shape.hidden, shape.inner), residual=x
        )

    def _norm(self, x: Value, name: str) -> Value:
        """RMS norm of the last dim, rounded as `transformers` does: before and after the weight."""
        extent = x.type.shape[-1]
        rank = x.type.rank
        assert isinstance(extent, int)
        every, row = IndexMap.identity(rank), IndexMap.identity(rank - 1)
        square = times(self._wide(0), self._wide(0))
        squares = self.b.generic(
            [x], [every], x.type.shape, square, reduced=1, combiner="add", name="squares"
        )
        mean = plus(times(Arg(1, F32), Const(1 / extent, F32)), Const(1e-6, F32))
        normed = self._narrow(times(self._wide(0), Apply("rsqrt", (mean,), F32)))
        body = self._narrow(times(self._cast(normed, F32), self._wide(2)))
        weight = self._ones(name, extent)
        maps = [every, row, IndexMap.of_dims((rank - 1,))]
        return self.b.generic([x, squares, weight], maps, x.type.shape, body, name="normed")

    def _product(
        self, x: Value, weight: Value, dtype: DType | None = None, residual: Value | None = None
    ) -> Value:
        """``x @ weight.T``, rounded to ``dtype`` (the model's by default), and the residual on top."""
        columns, depth = weight.type.shape
        maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((1, 2))]
        body = times(self._wide(0), self._wide(1))
        extents = (self.rows, columns, depth)
        y = self.b.generic([x, weight], maps, extents, body, reduced=1, combiner="add", name="product")
        result = self._cast(Arg(0, F32), dtype or self.dtype)
        inputs = [y]
        if residual is not None:
            inputs.append(residual)
            result = self._narrow(plus(self._cast(result, F32), self._wide(1)))
        if len(inputs) == 1 and isinstance(result, Arg):
            return y
        return self.b.generic(
            inputs, [IndexMap.identity(2)] * len(inputs), extents[:2], result, name="rounded"
        )

    def _gated(self, gate: Value, up: Value) -> Value:
        g = self._wide(0)
        sigmoid = Apply(
            "div",
            (Const(1.0, F32), plus(Apply("exp", (Apply("neg", (g,), F32),), F32), Const(1.0, F32))),
            F32,
        )
        body = self._narrow(times(self._cast(self._narrow(times(g, sigmoid)), F32), self._wide(1)))
        return self.b.generic([gate, up], [IndexMap.identity(2)] * 2, gate.type.shape, body, name="gated")

    def _rotated(self, x: Value, heads: int, name: str) -> Value:
        """Norm of every head and rotary embedding: (rows, heads * depth) to (heads, rows, depth)."""
        shape, rows = self.shape, self.rows
        half = shape.depth // 2
        normed = self._norm(self.b.reshape(x, (rows, heads, shape.depth)), name)
        pairs = self.b.reshape(normed, (rows, heads, 2, half))
        # Over (heads, rows, 2, depth / 2): the other half is read at 1 - d2.
        here = IndexMap.of_dims((1, 0, 2, 3))
        other = IndexMap((Linear.dim(1), Linear.dim(0), Linear.dim(2, -1, 1), Linear.dim(3)))
        at = plus(Index(1), Arg(2, I64))
        cos, sin = (Gather(i, (at, Index(3)), F32) for i in (3, 4))
        turned = times(self._wide(1), sin)
        first = Apply("eq", (Index(2), Const(0, I64)), BOOL)
        signed = Apply("select", (first, Apply("neg", (turned,), F32), turned), F32)
        body = self._narrow(plus(times(self._wide(0), cos), signed))
        maps = [here, other, IndexMap(), None, None]
        inputs = [pairs, pairs, self.position, self.cos, self.sin]
        y = self.b.generic(inputs, maps, (heads, rows, 2, half), body, name="rotated")
        return self.b.reshape(y, (heads, rows, shape.depth))

    def _by_head(self, x: Value) -> Value:
        shape = self.shape
        split = self.b.reshape(x, (self.rows, shape.key_heads, shape.depth))
        extents = (shape.key_heads, self.rows, shape.depth)
        return self.b.generic(
            [split], [IndexMap.of_dims((1, 0, 2))], extents, Arg(0, self.dtype), name="heads"
        )

    def _by_row(self, x: Value) -> Value:
        """(1, heads, rows, depth) to (rows, heads * depth)."""
        shape = self.shape
        extents = (self.rows, shape.heads, shape.depth)
        maps = [IndexMap((Linear(), Linear.dim(1), Linear.dim(0), Linear.dim(2)))]
        y = self.b.generic([x], maps, extents, Arg(0, self.dtype), name="rows")
        return self.b.reshape(y, (self.rows, shape.heads * shape.depth))

    def _cached(self, new: Value, name: str) -> Value:
        """A cache with the rows (heads, rows, depth) at the position: (1, key heads, capacity, depth)."""
        shape, rows = self.shape, self.rows
        cache = self.b.state(name, (1, shape.key_heads, shape.capacity, shape.depth), self.dtype)
        column = Index(2)
        zero, one = (Apply("eq", (column, Const(i, I64)), BOOL) for i in (0, 1))
        place = Apply("select", (one, Index(0), plus(Index(1), Arg(0, I64))), I64)
        index = Apply("select", (zero, Const(0, I64), place), I64)
        extents = (shape.key_heads, rows, 3)
        where = self.b.generic([self.position], [IndexMap()], extents, index, name="where")
        count = new.type.shape[0] * rows if isinstance(rows, int) else rows * shape.key_heads
        where = self.b.reshape(where, (count, 3))
        updates = self.b.reshape(new, (count, shape.depth))
        after = self.b.scatter(cache, where, updates)
        self.b.update_state(cache, after)
        return after
