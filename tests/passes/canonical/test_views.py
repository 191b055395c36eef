"""Views, copies, gathers and permuted producers: what changes, and that values stay."""

from __future__ import annotations

import numpy as np
import pytest
from support.ir_graphs import (
    F32,
    I64,
    affine,
    apply,
    arg,
    call,
    const,
    elementwise,
    gathers,
    index,
    kinds,
    matmul,
    plain,
    random,
    transpose,
)

from mansard import dims
from mansard.analysis.operands import is_copy
from mansard.dims import Dim
from mansard.ir import Constant, Generic, GraphBuilder
from mansard.ir.scalar import DimValue, Gather, Index
from mansard.ir.verify import verify
from mansard.passes.canonical.copies import read_through_copies
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.canonical.gathers import affine_gathers
from mansard.passes.canonical.lower_views import lower_views
from mansard.passes.canonical.simplify import simplify
from mansard.passes.canonical.views import simplify_views
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps


# Views --------------------------------------------------------------------------------------
def test_reshapes_merge_and_vanish():
    b = GraphBuilder()
    x = b.input("x", (4, 6), F32)
    there = b.reshape(b.reshape(x, (24,)), (2, 12))
    back = b.reshape(b.reshape(x, (3, 8)), (4, 6))
    after = apply(b.build([elementwise(b, "neg", there), elementwise(b, "neg", back)]), simplify_views)
    assert kinds(after) == ["reshape", "generic", "generic"]
    assert after.ops[-1].inputs == (x,)


def test_views_that_do_nothing_vanish():
    b = GraphBuilder()
    x = b.input("x", (4, 6), F32)
    y = b.slice(x, (0, 0), (4, 6), (1, 1))
    y = b.pad(y, (0, 0), (0, 0), 0.0)
    y = b.concat([y], 0)
    y = b.concat([y, b.slice(x, (0, 0), (0, 6), (1, 1))], 0)
    y = b.generic([y], [plain(0, 1)], (4, 6), arg(0))
    after = simplify_views(b.build([y]))
    verify(after)
    assert after.outputs == (x,)
    assert kinds(eliminate_dead(after)) == []


def test_copy_that_keeps_the_order_is_a_reshape():
    b = GraphBuilder()
    x = b.input("x", (1, 4, 6), F32)
    moved = transpose(b, x, (1, 0, 2))  # a dim of one point moves past another
    after = apply(b.build([elementwise(b, "neg", moved)]), simplify_views)
    assert kinds(after) == ["reshape", "generic"]


def test_reshape_of_a_constant_is_a_constant_over_the_same_memory():
    b = GraphBuilder()
    data = random((4, 6))
    w = b.constant("w", Constant("layer.w", lambda: data), (4, 6), F32)
    y = b.reshape(w, (3, 8))
    after = apply(b.build([elementwise(b, "neg", y)]), simplify_views)
    assert kinds(after) == ["generic"]
    ((value, constant),) = after.constants.items()
    assert value.type.shape == (3, 8)
    assert constant.key == "layer.w"
    assert np.shares_memory(constant.load(), data)


def test_reshape_of_a_range_is_computed_in_the_new_shape():
    b = GraphBuilder()
    x = b.input("x", (3, 4), I64)
    flat = b.generic([], [], (12,), index(0, 5))
    after = apply(b.build([elementwise(b, "add", x, b.reshape(flat, (3, 4)))]), simplify_views)
    assert kinds(after) == ["generic", "generic"]


# Lowering -----------------------------------------------------------------------------------
def test_slice_becomes_an_affine_read():
    b = GraphBuilder()
    x = b.input("x", (8, 9), F32)
    after = apply(b.build([b.slice(x, (1, 2), (3, 4), (2, 1))]), lower_views)
    (op,) = after.ops
    assert isinstance(op, Generic)
    assert op.maps == (affine(({0: 2}, 1), ({1: 1}, 2)),)


def test_symbolic_slice():
    s = dims.symbol(Dim("s", 2, 64))
    b = GraphBuilder()
    x = b.input("x", (s, 3), F32)
    last = b.slice(x, (dims.add(s, -1), 0), (1, 3), (1, 1))
    after = apply(b.build([elementwise(b, "neg", last)]), lower_views, read_through_copies)
    assert kinds(after) == ["generic"]


