"""Fusion: what is grouped, what is not, and that no op is lost or reordered."""

from dataclasses import replace

from hypothesis import given, settings
from support.graphs import A0, A1, F32, binary, layer_norm, maps, matmul, op, random_graphs, softmax, unary

from mansard import dims
from mansard.codegen.loop_nest import Nest
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, Reshape
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index
from mansard.ir.types import IndexMap, Linear
from mansard.passes.canonical.lower_attention import lower_attention
from mansard.passes.fusion.fuse import fuse

A0_I64, A1_I64 = Arg(0, DType.I64), Arg(1, DType.I64)


def names(graph):
    return [d.name for d in fuse(graph).dispatches]


def test_linear_with_bias_activation_and_residual_is_one_dispatch():
    b = GraphBuilder()
    x, w, bias = b.input("x", (2, 8, 16), F32), b.input("w", (16, 32), F32), b.input("b", (32,), F32)
    residual = b.input("r", (2, 8, 32), F32)
    y = matmul(b, b.reshape(x, (16, 16)), w)
    y = unary(b, "erf", binary(b, "add", y, bias))
    y = binary(b, "add", b.reshape(y, (2, 8, 32)), residual)
    (dispatch,) = fuse(b.build([y])).dispatches
    assert dispatch.domain == (2, 8, 32)
    assert len(dispatch.inputs) == 4 and len(dispatch.outputs) == 1


def test_softmax_and_layer_norm_are_one_dispatch_each():
    s = dims.symbol(Dim("s", 1, 512))
    b = GraphBuilder()
    x = b.input("x", (4, s, 64), F32)
    gamma, beta = b.input("g", (64,), F32), b.input("b", (64,), F32)
    assert names(b.build([softmax(b, x)])) == ["rows"]
    b = GraphBuilder()
    x = b.input("x", (4, s, 64), F32)
    gamma, beta = b.input("g", (64,), F32), b.input("b", (64,), F32)
    assert names(b.build([layer_norm(b, x, gamma, beta)])) == ["rows"]


def test_the_square_of_a_row_is_not_stored_for_its_norm():
    b = GraphBuilder()
    x, w, r = b.input("x", (8, 16), F32), b.input("w", (16, 32), F32), b.input("r", (8, 32), F32)
    y = binary(b, "add", matmul(b, x, w), r)
    square = b.generic([y], [maps(0, 1)], (8, 32), op("mul", A0, A0))
    total = b.generic([square], [maps(0, 1)], (8, 32), A0, reduced=1, combiner="add")
    scale = b.generic([total], [maps(0)], (8,), op("rsqrt", A0))
    z = b.generic([y, scale], [maps(0, 1), maps(0)], (8, 32), op("mul", A0, A1))
    first, second = fuse(b.build([z])).dispatches
    assert [v.name for v in first.outputs] == [y.name] and second.inputs == (y,)


def test_branches_of_one_map_are_one_dispatch_even_if_they_read_at_indices():
    b = GraphBuilder()
    x, i, w = b.input("x", (8, 64), F32), b.input("i", (32,), DType.I64), b.input("w", (32,), F32)
    shape, rows = (8, 32), [maps(0, 1), maps(1)]
    first, second = (
        b.generic([x, n], [None, maps(1)], shape, Gather(0, (Index(0), Arg(1, DType.I64)), DType.F32))
        for n in (i, b.generic([i], [maps(0)], (32,), op("add", A0_I64, Const(1, DType.I64))))
    )
    weighted = (b.generic([y, w], rows, shape, op("mul", A0, A1)) for y in (first, second))
    (dispatch,) = fuse(b.build([binary(b, "add", *weighted)])).dispatches
    assert dispatch.domain == shape and set(dispatch.inputs) == {x, i, w}


