"""Two kinds of models of which parts are natural for a CPU and others for a GPU, as graphs.

* A session recommender (GRU4Rec): a recurrent cell walks the session item by item, small steps that wait for
  each other; then one product scores the whole catalogue and a sort keeps the best.
* A decoder's gated feed-forward blocks for one token: nothing but weights to be read, more than a small GPU
  has memory for.

Weights are random; ``expected`` computes in NumPy (float32) what a model should give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from mansard.dtypes import DType
from mansard.ir import Constant, Graph, GraphBuilder, IndexMap, Linear, Location, Value
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index, Scalar

F32, BF16, I64 = DType.F32, DType.BF16, DType.I64
Array = np.ndarray[Any, np.dtype[Any]]
_EPSILON = 1e-5


@dataclass(frozen=True)
class Example:
    """A graph, a way to make inputs that differ by request, and what the model should give for them."""

    graph: Graph
    inputs: Callable[[int], list[Array]]
    expected: Callable[[list[Array]], Array]
    second: str = ""
    """Where the ops of the second stage say they come from (a pattern of `PlacementOptions.pins`)."""
    answers: dict[int, Array] = field(default_factory=dict)

    def answer(self, request: int) -> Array:
        """What the model should give for a request; computed once."""
        if request not in self.answers:
            self.answers[request] = self.expected(self.inputs(request))
        return self.answers[request]


@dataclass(frozen=True)
class Recommender:
    """Sizes of a session recommender: items of a session and of the catalogue, numbers of a hidden state."""

    length: int = 64
    hidden: int = 256
    catalogue: int = 1 << 20
    best: int = 100

    def example(self) -> Example:
        """Input: item numbers (1, length) i64. Output: the scores of the best items, (1, best) f32."""
        rng = np.random.default_rng(0)
        h = self.hidden

        def weights(*shape: int) -> Array:
            return rng.standard_normal(shape, np.float32) * np.float32(1 / np.sqrt(shape[0]))

        table = rng.standard_normal((self.catalogue, h), np.float32)
        table *= np.float32(1 / np.sqrt(h))
        into, within = weights(h, 3 * h), weights(h, 3 * h)
        bias, inner = weights(1, 3 * h)[0], weights(1, 3 * h)[0]
        b = GraphBuilder("recommender")
        b.location = Location("session")
        items = b.input("items", (1, self.length), I64)

        def held(name: str, array: Array) -> Value:
            return b.constant(name, Constant.of(array, name), array.shape, F32)

        rows = held("table", table)
        gathered = Gather(1, (Arg(0, I64), Index(1)), F32)
        x = b.generic([items, rows], [IndexMap.of_dims((None, 0)), None], (self.length, h), gathered)
        gates = _plus(b, _product(b, x, held("into", into)), held("bias", bias))
        recurrent, inner_bias = held("within", within), held("inner", inner)
        state = b.constant("start", Constant.of(np.zeros((1, h), np.float32), "start"), (1, h), F32)
        for step in range(self.length):
            recurrence = _plus(b, _product(b, state, recurrent), inner_bias)
            state = self._cell(b, gates, recurrence, state, step)
        b.location = Location("catalogue")
        scores = b.generic(
            [state, rows],
            [IndexMap.of_dims((None, 1)), IndexMap.of_dims((0, 1))],
            (self.catalogue, h),
            _two("mul"),
            reduced=1,
            combiner="add",
            name="scores",
        )
        best, _ = b.sort(scores, 0, True, self.best)

        def expected(arrays: list[Array]) -> Array:
            hidden = np.zeros(h, np.float32)
            for item in arrays[0][0]:
                r, z, n = np.split(table[item] @ into + bias, 3)
                own_r, own_z, own_n = np.split(hidden @ within + inner, 3)
                reset, update = _logistic(r + own_r), _logistic(z + own_z)
                new = np.tanh(n + reset * own_n)
                hidden = (1 - update) * new + update * hidden
            return np.sort(table @ hidden)[None, ::-1][:, : self.best]

        def inputs(request: int) -> list[Array]:
            return [np.random.default_rng(request).integers(0, self.catalogue, (1, self.length))]

        return Example(b.build([b.reshape(best, (1, self.best))], ["best"]), inputs, expected, "catalogue")

    def _cell(self, b: GraphBuilder, gates: Value, recurrence: Value, state: Value, step: int) -> Value:
        """The hidden state (1, hidden) after one more item, by the gates of the item and of the state."""
        h = self.hidden

        def at(row: int | None, part: int) -> IndexMap:
            first = Linear() if row is None else Linear((), row)
            return IndexMap((first, Linear.dim(1, 1, part * h)))

        a = [Arg(i, F32) for i in range(7)]
        one = Const(1.0, F32)
        reset, update = (_sigmoid(_f32("add", a[i], a[3 + i])) for i in (0, 1))
        new = _f32("tanh", _f32("add", a[2], _f32("mul", reset, a[5])))
        body = _f32("add", _f32("mul", _f32("sub", one, update), new), _f32("mul", update, a[6]))
        maps = [*(at(step, part) for part in range(3)), *(at(None, part) for part in range(3))]
        return b.generic(
            [gates] * 3 + [recurrence] * 3 + [state],
            [*maps, IndexMap.identity(2)],
            (1, h),
            body,
            name="hidden",
        )


@dataclass(frozen=True)
class FeedForward:
    """Gated feed-forward blocks for one token, as wide as those of Llama 3.2 3B; weights are bf16."""

    width: int = 3072
    inner: int = 8192
    blocks: int = 32

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.blocks * 3 * self.width * self.inner * 2

    def example(self) -> Example:
        """Input and output: (1, width) f32."""
        w, n = self.width, self.inner
        rng = np.random.default_rng(0)
        size = w * n
        pool = rng.standard_normal(3 * size + 61 * self.blocks, np.float32) * np.float32(1 / np.sqrt(w))
        pool = pool.astype(ml_dtypes.bfloat16)

        def weight(block: int, part: int) -> Array:
            begin = part * size + 61 * block  # Random numbers shifted are other weights.
            return pool[begin : begin + size].reshape((n, w) if part < 2 else (w, n)).copy()

        b = GraphBuilder("feed_forward")
        x = b.input("x", (1, w), F32)
        y = x
        for block in range(self.blocks):
            b.location = Location(f"block{block}")
            normal = self._normalised(b, y)
            gate, up = (_product_nk(b, normal, self._held(b, block, part, weight)) for part in (0, 1))
            a0, a1 = Arg(0, F32), Arg(1, F32)
            body = _f32("mul", _f32("mul", a0, _sigmoid(a0)), a1)
            inside = b.generic([gate, up], [IndexMap.identity(2)] * 2, (1, n), body)
            down = _product_nk(b, inside, self._held(b, block, 2, weight))
            y = b.generic([y, down], [IndexMap.identity(2)] * 2, (1, w), _two("add"))

        def expected(arrays: list[Array]) -> Array:
            value = arrays[0][0]
            for block in range(self.blocks):
                gate_w, up_w, down_w = (_widened(weight(block, part)) for part in range(3))
                normal = value / np.sqrt(np.mean(value * value) + np.float32(_EPSILON))
                gate = gate_w @ normal
                value = value + down_w @ (gate * _logistic(gate) * (up_w @ normal))
            return value[None]

        def inputs(request: int) -> list[Array]:
            return [np.random.default_rng(request).standard_normal((1, w), np.float32)]

        return Example(b.build([y], ["y"]), inputs, expected)

    def _held(self, b: GraphBuilder, block: int, part: int, weight: Callable[[int, int], Array]) -> Value:
        name = f"block{block}.{('gate', 'up', 'down')[part]}"
        shape = (self.inner, self.width) if part < 2 else (self.width, self.inner)
        return b.constant(name, Constant(name, lambda: weight(block, part)), shape, BF16)

    def _normalised(self, b: GraphBuilder, x: Value) -> Value:
        """x over the root of the mean of its squares."""
        same, a0, a1 = IndexMap.identity(2), Arg(0, F32), Arg(1, F32)
        square = b.generic([x], [same], (1, self.width), _f32("mul", a0, a0), reduced=1, combiner="add")
        mean = _f32("div", a1, Const(float(self.width), F32))
        body = _f32("mul", a0, _f32("rsqrt", _f32("add", mean, Const(_EPSILON, F32))))
        return b.generic([x, square], [same, IndexMap.of_dims((0,))], (1, self.width), body)


@dataclass(frozen=True)
class Product:
    """A product of matrices, (rows, depth) times a constant (depth, columns)."""

    rows: int = 4096
    depth: int = 4096
    columns: int = 8192

    def example(self) -> Example:
        """Input (rows, depth) f32, output (rows, columns) f32."""
        w = np.random.default_rng(0).standard_normal((self.depth, self.columns), np.float32)
        b = GraphBuilder("product")
        x = b.input("x", (self.rows, self.depth), F32)
        y = _product(b, x, b.constant("w", Constant.of(w, "w"), w.shape, F32))

        def inputs(request: int) -> list[Array]:
            return [np.random.default_rng(request).standard_normal((self.rows, self.depth), np.float32)]

        return Example(b.build([y], ["y"]), inputs, lambda arrays: arrays[0] @ w)


def _product(b: GraphBuilder, x: Value, w: Value) -> Value:
    """x (M, K) times w (K, N)."""
    (m, k), n = x.type.shape, w.type.shape[1]
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1))]
    return b.generic([x, w], maps, (m, n, k), _two("mul"), reduced=1, combiner="add")


def _product_nk(b: GraphBuilder, x: Value, w: Value) -> Value:
    """x (M, K) f32 times the transposed w (N, K) bf16, summed in f32."""
    (m, k), n = x.type.shape, w.type.shape[0]
    body = _f32("mul", Arg(0, F32), Cast(Arg(1, BF16), F32))
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((1, 2))]
    return b.generic([x, w], maps, (m, n, k), body, reduced=1, combiner="add")


def _plus(b: GraphBuilder, x: Value, bias: Value) -> Value:
    return b.generic([x, bias], [IndexMap.identity(2), IndexMap.of_dims((1,))], x.type.shape, _two("add"))


def _two(name: str) -> Scalar:
    return _f32(name, Arg(0, F32), Arg(1, F32))


def _f32(name: str, *args: Scalar) -> Apply:
    return Apply(name, args, F32)


def _sigmoid(x: Scalar) -> Scalar:
    one = Const(1.0, F32)
    return _f32("div", one, _f32("add", one, _f32("exp", _f32("neg", x))))


def _widened(x: Array) -> Array:
    """bf16 as f32, of which it is the upper half; faster than a conversion."""
    result: Array = (x.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return result


def _logistic(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result