@pytest.mark.parametrize("low", [(0, 0), (2, 0), (1, 3)])
@pytest.mark.parametrize("high", [(0, 0), (0, 1), (2, 2)])
def test_pad_becomes_a_select(low, high):
    b = GraphBuilder()
    x = b.input("x", (4, 3), F32)
    after = apply(b.build([b.pad(x, low, high, -2.0)]), lower_views, simplify)
    assert kinds(after) == ["generic"]


def test_pad_of_nothing():
    b = GraphBuilder()
    x = b.input("x", (0, 3), F32)
    after = apply(b.build([b.pad(x, (2, 0), (0, 1), 7.0)]), lower_views)
    assert kinds(after) == ["generic"]


def test_concat_becomes_a_chain_of_selects():
    s = dims.symbol(Dim("s", 1, 64))
    b = GraphBuilder()
    xs = [b.input(f"x{i}", (2, d), F32) for i, d in enumerate((3, s, 4))]
    after = apply(b.build([b.concat(xs, 1)]), lower_views)
    assert kinds(after) == ["generic"]
    assert gathers(after) == 3


# Gathers ------------------------------------------------------------------------------------
def test_affine_gather_becomes_a_read():
    b = GraphBuilder()
    x = b.input("x", (6, 4), F32)
    y = b.generic([x], [None], (5, 4), Gather(0, (index(0, 1), Index(1)), F32))
    after = apply(b.build([y]), affine_gathers)
    (op,) = after.ops
    assert isinstance(op, Generic)
    assert op.maps == (affine(({0: 1}, 1), ({1: 1}, 0)),)


def test_gather_that_may_clamp_stays():
    b = GraphBuilder()
    x = b.input("x", (6, 4), F32)
    y = b.generic([x], [None], (6, 4), Gather(0, (index(0, 1), Index(1)), F32))
    graph = b.build([y])
    assert affine_gathers(graph) is graph
    assert gathers(apply(graph, affine_gathers)) == 1


def test_dynamic_broadcast_of_a_frontend_becomes_a_read():
    s = dims.symbol(Dim("s", 1, 64))
    b = GraphBuilder()
    x, y = b.input("x", (s, 4), F32), b.input("y", (1, s, 4), F32)
    choose = call("select", call("eq", DimValue(s), const(1, I64)), const(0, I64), Index(1))
    body = call("add", Gather(0, (choose, Index(2)), F32), Gather(1, (const(0, I64), choose, Index(2)), F32))
    graph = b.build([b.generic([x, y], [None, None], (2, s, 4), body)])
    after = apply(graph, simplify, affine_gathers)
    assert gathers(after) == 0
    (op,) = after.ops
    assert isinstance(op, Generic)
    assert op.maps == (plain(1, 2), plain(None, 1, 2))


def test_gather_from_an_operand_that_is_also_read():
    b = GraphBuilder()
    x = b.input("x", (4,), F32)
    far = Gather(0, (call("rem", index(0, 3), const(4, I64)),), F32)
    after = apply(b.build([b.generic([x], [plain(0)], (4,), call("add", arg(0), far))]), simplify)
    (op,) = after.ops
    assert isinstance(op, Generic)
    assert op.inputs == (x, x)
    assert set(op.maps) == {plain(0), None}


# Copies -------------------------------------------------------------------------------------
def test_weight_transpose_joins_the_matmul():
    b = GraphBuilder()
    x, w = b.input("x", (5, 8), F32), b.input("w", (6, 8), F32)
    after = apply(b.build([matmul(b, x, transpose(b, w, (1, 0)))]), read_through_copies)
    (op,) = after.ops
    assert isinstance(op, Generic)
    assert op.inputs == (x, w)
    assert op.maps == (plain(0, 2), plain(1, 2))


def test_chain_of_slice_transpose_and_broadcast():
    b = GraphBuilder()
    x = b.input("x", (6, 4, 5), F32)
    y = b.slice(x, (1, 0, 2), (2, 4, 3), (2, 1, 1))
    y = transpose(b, y, (2, 0, 1))
    y = b.generic([y], [plain(1, 2, 3)], (7, 3, 2, 4), arg(0))
    after = apply(b.build([elementwise(b, "exp", y)]), lower_views, read_through_copies)
    (op,) = after.ops
    assert isinstance(op, Generic)
    assert op.maps == (affine(({2: 2}, 1), ({3: 1}, 0), ({1: 1}, 2)),)


