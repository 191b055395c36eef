"""The text of graphs."""

from __future__ import annotations

import time

import numpy as np
from support.ir_graphs import BOOL, F32, I64, affine, arg, call, const, elementwise, index, matmul, plain

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import Constant, Generic, GraphBuilder, Location
from mansard.ir.printer import print_graph, print_op
from mansard.ir.scalar import Bitcast, Cast, DimValue, Gather, Scalar


def test_graph():
    s = dims.symbol(Dim("s", 2, 64, 2))
    b = GraphBuilder("tiny")
    x = b.input("x", (s, 8), F32)
    w = b.constant("w", Constant.of(np.zeros((8, 5), np.float32), "layer.weight"), (8, 5), F32)
    held = b.state("held", (s, 5), F32)
    b.location = Location("model.py:7")
    y = matmul(b, x, w)
    b.location = Location()
    b.update_state(held, elementwise(b, "add", held, y))
    graph = b.build([y], ["logits"])
    assert str(graph) == (
        "graph tiny\n"
        "  dim    s: 2 to 64 step 2\n"
        "  input  %x: [s]x8xf32\n"
        "  state  %held: [s]x5xf32 -> %add\n"
        '  const  %w: 8x5xf32 "layer.weight"\n'
        "  %mm: [s]x5xf32 = generic (d0:s, d1:5 | d2:8) add {%x[d0, d2] * %w[d2, d1]}\n"
        "  %add: [s]x5xf32 = generic (d0:s, d1:5) {%held[d0, d1] + %mm[d0, d1]}\n"
        "  return %mm as logits\n"
    )
    assert "%w[d2, d1]}  // model.py:7\n" in print_graph(graph, locations=True)


def body_text(body: Scalar, **extra) -> str:
    b = GraphBuilder()
    x, n = b.input("x", (8, 8), F32), b.input("n", (8, 8), I64)
    maps = extra.get("maps", [plain(0, 1), affine(({0: 2}, 1), ({1: 1}, 0))])
    y = b.generic([x, n], maps, (3, 4), body)
    (op,) = b.build([y]).ops
    assert isinstance(op, Generic)
    return print_op(op).partition("{")[2][:-1]


def test_bodies():
    assert body_text(arg(1, I64)) == "%n[(2)*d0 + 1, d1]"
    assert (
        body_text(call("max", call("add", arg(0), const(1.0)), const(-0.0))) == "max(%x[d0, d1] + 1.0, -0.0)"
    )
    assert (
        body_text(call("mul", call("sub", arg(0), arg(0)), arg(0)))
        == "(%x[d0, d1] - %x[d0, d1]) * %x[d0, d1]"
    )
    assert body_text(Cast(call("lt", index(0, 1), DimValue(5)), F32)) == "f32((d0 + 1) < dim(5))"
    assert body_text(Bitcast(arg(0), DType.I32)) == "bitcast_i32(%x[d0, d1])"
    assert body_text(Gather(0, (arg(1, I64), index(1)), F32)) == "%x{%n[(2)*d0 + 1, d1], d1}"
    assert (
        body_text(call("select", const(True, BOOL), arg(0), arg(0))) == "select(true, %x[d0, d1], %x[d0, d1])"
    )


def test_shared_parts_are_named():
    part = call("exp", arg(0))
    assert body_text(call("add", part, call("neg", part))) == "t0 = exp(%x[d0, d1]); t0 + neg(t0)"


def test_deep_bodies():
    body: Scalar = arg(0)
    for _ in range(50):
        body = call("add", body, body)
    started = time.perf_counter()
    assert len(body_text(body)) < 2000
    tall: Scalar = arg(0)
    for _ in range(5000):
        tall = call("neg", tall)
    assert body_text(tall).startswith("neg(neg(")
    assert time.perf_counter() - started < 5


def test_every_op_has_a_line():
    b = GraphBuilder()
    x = b.input("x", (4, 6), F32)
    i, u = b.input("i", (2, 1), I64), b.input("u", (2, 6), F32)
    q = b.input("q", (1, 2, 4, 8), F32)
    b.reshape(x, (24,))
    b.slice(x, (1, 0), (2, 3), (1, 2))
    b.concat([x, x], 0)
    b.pad(x, (1, 0), (0, 2), -1.0)
    b.scatter(x, i, u, "add")
    b.sort(x, 1, descending=True, limit=3)
    b.scan(x, 0, inclusive=False)
    b.attention(q, q, q, None, 0.5, causal=True)
    b.assert_true(b.generic([], [], (), const(True, BOOL)), "holds")
    lines = [print_op(op) for op in b.build([x]).ops]
    assert lines == [
        "%reshape: 24xf32 = reshape %x",
        "%slice: 2x3xf32 = slice %x offsets [1, 0] strides [1, 2]",
        "%concat: 8x6xf32 = concat %x, %x axis 0",
        "%pad: 5x8xf32 = pad %x low [1, 0] high [0, 2] value -1.0",
        "%scatter: 4x6xf32 = scatter %x, %i, %u add",
        "%sorted: 4x3xf32, %order: 4x3xi64 = sort %x axis 1 descending limit 3",
        "%scan: 4x6xf32 = scan %x axis 0 add exclusive",
        "%attention: 1x2x4x8xf32 = attention %q, %q, %q scale 0.5 causal",
        "%v: bool = generic () {true}",
        "assert %v 'holds'",
    ]
