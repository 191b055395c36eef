"""The canonical pipeline on random graphs, on model-like graphs, and its own services."""

from __future__ import annotations

import cProfile
import math
import pstats

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.ir_graphs import (
    BOOL,
    F32,
    I64,
    arg,
    call,
    const,
    elementwise,
    index,
    matmul,
    plain,
    random,
    transpose,
)

from mansard import dims
from mansard.analysis.operands import is_copy
from mansard.dims import Dim
from mansard.errors import VerificationError
from mansard.ir import Concat, Constant, Generic, Graph, GraphBuilder, IndexMap, Pad, Slice, Value
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Cast, Gather, Index, Scalar
from mansard.passes.canonical.simplify import simplify
from mansard.passes.pass_manager import Fixpoint, run_passes
from mansard.passes.pipeline import canonical_steps


def check(graph: Graph, inputs, atol=1e-5) -> Graph:
    """Canonicalise ``graph``, compare both under the interpreter, and return the new one."""
    after = run_passes(graph, canonical_steps())
    for old, new in zip(interpret(graph, inputs), interpret(after, inputs), strict=True):
        assert old.dtype == new.dtype
        np.testing.assert_allclose(new, old, rtol=1e-4, atol=atol)
    return after


# Random graphs ------------------------------------------------------------------------------
class _Random:
    """Draws ops that are valid for the values at hand."""

    def __init__(self, draw) -> None:
        self.draw = draw
        self.b = GraphBuilder()
        self.arrays: list[np.ndarray] = []
        self.floats: list[Value] = []

    def pick(self, items):
        return self.draw(st.sampled_from(list(items)))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def build(self) -> Graph:
        for i in range(self.number(1, 2)):
            shape = tuple(self.number(1, 4) for _ in range(self.number(1, 3)))
            self.floats.append(self.b.input(f"x{i}", shape, F32))
            self.arrays.append(random(shape, seed=i))
        if self.draw(st.booleans()):
            shape = (self.number(1, 4), self.number(1, 4))
            data = random(shape, seed=9) if self.draw(st.booleans()) else np.full(shape, 2, np.float32)
            self.floats.append(self.b.constant("w", Constant.of(data, "w"), shape, F32))
        steps = [self.map, self.permute, self.slice, self.pad, self.concat, self.reshape, self.reduce,
                 self.contract, self.broadcast, self.gather, self.ranges]  # fmt: skip
        for _ in range(self.number(2, 8)):
            self.floats.append(self.pick(steps)(self.pick(self.floats)))
        outputs = [self.floats[-1], self.pick(self.floats)]
        return self.b.build(outputs, ["last", "any"])

    def map(self, x: Value) -> Value:
        others = [v for v in self.floats if v.type.shape == x.type.shape]
        body = call(self.pick(["add", "mul", "max"]), arg(0), self.scalar(x.type.rank))
        identity = IndexMap.identity(x.type.rank)
        return self.b.generic([x, self.pick(others)], [identity] * 2, x.type.shape, body)

    def scalar(self, rank: int) -> Scalar:
        """A body over operand 1, indices and literals."""
        node: Scalar = arg(1)
        for _ in range(self.number(0, 3)):
            other = self.pick([arg(0), const(1.0), const(2.0), const(0.0), Cast(Index(0), F32), arg(1)])
            kind = self.pick(["add", "mul", "sub", "pow", "select", "neg"])
            if kind == "neg":
                node = call("neg", call("neg", node)) if self.draw(st.booleans()) else call("neg", node)
            elif kind == "pow":
                node = call("pow", node, const(self.pick([0.0, 1.0, 2.0, 3.0])))
            elif kind == "select":
                test = self.pick(["lt", "ge", "eq"])
                bound = index(rank - 1, self.number(-2, 2), self.number(1, 2))
                node = call("select", call(test, bound, const(self.number(-1, 3), I64)), node, other)
            else:
                node = call(kind, node, other)
        return node

    def permute(self, x: Value) -> Value:
        return transpose(self.b, x, self.draw(st.permutations(range(x.type.rank))))

    def slice(self, x: Value) -> Value:
        offsets, sizes, strides = [], [], []
        for d in x.type.shape:
            stride = self.number(1, 2)
            offset = self.number(0, d - 1)
            offsets.append(offset)
            strides.append(stride)
            sizes.append(self.number(1, (d - offset - 1) // stride + 1))
        return self.b.slice(x, offsets, sizes, strides)

    def pad(self, x: Value) -> Value:
        low, high = ([self.number(0, 2) for _ in x.type.shape] for _ in range(2))
        return self.b.pad(x, low, high, self.pick([0.0, -1.5]))

    def concat(self, x: Value) -> Value:
        axis = self.number(0, x.type.rank - 1)

        def others(v: Value) -> list:
            return [d for i, d in enumerate(v.type.shape) if i != axis]

        fits = [v for v in self.floats if v.type.rank == x.type.rank and others(v) == others(x)]
        return self.b.concat([x, *(self.pick(fits) for _ in range(self.number(0, 2)))], axis)

    def reshape(self, x: Value) -> Value:
        left, shape = math.prod(x.type.shape), []
        while left > 1 and len(shape) < 3:
            shape.append(self.pick([n for n in range(1, left + 1) if left % n == 0]))
            left //= shape[-1]
        return self.b.reshape(x, [*shape, left] if left > 1 or not shape else shape)

    def reduce(self, x: Value) -> Value:
        rank = x.type.rank
        if rank == 1:
            return self.permute(x)
        kept = self.draw(st.permutations(range(rank)))
        place = plain(*(kept.index(i) for i in range(rank)))
        extents = [x.type.shape[k] for k in kept]
        combiner = self.pick(["add", "max", "min"])
        return self.b.generic([x], [place], extents, arg(0), reduced=1, combiner=combiner)

    def contract(self, x: Value) -> Value:
        for w in self.floats:
            if x.type.rank == w.type.rank == 2 and x.type.shape[1] == w.type.shape[0]:
                return matmul(self.b, x, w)
        return self.permute(x)

    def broadcast(self, x: Value) -> Value:
        extents = [self.number(1, 3), *(d if d != 1 else self.number(1, 3) for d in x.type.shape)]
        if len(extents) > 4:
            return x
        reads = [i + 1 if d != 1 else None for i, d in enumerate(x.type.shape)]
        return self.b.generic([x], [plain(*reads)], extents, arg(0))

    def gather(self, x: Value) -> Value:
        """A gather whose indices are affine or not, inside or not."""
        indices = tuple(
            index(i, self.number(-1, 1), self.number(1, 2))
            if self.draw(st.booleans())
            else call("rem", index(i, self.number(0, 3)), const(max(d, 1), I64))
            for i, d in enumerate(x.type.shape)
        )
        return self.b.generic([x], [None], x.type.shape, Gather(0, indices, F32))

    def ranges(self, x: Value) -> Value:
        """A mask computed from indices, used by another op."""
        shape = x.type.shape
        last = index(len(shape) - 1)
        mask = self.b.generic([], [], shape, call("le", last, index(0, self.number(-1, 2))))
        identity = IndexMap.identity(len(shape))
        body = Apply("select", (arg(0, BOOL), arg(1), const(0.5)), F32)
        return self.b.generic([mask, x], [identity, identity], shape, body)


@settings(max_examples=75, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.data())
def test_random_graphs_keep_their_meaning(data):
    maker = _Random(data.draw)
    graph = maker.build()
    after = check(graph, maker.arrays, atol=1e-3)
    assert not any(isinstance(op, (Slice, Pad, Concat)) for op in after.ops)
    assert run_passes(after, canonical_steps()) is after, "the canonical form is not stable"


# Services -----------------------------------------------------------------------------------
def model(layers: int, batch) -> tuple[Graph, np.ndarray]:
    """A transformer encoder as a frontend leaves it: projections, attention, norms, gelu."""
    width, heads, length = 16, 4, 6
    b = GraphBuilder("encoder")
    x = b.input("x", (batch, length, width), F32)
    y = x

    def linear(v: Value, out: int, name: str) -> Value:
        inner = v.type.shape[2]
        data = random((out, inner), seed=ord(name[-1])) / 4
        w = b.constant(f"{name}.w", Constant.of(data, name), (out, inner), F32)
        rows = dims.mul(batch, length)
        flat = b.reshape(v, (rows, inner))
        product = matmul(b, flat, transpose(b, w, (1, 0)))
        return b.reshape(product, (batch, length, out))

    def norm(v: Value) -> Value:
        shape = v.type.shape
        mean = b.generic([v], [plain(0, 1, 2)], shape, call("div", arg(0), const(float(width))),
                         reduced=1, combiner="add")  # fmt: skip
        centred = b.generic([v, mean], [plain(0, 1, 2), plain(0, 1)], shape, call("sub", arg(0), arg(1)))
        square = call("div", call("pow", arg(0), const(2.0)), const(float(width)))
        variance = b.generic([centred], [plain(0, 1, 2)], shape, square, reduced=1, combiner="add")
        body = call("mul", arg(0), call("rsqrt", call("add", arg(1), const(1e-5))))
        return b.generic([centred, variance], [plain(0, 1, 2), plain(0, 1)], shape, body)

    for layer in range(layers):
        parts = [linear(y, width, f"{layer}.{n}") for n in "qkv"]
        parts = [transpose(b, b.reshape(p, (batch, length, heads, 4)), (0, 2, 1, 3)) for p in parts]
        a = transpose(b, b.attention(*parts, None, 0.5), (0, 2, 1, 3))
        y = norm(elementwise(b, "add", y, linear(b.reshape(a, (batch, length, width)), width, f"{layer}.o")))
        up = linear(y, 4 * width, f"{layer}.up")
        half = call("mul", arg(0), const(0.5))
        gelu = call("mul", half, call("add", call("erf", call("mul", arg(0), const(0.7071))), const(1.0)))
        up = b.generic([up], [plain(0, 1, 2)], up.type.shape, gelu)
        y = norm(elementwise(b, "add", y, linear(up, width, f"{layer}.down")))
    return b.build([y]), random((3, length, width))


@pytest.mark.parametrize("batch", [3, "b"])
def test_encoder_keeps_its_meaning_and_loses_its_copies(batch):
    size = dims.symbol(Dim("b", 1, 8)) if batch == "b" else batch
    graph, x = model(2, size)
    after = check(graph, [x], atol=1e-4)
    assert not any(is_copy(op) for op in after.ops)
    # Of 2 layers: 6 products, 2 in attention, 5 steps of softmax, 2 norms of 4, 2 sums, 1 gelu.
    assert sum(isinstance(op, Generic) for op in after.ops) == 2 * (6 + 2 + 5 + 8 + 2 + 1)


def test_work_grows_with_the_number_of_ops():
    def calls(layers: int) -> int:  # of Python functions: unlike seconds, the same on every machine
        graph, _ = model(layers, 3)
        profile = cProfile.Profile()
        profile.runcall(run_passes, graph, canonical_steps())
        return pstats.Stats(profile).total_calls

    assert calls(16) < 8 * 1.5 * calls(2)


def test_dump_and_timings():
    graph, _ = model(1, 3)
    texts, timings = {}, {}
    run_passes(graph, canonical_steps(), dump=texts.setdefault, timings=timings)
    assert texts["before"] == str(graph)
    assert "attention %" in texts["before"]
    assert "attention %" not in texts["lower_attention"]
    assert set(timings) >= {"simplify", "eliminate_dead", "lower_attention"}
    assert all(t >= 0 for t in timings.values())


def test_pass_that_breaks_the_graph_is_named():
    def forget_ops(graph: Graph) -> Graph:
        return graph.with_ops([])

    graph, _ = model(1, 3)
    with pytest.raises(VerificationError, match=r"after pass forget_ops: .* is not defined"):
        run_passes(graph, [forget_ops])


def test_fixpoint_stops_when_nothing_changes():
    runs = []

    def watch(graph: Graph) -> Graph:
        runs.append(graph)
        return graph

    graph, _ = model(1, 3)
    run_passes(graph, [Fixpoint((simplify, watch), rounds=9)])
    assert len(runs) == 2  # the second round finds nothing


def test_result_is_the_same_every_time():
    def text() -> str:
        return str(run_passes(model(2, 3)[0], canonical_steps()))

    assert text() == text()