def test_copy_behind_a_reshape_that_splits():
    b = GraphBuilder()
    x = b.input("x", (4, 6), F32)
    y = b.reshape(transpose(b, x, (1, 0)), (2, 3, 4))
    after = apply(b.build([elementwise(b, "exp", y)]), read_through_copies)
    (op,) = after.ops
    assert isinstance(op, Generic)
    assert op.maps == (affine(({2: 1}, 0), ({0: 3, 1: 1}, 0)),)


def test_copy_behind_a_reshape_that_merges_stays():
    b = GraphBuilder()
    x = b.input("x", (4, 6), F32)
    y = b.reshape(transpose(b, x, (1, 0)), (24,))
    graph = b.build([elementwise(b, "exp", y)])
    assert read_through_copies(graph) is graph


def test_reshape_alone_is_left_to_fusion():
    b = GraphBuilder()
    x = b.input("x", (4, 6), F32)
    graph = b.build([elementwise(b, "exp", b.reshape(x, (2, 2, 6)))])
    assert read_through_copies(graph) is graph


def test_gather_through_a_transpose_and_a_slice():
    b = GraphBuilder()
    table, ids = b.input("table", (3, 8), F32), b.input("ids", (6,), I64)
    turned = transpose(b, table, (1, 0))
    part = b.slice(turned, (2, 0), (4, 3), (1, 1))
    y = b.generic([part, ids], [None, plain(0)], (6, 3), Gather(0, (arg(1, I64), Index(1)), F32))
    # Ids run from -8 to 7: most clamp to the ends of the slice, not of the table.
    after = apply(b.build([y]), lower_views, read_through_copies)
    assert kinds(after) == ["generic"]
    assert table in after.ops[0].inputs


@pytest.mark.parametrize("shape", [(4, 3), (1, 4, 1, 3), (4, 1, 3)])
def test_gather_behind_dims_of_one_reads_the_slice_s_source(shape):
    b = GraphBuilder()
    caches = b.input("caches", (2, 1, 4, 3), F32)
    layer = b.reshape(b.slice(caches, (1, 0, 0, 0), (1, 1, 4, 3), (1, 1, 1, 1)), shape)
    axis = shape.index(4)
    row = b.input("new", tuple(1 if d == axis else n for d, n in enumerate(shape)), F32)
    after = apply(b.build([b.concat([layer, row], axis)]), lower_views, read_through_copies)
    assert kinds(after) == ["generic"]
    assert caches in after.ops[0].inputs


def test_copy_with_another_reader_stays_for_it():
    b = GraphBuilder()
    x = b.input("x", (4, 6), F32)
    t = transpose(b, x, (1, 0))
    values, _ = b.sort(t, 0)
    after = apply(b.build([elementwise(b, "exp", t), values]), read_through_copies)
    assert kinds(after) == ["generic", "sort", "generic"]
    assert after.ops[-1].inputs == (x,)


# The whole ----------------------------------------------------------------------------------
def test_no_copy_is_left_in_an_attention_block():
    b = GraphBuilder()
    x = b.input("x", (2, 6, 16), F32)
    heads = []
    for name in "qkv":
        w = b.constant(name, Constant.of(random((16, 16), seed=ord(name)), name), (16, 16), F32)
        y = matmul(b, b.reshape(x, (12, 16)), transpose(b, w, (1, 0)))
        heads.append(transpose(b, b.reshape(y, (2, 6, 4, 4)), (0, 2, 1, 3)))
    out = b.attention(*heads, None, 0.5)
    out = b.reshape(transpose(b, out, (0, 2, 1, 3)), (2, 6, 16))
    after = apply(b.build([out]), lambda g: run_passes(g, canonical_steps()))
    bodies = [op for op in after.ops if isinstance(op, Generic)]
    # Three projections; scores, scale, max, exp, sum, division and the weighted sum.
    assert len(bodies) == 10
    assert not any(is_copy(op) for op in bodies)
