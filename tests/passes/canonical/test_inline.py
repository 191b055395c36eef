"""Light maps computed where gathers read them: which ones, and that values stay."""

from __future__ import annotations

import numpy as np
from support.ir_graphs import (
    F32,
    I64,
    affine,
    apply,
    arg,
    call,
    const,
    elementwise,
    kinds,
    matmul,
    plain,
    random,
)

from mansard.ir import GraphBuilder, Value
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Cast, Gather, Index
from mansard.passes.canonical.copies import read_through_copies
from mansard.passes.canonical.inline import inline_into_gathers
from mansard.passes.canonical.lower_views import lower_views


# Light maps in gathers ----------------------------------------------------------------------
def rotate_half(b: GraphBuilder, x: Value) -> Value:
    """concat(-x[8:], x[:8]) of (4, 16)."""
    low, high = b.slice(x, (0, 0), (4, 8), (1, 1)), b.slice(x, (0, 8), (4, 8), (1, 1))
    return elementwise(b, "mul", b.concat([elementwise(b, "neg", high), low], 1), x)


def test_rotated_half_is_not_stored():
    b = GraphBuilder()
    x = elementwise(b, "exp", b.input("x", (4, 16), F32))
    after = apply(b.build([rotate_half(b, x)]), lower_views, read_through_copies, inline_into_gathers)
    assert kinds(after) == ["generic"] * 3  # exp, the concatenation, the product


def test_maps_that_fusion_computes_better_stay():
    b = GraphBuilder()
    x, w = b.input("x", (4, 8), F32), b.input("w", (8, 6), F32)
    y = matmul(b, x, w)  # only read by the bias: its epilogue
    relu = b.generic([y], [plain(0, 1)], (4, 6), call("max", arg(0), const(0.0)))
    graph = lower_views(b.build([b.pad(relu, (1, 0), (1, 0), 0.0)]))
    assert inline_into_gathers(graph) is graph


def test_heavy_maps_and_maps_read_elsewhere_stay():
    b = GraphBuilder()
    x = b.input("x", (4, 6), F32)
    wave = elementwise(b, "sin", x)
    shared = elementwise(b, "neg", x)
    padded = [b.pad(v, (1, 0), (1, 0), 0.0) for v in (wave, shared)]
    graph = lower_views(b.build([*padded, elementwise(b, "abs", shared)]))
    assert inline_into_gathers(graph) is graph


def test_inlined_map_clamps_where_it_was_read():
    b = GraphBuilder()
    x, ids = b.input("x", (12,), F32), b.input("ids", (7,), I64)
    part = b.generic([x], [affine(({0: 2}, 1))], (5,), call("add", arg(0), Cast(Index(0), F32)))
    y = b.generic([part, ids], [None, plain(0)], (7,), Gather(0, (arg(1, I64),), F32))
    graph = b.build([y])
    after = apply(graph, inline_into_gathers)
    assert kinds(after) == ["generic"]
    values = [random((12,)), np.array([-5, 0, 2, 4, 5, 6, 100])]
    np.testing.assert_array_equal(interpret(after, values)[0], interpret(graph, values)[0])