def test_branches_whose_dims_a_reshape_merges_keep_them_in_the_domain():
    b = GraphBuilder()
    x, z = b.input("x", (2, 3), F32), b.input("z", (6,), F32)
    merged = unary(b, "neg", b.reshape(unary(b, "exp", x), (6,)))
    (dispatch,) = fuse(b.build([binary(b, "add", merged, unary(b, "exp", z))])).dispatches
    # One loop over 6 elements would not say in which row of x each is.
    assert dispatch.domain == (2, 3)
    nest = Nest(dispatch)
    assert {read.value for read in nest.reads(nest.roots[0])} == {x, z}


def test_attention_is_one_dispatch_where_asked_for():
    def built(shared):
        b = GraphBuilder()
        q, k, v = (b.input(n, (1, 2, 24, 16), F32) for n in "qkv")
        graph = lower_attention(b.build([b.attention(q, k, v, None, 0.5)]))
        if not shared:
            return graph
        probabilities = next(o for o in graph.ops if "probabilities" in o.outputs[0].name).outputs[0]
        return replace(graph, outputs=(*graph.outputs, probabilities), output_names=("y", "p"))

    assert len(fuse(built(False)).dispatches) == 3
    assert [d.name for d in fuse(built(False), attention=lambda _: True).dispatches] == ["attention"]
    assert len(fuse(built(True), attention=lambda _: True).dispatches) == 3


def test_a_matmul_does_not_swallow_heavy_producers():
    b = GraphBuilder()
    x, w = b.input("x", (64, 64), F32), b.input("w", (64, 64), F32)
    graph = b.build([matmul(b, unary(b, "exp", x), w)])
    assert len(fuse(graph).dispatches) == 2


def test_a_producer_whose_dims_a_reshape_merges_is_not_recomputed_in_a_row():
    b = GraphBuilder()
    x = b.input("x", (2, 2), F32)
    row = unary(b, "neg", b.reshape(unary(b, "neg", x), (1, 4)))
    total = b.generic([row], [maps(0, 1)], (1, 4), A0, reduced=1, combiner="add")
    assert names(b.build([b.reshape(total, (1, 1))])) == ["map", "rows"]


def test_a_value_read_across_points_is_stored():
    b = GraphBuilder()
    x = b.input("x", (8, 8), F32)
    y = unary(b, "exp", x)
    z = b.generic([y, y], [maps(0, 1), maps(1, 0)], (8, 8), op("add", A0, op("neg", A0)))
    graph = b.build([z])
    assert len(fuse(graph).dispatches) == 2


def test_joining_may_not_make_a_cycle():
    # c reads a's group directly and, through the reduction r, something that depends on it.
    b = GraphBuilder()
    x, w = b.input("x", (8, 8), F32), b.input("w", (8, 8), F32)
    a = matmul(b, x, w)
    r = matmul(b, a, w)
    c = binary(b, "add", a, r)
    graph = b.build([c])
    dispatches = fuse(graph).dispatches
    assert len(dispatches) == 2
    assert c in dispatches[1].outputs


def test_outputs_get_buffers_of_their_own():
    b = GraphBuilder()
    x = b.input("x", (4,), F32)
    y = unary(b, "neg", x)
    graph = b.build([x, y, y, b.reshape(y, (2, 2))], output_names=("a", "b", "c", "d"))
    fused = fuse(graph)
    bases = [fused.base(v) for v in fused.graph.outputs]
    assert len(set(bases)) == 4
    outputs = {v for d in fused.dispatches for v in d.outputs}
    assert set(bases) <= outputs


@settings(max_examples=60, deadline=None)
@given(random_graphs())
def test_every_op_is_in_one_dispatch_and_producers_come_first(graph):
    fused = fuse(graph)
    computed = [o for d in fused.dispatches for o in d.ops if not isinstance(o, Reshape)]
    wanted = [o for o in fused.graph.ops if not isinstance(o, Reshape)]
    live = {fused.base(v) for v in fused.graph.live_outs()}
    assert set(computed) == set(wanted)
    assert len(computed) == len(set(computed))
    known = set(fused.graph.inputs) | set(fused.graph.constants)
    for dispatch in fused.dispatches:
        assert set(dispatch.inputs) <= known
        known |= set(dispatch.outputs)
    assert live <= known


