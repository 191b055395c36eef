"""Graphs as text and back."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graphs import random_graphs
from support.ir_graphs import BOOL, F32, I64, arg, call, const, elementwise, index, plain, random
from support.scalar_vocabulary import BINARY, COMPARE, UNARY

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.errors import GraphSyntaxError, ImportModelError, VerificationError
from mansard.ir import Constant, Generic, Graph, GraphBuilder, IndexMap, Linear, Location
from mansard.ir.graph_data import graph_from_bytes, graph_to_bytes
from mansard.ir.interpreter.graph import interpret
from mansard.ir.parser import parse_graph
from mansard.ir.printer import print_graph
from mansard.ir.scalar import Apply, Bitcast, Cast, DimValue, Gather, Index, Scalar
from mansard.ir.scalar_ops import scalar_op


def same_text(graph: Graph) -> Graph:
    """The graph parsed from the text of ``graph``, which has the same text."""
    located = print_graph(graph, locations=True)
    parsed = parse_graph(located)
    assert print_graph(parsed, locations=True) == located
    assert str(parse_graph(str(graph))) == str(graph)
    return parsed


def same_after_parsing(graph: Graph) -> Graph:
    """Parse the text of ``graph``; both must agree in everything but the data of constants."""
    parsed = same_text(graph)
    for old, new in zip(graph.ops, parsed.ops, strict=True):
        assert type(old) is type(new)
        for field in dataclasses.fields(old):
            before, after = getattr(old, field.name), getattr(new, field.name)
            if field.name in ("inputs", "outputs"):
                before, after = ([(v.name, v.type) for v in values] for values in (before, after))
            assert after == before and repr(after) == repr(before), field.name
    assert [s.name for s in parsed.dims().values()] == [s.name for s in graph.dims().values()]
    for old, new in zip(graph.dims().values(), parsed.dims().values(), strict=True):
        assert (new, new.typical) == (old, old.typical)
    return parsed


@settings(max_examples=50, deadline=None)
@given(random_graphs())
def test_random_graphs(graph):
    same_after_parsing(graph)


# Every node, dtype and op -------------------------------------------------------------------
class _Bodies:
    """Draws bodies of any dtype over operands of every dtype, with shared parts."""

    def __init__(self, draw) -> None:
        self.draw = draw
        self.b = GraphBuilder("any")
        self.s = Dim("s", 2, 64, 2, typical=8)
        self.t = Dim("t", 0, 9)
        self.shape = (dims.symbol(self.s), 3)
        self.values = [self.b.input(f"x_{d.value}", self.shape, d) for d in DType]
        self.b.input("t_is_bound", (dims.symbol(self.t),), F32)
        self.inputs: list = []
        self.maps: list = []
        self.nodes: dict[DType, list[Scalar]] = {}

    def pick(self, items):
        return self.draw(st.sampled_from(list(items)))

    def operand(self, dtype: DType, index_map: IndexMap | None) -> int:
        value = self.values[list(DType).index(dtype)]
        pairs = list(zip(self.inputs, self.maps, strict=True))
        if (value, index_map) in pairs and self.draw(st.booleans()):
            return pairs.index((value, index_map))
        self.inputs.append(value)
        self.maps.append(index_map)
        return len(self.inputs) - 1

    def map(self, dtype: DType) -> IndexMap:
        s = dims.symbol(self.s)
        rows = Linear(((0, -1),), dims.add(s, -1)) if self.draw(st.booleans()) else Linear.dim(0)
        columns = self.pick([Linear.dim(1), Linear(((1, -1),), 2), Linear((), 1)])
        if not self.draw(st.booleans()):
            return IndexMap((rows, columns))
        fill = True if dtype is BOOL else self.pick([0.5, math.inf, 0]) if dtype.is_float else 3
        moved = Linear.dim(0, self.pick([2, s]), dims.floordiv(dims.add(dims.symbol(self.t), s), 3))
        return IndexMap((moved, columns), fill)

    def literal(self, dtype: DType):
        if dtype is BOOL:
            return self.draw(st.booleans())
        if dtype.is_float:
            return self.draw(st.one_of(st.floats(), st.integers(-3, 3)))
        low = -(2 ** (dtype.bits - 1)) if dtype.is_signed else 0
        return self.draw(st.integers(low, low + 2**dtype.bits - 1))

    def node(self, dtype: DType, depth: int) -> Scalar:
        if self.nodes.get(dtype) and self.draw(st.booleans()):
            return self.pick(self.nodes[dtype])
        kinds = ["arg", "const"] + ["apply", "cast", "bitcast", "gather", "select", "index"] * (depth > 0)
        node = self.kind(self.pick(kinds), dtype, depth - 1)
        self.nodes.setdefault(dtype, []).append(node)
        return node

    def kind(self, kind: str, dtype: DType, depth: int) -> Scalar:
        if kind == "const":
            return const(self.literal(dtype), dtype)
        if kind == "cast":
            return Cast(self.node(self.pick(DType), depth), dtype)
        if kind == "bitcast":
            return Bitcast(self.node(self.pick([d for d in DType if d.bits == dtype.bits]), depth), dtype)
        if kind == "gather":
            return Gather(self.operand(dtype, None), (self.node(I64, depth), self.node(I64, depth)), dtype)
        if kind == "select":
            return Apply(
                "select", (self.node(BOOL, depth), self.node(dtype, depth), self.node(dtype, depth)), dtype
            )
        if kind == "index" and dtype is I64:
            expression = dims.maximum(dims.mul(dims.symbol(self.s), 3), dims.symbol(self.t))
            return self.pick([Index(0), Index(1), DimValue(expression), DimValue(5)])
        if kind == "apply" and dtype is BOOL:
            other = self.pick(DType)
            op = self.pick(sorted(COMPARE))
            return call(op, self.node(other, depth), self.node(other, depth))
        if kind == "apply":
            ops = (UNARY | BINARY) - {"isnan", "isinf"}
            op = self.pick(sorted(op for op in ops if scalar_op(op).accepts(dtype)))
            return Apply(op, tuple(self.node(dtype, depth) for _ in range(1 if op in UNARY else 2)), dtype)
        return arg(self.operand(dtype, self.map(dtype)), dtype)

    def build(self) -> Graph:
        for _ in range(self.draw(st.integers(1, 3))):
            self.inputs, self.maps, self.nodes = [], [], {}
            dtype = self.pick(DType)
            body = self.node(dtype, 4)
            if self.draw(st.booleans()):  # an operand that nothing reads
                self.operand(dtype, None)
            combiners = [c for c in ("add", "max", "argmin", "and") if not (c == "and" and dtype.is_float)]
            combiner = None
            if self.draw(st.booleans()):
                combiner = "or" if dtype is BOOL else self.pick(combiners)
            self.b.location = Location(self.pick(["", "model.py:3", "two\nlines", '"quoted"', "é  "]))
            self.b.generic(
                self.inputs, self.maps, self.shape, body, reduced=1 if combiner else 0, combiner=combiner
            )
        return self.b.build(self.values[:2], ["first", "a second one"])


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_bodies_of_every_kind(data):
    same_after_parsing(_Bodies(data.draw).build())


def every_op() -> Graph:
    b = GraphBuilder('a "name"')
    s = dims.symbol(Dim("s", 2, 64, 2, typical=6))
    x = b.input("x", (4, 6), F32)
    rows = b.input("rows", (s, 6), F32)
    i, u = b.input("i", (2, 1), I64), b.input("u", (2, 6), F32)
    q = b.input("q", (1, 2, 4, 8), F32)
    w = b.constant("w", Constant.of(np.zeros((4, 6), np.float32), 'the "weight"\n'), (4, 6), F32)
    held = b.state("held", (s, 6), F32)
    count = b.state("count", (4, 6), F32, Constant.of(np.ones((4, 6), np.float32), "ones"))
    b.location = Location("model.py:7")
    b.reshape(x, (24,))
    b.slice(rows, (dims.add(s, -2), 0), (2, 3), (1, 2))
    b.concat([x, rows], 0)
    b.pad(x, (1, 0), (s, 2), -math.inf)
    for combiner in (None, "add", "max"):
        b.scatter(x, i, u, combiner)
    b.sort(x, 1)
    b.sort(x, 1, descending=True, limit=3)
    b.scan(x, 0)
    b.scan(x, 0, "max", inclusive=False)
    b.attention(q, q, q, None, 0.5, causal=True)
    b.attention(q, q, q, b.input("mask", (4, 4), BOOL), 1)
    b.attention(q, q, q, None, 0.5, softcap=30.0)
    total = b.generic([x], [plain(0, 1)], (4, 6), arg(0), reduced=2, combiner="add")
    b.assert_true(b.generic([], [], (), const(True, BOOL)), 'isn\'t "so"\n')
    b.update_state(held, elementwise(b, "add", held, rows))
    b.update_state(count, w)
    return b.build([total, x])


def test_every_op():
    parsed = same_after_parsing(every_op())
    kinds = [type(op).__name__ for op in parsed.ops]
    assert len(set(kinds)) == 10
    assert parsed.states[1].initial is not None and parsed.states[1].initial.key == "ones"


def test_parameters_and_names():
    n, m = Dim("n", 1, 8), Dim("m", 1, 4, typical=2)
    text = (
        "graph main\n"
        "  dim    n: 1 to 8\n"
        "  param  m: 1 to 4 typical 2\n"
        '  input  %"odd name": [n]xf32\n'
        '  %y: [m]xf32 = generic (d0:m) {%"odd name"[d0 else 0.0]}\n'
        '  return %y as "the result", %"odd name"\n'
    )
    graph = parse_graph(text)
    assert graph.parameters == (m,) and graph.parameters[0].typical == 2
    assert graph.dims() == {"n": n, "m": m}
    assert graph.inputs[0].name == "odd name"
    assert graph.output_names == ("the result", "odd name")
    assert str(graph) == text


def test_operands_that_the_body_does_not_tell():
    b = GraphBuilder()
    x, y = b.input("x", (3,), F32), b.input("y", (3,), F32)
    identity = plain(0)
    b.generic([y, x], [identity, identity], (3,), call("sub", arg(1), arg(0)), name="order")
    b.generic([x, x], [identity, identity], (3,), call("sub", arg(1), arg(0)), name="twice")
    b.generic([x, y], [identity, None], (3,), arg(0), name="unread")
    b.generic([x], [identity], (3,), call("add", arg(0), Gather(0, (index(0),), F32)), name="both")
    graph = b.build([x])
    assert [line.partition(" = ")[2] for line in str(graph).splitlines()[3:-1]] == [
        "generic (d0:3) (%y[d0], %x[d0]) {%x[d0] - %y[d0]}",
        "generic (d0:3) (%x[d0], %x[d0]) {in1 - in0}",
        "generic (d0:3) (%x[d0], %y) {%x[d0]}",
        "generic (d0:3) (%x[d0]) {%x[d0] + %x{d0}}",
    ]
    same_after_parsing(graph)


def test_deep_bodies():
    b = GraphBuilder()
    x = b.input("x", (3,), F32)
    tall: Scalar = arg(0)
    for _ in range(5000):
        tall = call("neg", tall)
    wide: Scalar = arg(0)
    for _ in range(50):
        wide = call("add", wide, wide)
    for body in (tall, wide):
        b.generic([x], [plain(0)], (3,), body)
    same_text(b.build([x]))


# What one writes ----------------------------------------------------------------------------
def test_written_by_hand():
    graph = parse_graph("""
        // a comment
        graph g

        input %x: 2x3xf32
        const %w: 3xf32 "w"
        %y:2x3xf32=generic(d0:2,d1:3){%x[d0,d1]*2.0+%w[d1]-1.0/%x[d0,d1]}  // here
        return %y
        """, {"w": lambda: np.arange(3, dtype=np.float32)})  # fmt: skip
    (op,) = graph.ops
    assert isinstance(op, Generic) and op.location.text == "here"
    x = random((2, 3))
    (y,) = interpret(graph, [x])
    np.testing.assert_allclose(y, x * 2 + np.arange(3) - 1 / x, rtol=1e-5)


def test_weights_by_name_and_by_key():
    text = 'graph g\n const %a: f32 "k"\n const %b: f32 "k"\n const %c: f32 "none"\n return %a, %b, %c\n'
    one, two = (lambda: np.float32(1)), (lambda: np.float32(2))
    graph = parse_graph(text, {"b": two, "k": one})
    assert [c.load() for c in list(graph.constants.values())[:2]] == [1, 2]
    with pytest.raises(ImportModelError, match="without the data of %c"):
        interpret(graph, [])


START = "graph g\n  dim s: 1 to 8\n  input %x: [s]x4xf32\n"


@pytest.mark.parametrize(
    ("text", "line", "column", "expected"),
    [
        ("", 1, 1, "'graph'"),
        ("module {}", 1, 1, "'graph'"),
        ("graph g\n", 2, 1, "'return'"),
        ("graph g\nreturn\nreturn", 3, 1, "nothing after the return"),
        ("graph g\n dim s: 9 to 3", 2, 6, "a contract that some value keeps"),
        ("graph g\n dim s: 1 to 3\n dim s: 1 to 3", 3, 6, "a name that no other dim has"),
        ("graph g\n dim s: one to 3", 2, 9, "the lower bound"),
        (START + "  input %x: f32", 4, 9, "a name that no other value has"),
        (START + "  input %y: 4xf33", 4, 15, "an element type"),
        (START + "  input %y: [2*t]xf32", 4, 14, r"declared dims \(s\)"),
        (START + "  input %y: [s]f32", 4, 16, "'x'"),
        (START + "  const %y: f32 key", 4, 17, "the key of the constant"),
        (START + "  state %y: f32 -> %z\n  return", 4, 20, "a value that the graph defines"),
        (START + "  return %y", 4, 10, "a value that is defined above"),
        (START + "  %y: f32 = fold %x", 4, 13, r"an op \(assert, attention"),
        (START + "  %y: f32 = reshape %y", 4, 21, "a value that is defined above"),
        (START + "  %y: f32 = concat %x axes 0", 4, 23, "'axis'"),
        (START + "  %y: f32 = scan %x axis 0 sum", 4, 28, "one of add, mul, min, max"),
        (START + "  %y: f32 = reshape %x quickly", 4, 24, "the end of the line"),
        (START + "  %y: 4xf32 = slice %x offsets [s", 4, 34, "','"),
        (START + "  assert %x message", 4, 13, "a quoted text"),
        (START + "  %y: 4xf32 = generic (d1:4) {1.0}", 4, 24, "'d0'"),
        (START + "  %y: 4xf32 = generic (d0:4, d1:4) {1.0}", 4, 24, "1 loops before the bar"),
        (START + "  %y: 4xf32 = generic (d0:4) {%x[d0, d0] +}", 4, 43, "a scalar"),
        (START + "  %y: 4xf32 = generic (d0:4) {sine(1.0)}", 4, 31, "a scalar op"),
        (START + "  %y: 4xf32 = generic (d0:4) {pow(1.0)}", 4, 31, "pow with 2 arguments, not 1"),
        (START + "  %y: 4xf32 = generic (d0:4) {t0 + 1.0}", 4, 31, "a subexpression"),
        (START + "  %y: 4xf32 = generic (d0:4) {in0}", 4, 31, "an operand of the list"),
        (START + "  %y: 4xf32 = generic (d0:4) {%x[dd, 0]}", 4, 34, "an index such as d0"),
        (START + "  %y: 4xf32 = generic (d0:4) {%x}", 4, 33, "an index map in brackets"),
        (START + "  %y: 4xf32 = generic (d0:4) {(1.0}", 4, 35, r"an operator or '\)'"),
        (START + "  %y: 4xf32 = generic (d0:4) {min(1.0 2.0)}", 4, 39, "a comma or"),
        (START + "  %y: 4xf32 = generic (d0:4) (%x[0, d0]) {%x[1, d0]}", 4, 43, "a read that is listed"),
    ],
)  # fmt: skip
def test_errors_tell_the_place(text, line, column, expected):
    with pytest.raises(GraphSyntaxError, match=expected) as caught:
        parse_graph(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert f"line {line}, column {column}: expected " in str(caught.value)


def test_the_rules_of_the_graph_hold_for_text():
    with pytest.raises(VerificationError, match="24 elements"):
        parse_graph("graph g\n input %x: 4x6xf32\n %y: 5xf32 = reshape %x\n return %y")


def test_text_and_bytes_agree():
    graph = every_op()
    names = {c: str(i) for i, c in enumerate(graph.constants.values())}
    names |= {s.initial: "initial" for s in graph.states if s.initial is not None}
    data = graph_to_bytes(graph, names)
    assert data is not None
    read = graph_from_bytes(data, {name: constant for constant, name in names.items()})
    assert str(parse_graph(str(read))) == str(read)
    assert str(read) == str(graph).replace(" typical 6", "")