def test_a_map_that_only_an_assert_reads_is_computed():
    for _ in range(2):  # nothing of one graph may stay in the next
        b = GraphBuilder()
        x = b.input("x", (8, 4), F32)
        total = b.generic([x], [maps(0, 1)], (8, 4), A0, reduced=1, combiner="add")
        positive = Apply("gt", (A0, Const(0.0, F32)), DType.BOOL)
        small = Apply("lt", (A0, Const(9.0, F32)), DType.BOOL)
        b.assert_true(b.generic([total], [maps(0)], (8,), positive), "must be positive")
        b.assert_true(b.generic([x], [maps(0, 1)], (8, 4), small), "must be small")
        graph = fuse(b.build([]))
        computed = {v for d in graph.dispatches for v in d.outputs}
        assert all(check.inputs[0] in computed for check in graph.asserts)


def extreme(b, x, combiner, columns=None):
    """Of the rows of (N, M), or of some of their columns."""
    n, m = x.type.shape
    read = IndexMap((Linear.dim(0), Linear.dim(1, 1, m - columns if columns else 0)))
    return b.generic([x], [read], (n, columns or m), A0, reduced=1, combiner=combiner)


def test_reductions_of_the_same_rows_are_one_dispatch():
    b = GraphBuilder()
    x = b.input("x", (64, 16), F32)
    graph = b.build([extreme(b, x, "max", 15), extreme(b, x, "argmax", 15), extreme(b, x, "min")])
    first, second = fuse(graph).dispatches
    assert len(first.outputs) == 2 and first.inputs == second.inputs == (x,)
    b = GraphBuilder()
    x, y = b.input("x", (64, 16), F32), b.input("y", (64, 16), F32)
    assert len(fuse(b.build([extreme(b, x, "max"), extreme(b, y, "max")])).dispatches) == 2


def test_reductions_of_the_same_rows_of_which_one_needs_the_other_make_no_cycle():
    b = GraphBuilder()
    x, w = b.input("x", (64, 16), F32), b.input("w", (64, 64), F32)
    top = b.reshape(extreme(b, x, "max"), (1, 64))
    moved = b.reshape(matmul(b, top, w), (64,))
    other = b.generic(
        [x, moved], [maps(0, 1), maps(0)], (64, 16), op("sub", A0, A1), reduced=1, combiner="add"
    )
    assert names(b.build([other])) == ["rows", "contraction", "rows_1"]


def rounds(b, scores, step):
    """The best of a row, and what is left of it after heavy arithmetic with its position."""
    place = b.generic([scores], [maps(0, 1)], scores.type.shape, A0, reduced=1, combiner="argmax")
    body = op("mul", A0, op("cos", op("sin", op("exp", op("tanh", A0)))) if step == "heavy" else A0)
    body = op("select", Apply("eq", (Index(1), Arg(1, DType.I64)), DType.BOOL), Const(0.0, F32), body)
    rest = b.generic([scores, place], [maps(0, 1), maps(0)], scores.type.shape, body)
    again = b.generic([rest], [maps(0, 1)], scores.type.shape, A0, reduced=1, combiner="argmax")
    return [place, again, rest]


def test_heavy_maps_over_few_rows_are_computed_once():
    for rows, step, count in ((1, "heavy", 3), (1, "light", 1), (64, "heavy", 1)):
        b = GraphBuilder()
        graph = b.build(rounds(b, b.input("x", (rows, 100), F32), step))
        assert len(fuse(graph).dispatches) == count, (rows, step)


def test_a_few_gathered_elements_are_found_by_the_map_that_reads_them():
    for count, dispatches in ((4, 1), (64, 2)):
        b = GraphBuilder()
        i, table = b.input("i", (1,), DType.I64), b.input("t", (9, count), F32)
        box = b.generic([table, i], [None, maps(None)], (1, count), Gather(0, (A1_I64, Index(1)), F32))
        x = b.input("x", (100, count), F32)
        y = b.generic([x, box], [maps(0, 1), maps(None, 1)], (100, count), op("sub", A0, A1))
        assert len(fuse(b.build([y])).dispatches) == dispatches
