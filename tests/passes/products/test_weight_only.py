"""Quantisation of the weights of a graph: which are stored so, and what it then computes."""

import numpy as np
import pytest
from support import graph_runner
from support.graphs import F32, maps

import mansard
from mansard.dtypes import DType
from mansard.errors import CompileError
from mansard.ir import Constant, GraphBuilder
from mansard.ir.dispatch import is_contraction
from mansard.ir.interpreter.graph import interpret, load
from mansard.ir.scalar import Apply, Arg, Cast, Gather, Index
from mansard.ir.verify import verify
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.fusion.horizontal_fusion import fuse_horizontally
from mansard.passes.products.weight_only import quantise_weights

RNG = np.random.default_rng(9)
I64, BF16 = DType.I64, DType.BF16


def weight(b, name, shape, dtype=F32):
    data = (RNG.standard_normal(shape) * 0.1).astype(dtype.numpy)
    return b.constant(name, Constant.of(data, name), shape, dtype)


def linear(b, x, w, *, transposed=False, body=F32):
    rows, depth = x.type.shape
    columns = w.type.shape[1 if transposed else 0]
    leaves = [Arg(i, v.type.dtype) for i, v in enumerate((x, w))]
    factors = tuple(leaf if leaf.dtype is body else Cast(leaf, body) for leaf in leaves)
    reads = [maps(0, 2), maps(2, 1) if transposed else maps(1, 2)]
    extents = (rows, columns, depth)
    return b.generic([x, w], reads, extents, Apply("mul", factors, body), reduced=1, combiner="add")


def close(before, after, inputs, limit):
    for wanted, result in zip(interpret(before, inputs), interpret(after, inputs), strict=True):
        wanted, result = wanted.astype(np.float64), result.astype(np.float64)
        assert 0 < np.abs(result - wanted).max() < limit * np.abs(wanted).max()


def quantised(graph, kind="int8", bf16=False, **how):
    after = quantise_weights(graph, mansard.quantize(kind, min_elements=1, **how), bf16=bf16)
    verify(after)
    return after


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    ("how", "limit"),
    [
        ({"kind": "int8"}, 0.02),
        ({"kind": "int8", "group_size": 32, "symmetric": False}, 0.02),
        ({"kind": "int8", "activations": "int8"}, 0.03),
        ({"kind": "int4"}, 0.2),
        ({"kind": "int4", "symmetric": False, "activations": "int8"}, 0.2),
        ({"kind": "int4", "group_size": 0}, 0.3),
    ],
)
def test_products(how, limit, dtype, transposed):
    b = GraphBuilder()
    x = b.input("x", (5, 96), dtype)
    graph = b.build(
        [linear(b, x, weight(b, "w", (96, 40) if transposed else (40, 96)), transposed=transposed)]
    )
    after = quantised(graph, **how)
    assert {v.type.dtype.bits for v in after.constants if v.type.shape[0] == 40} >= {int(how["kind"][3:])}
    close(graph, after, [RNG.standard_normal((5, 96)).astype(dtype.numpy)], limit)


@pytest.mark.parametrize(("depth", "size", "group"), [(96, 64, 32), (70, 32, 32), (70, 0, 70), (20, 32, 20)])
def test_groups_that_do_not_divide_the_rows(depth, size, group):
    """A part of the size where it divides the rows, padding where none does."""
    b = GraphBuilder()
    graph = b.build([linear(b, b.input("x", (3, depth), F32), weight(b, "w", (24, depth)))])
    for activations in (None, "int8"):
        after = quantised(graph, "int4", group_size=size, activations=activations)
        (scales,) = (v for v in after.constants if v.name == "w.scales")
        assert scales.type.shape == (24, -(-depth // group))
        close(graph, after, [RNG.standard_normal((3, depth)).astype(np.float32)], 0.3)


def test_products_in_narrow_types_are_rounded_once():
    b = GraphBuilder()
    graph = b.build([linear(b, b.input("x", (3, 64), BF16), weight(b, "w", (24, 64), BF16), body=BF16)])
    after = quantised(graph)
    assert after.outputs[0].type.dtype is BF16
    close(graph, after, [RNG.standard_normal((3, 64)).astype(BF16.numpy)], 0.03)


def test_bf16_precision_rounds_the_other_factor():
    b = GraphBuilder()
    graph = b.build([linear(b, b.input("x", (3, 64), F32), weight(b, "w", (24, 64)))])
    after = quantised(graph, bf16=True)
    (op,) = (op for op in after.ops if is_contraction(op))
    assert op.inputs[0].type.dtype is BF16
    close(graph, after, [RNG.standard_normal((3, 64)).astype(np.float32)], 0.03)


def tied(b):
    """Lookups in a table whose product with the result follows."""
    table = weight(b, "embedding", (50, 64))
    ids = b.input("ids", (4,), I64)
    body = Gather(0, (Arg(1, I64), Index(1)), F32)
    x = b.generic([table, ids], [None, maps(0)], (4, 64), body)
    return x, table


def test_tied_lookups_read_the_codes():
    b = GraphBuilder()
    x, table = tied(b)
    graph = b.build([x, linear(b, x, table)])
    after = quantised(graph, "int4")
    assert {v.name for v in after.constants} == {"embedding.codes", "embedding.scales"}
    close(graph, after, [RNG.integers(0, 50, 4)], 0.2)


def test_tables_alone_on_request():
    b = GraphBuilder()
    x, _ = tied(b)
    graph = b.build([x])
    assert quantised(graph) is graph
    close(graph, quantised(graph, tables=True), [RNG.integers(0, 50, 4)], 0.02)


def chosen(rows, experts, columns, depth, *, picks=0, dtype=F32):
    """Products with matrices that indices choose out of a stack: one for each row, or the sum over some."""
    b = GraphBuilder()
    w = weight(b, "w", (experts, columns, depth), dtype)
    numbers = b.input("e", (rows, picks) if picks else (rows,), I64)
    if picks:
        x = b.input("x", (rows, picks, depth), F32)
        extents, k = (rows, columns, picks, depth), Index(3)
        reads, at, index = maps(0, 2, 3), maps(0, 2), Arg(1, I64)
    else:
        x = b.input("x", (rows, depth), F32)
        extents, k = (rows, columns, depth), Index(2)
        reads, at, index = maps(0, 2), maps(0), Arg(1, I64)
    element = Gather(2, (index, Index(1), k), dtype)
    body = Apply("mul", (Arg(0, F32), element if dtype is F32 else Cast(element, F32)), F32)
    reduced = 2 if picks else 1
    y = b.generic([x, numbers, w], [reads, at, None], extents, body, reduced=reduced, combiner="add")
    graph = b.build([y])
    inputs = {"e": RNG.integers(0, experts, numbers.type.shape), "x": RNG.standard_normal(x.type.shape)}
    return graph, [inputs[v.name].astype(v.type.dtype.numpy) for v in graph.inputs]


@pytest.mark.parametrize("picks", [0, 2])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    ("how", "limit", "groups"),
    [
        ({"kind": "int8"}, 0.02, 1),
        ({"kind": "int8", "group_size": 32, "symmetric": False}, 0.02, 4),
        ({"kind": "int4"}, 0.2, 4),
        ({"kind": "int4", "symmetric": False}, 0.2, 4),
        ({"kind": "int4", "group_size": 0}, 0.3, 1),
    ],
)
def test_stacks_of_matrices(how, limit, groups, dtype, picks):
    graph, inputs = chosen(3, 5, 24, 128, picks=picks, dtype=dtype)
    after = quantised(graph, **how)
    close(graph, after, inputs, limit)
    shapes = {v.name: v.type.shape for v in after.constants}
    assert shapes.pop("w.codes") == (5, 24, 128)
    assert set(shapes.values()) == {(5, 24, groups)} and "w" not in shapes
    (op,) = (op for op in after.ops if is_contraction(op))
    assert op.extents[-2:] == ((groups, 32) if groups > 1 else (*op.extents[:-1], 128)[-2:])


@pytest.mark.parametrize("picks", [0, 2])
@pytest.mark.parametrize(("kind", "depth", "columns"), [("int8", 96, 20), ("int4", 96, 20), ("int4", 45, 7)])
def test_kernels_read_chosen_matrices(kind, depth, columns, picks):
    graph, inputs = chosen(2, 3, columns, depth, picks=picks)
    after = quantised(graph, kind)
    for wanted, result in zip(interpret(after, inputs), graph_runner.run(after, inputs, "cpu"), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("picks", [0, 2])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    ("how", "limit"), [({"kind": "int8"}, 0.03), ({"kind": "int4", "symmetric": False}, 0.2)]
)
@pytest.mark.parametrize("columns", [24, 32])
def test_what_chosen_matrices_are_multiplied_with_is_rounded(how, limit, columns, dtype, picks):
    graph, inputs = chosen(3, 5, columns, 128, picks=picks, dtype=dtype)
    after = quantised(graph, activations="int8", **how)
    close(graph, after, inputs, limit)
    (op,) = (op for op in after.ops if is_contraction(op))
    assert {v.type.dtype for v in op.inputs} >= {DType.I8} and "x" not in {v.name for v in op.inputs}
    for wanted, result in zip(interpret(after, inputs), graph_runner.run(after, inputs, "cpu"), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


def test_gpus_alone_multiply_chosen_matrices_with_floats():
    graph, _ = chosen(3, 5, 24, 128)
    how = mansard.quantize("int8", min_elements=1, activations="int8")
    after = quantise_weights(graph, how, few_rows=True)
    (op,) = (op for op in after.ops if is_contraction(op))
    assert "x" in {v.name for v in op.inputs}


def test_stacks_that_stay_as_they_are():
    graph, _ = chosen(3, 5, 24, 128)
    how = mansard.quantize
    assert quantise_weights(graph, how("float12", min_elements=1)) is graph
    assert quantise_weights(graph, how("int8", min_elements=1, keep=("w",))) is graph
    assert quantise_weights(graph, how("int8", min_elements=5 * 24 * 128 + 1)) is graph
    b = GraphBuilder()
    w = weight(b, "w", (5, 24, 128))
    doubled = b.generic([w], [maps(0, 1, 2)], (5, 24, 128), Apply("add", (Arg(0, F32), Arg(0, F32)), F32))
    other = b.build([doubled])
    assert quantise_weights(other, how("int8", min_elements=1)) is other


def test_what_stays_as_it_is():
    b = GraphBuilder()
    x = b.input("x", (3, 64), F32)
    w, shown = weight(b, "head.weight", (24, 64)), weight(b, "shown", (24, 64))
    graph = b.build([linear(b, x, w), linear(b, x, shown), shown])
    assert quantised(graph, keep=["head.*"]) is graph
    assert quantise_weights(graph, mansard.quantize("int8")) is graph
    after = quantised(graph)
    assert {v.name for v in after.constants} == {"head.weight.codes", "head.weight.scales", "shown"}


def test_products_of_one_value_are_merged_and_round_it_once():
    b = GraphBuilder()
    x = b.input("x", (3, 64), F32)
    parts = [linear(b, x, weight(b, f"w{i}", (16, 64))) for i in range(2)]
    graph = b.build([b.generic([p], [maps(1, 0)], (16, 3), Arg(0, F32)) for p in parts])
    before = quantised(graph, "int4", activations="int8")
    after = eliminate_dead(fuse_horizontally(before))
    (op,) = (op for op in after.ops if is_contraction(op))
    assert op.output.type.shape == (3, 32)
    inputs = [RNG.standard_normal((3, 64)).astype(np.float32)]
    for wanted, result in zip(interpret(before, inputs), interpret(after, inputs), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-6)


def test_weights_are_loaded_one_at_a_time_and_kept_by_nobody():
    loads = []

    def data():
        loads.append(1)
        return np.ones((24, 64), np.float32)

    b = GraphBuilder()
    w = b.constant("w", Constant("w", data), (24, 64), F32)
    after = quantised(b.build([linear(b, b.input("x", (3, 64), F32), w)]), "int4")
    assert not loads
    arrays = {v.name: load(v, c) for v, c in after.constants.items()}
    assert arrays["w.codes"].shape == (24, 64) and (arrays["w.codes"].astype(int) == -8).all()
    assert len(loads) == 1


def test_weights_that_are_not_finite_are_named():
    b = GraphBuilder()
    w = b.constant("w", Constant.of(np.full((24, 64), np.inf, np.float32), "layer.w"), (24, 64), F32)
    after = quantised(b.build([linear(b, b.input("x", (3, 64), F32), w)]))
    with pytest.raises(CompileError, match=r"layer\.w.*not finite"):
        for value, constant in after.constants.items():
            load(value, constant)


@pytest.mark.parametrize(
    ("kind", "how", "message"),
    [
        ("int3", {}, "'int8', 'int4', 'float12' or 'stored'"),
        ("int4", {"group_size": 6}, "multiple of 4"),
        ("int4", {"group_size": True}, "multiple of 4"),
        ("int4", {"activations": "fp8"}, "'int8' or None"),
        ("int4", {"min_elements": 0}, "at least 1"),
    ],
)
def test_what_can_be_asked_for(kind, how, message):
    with pytest.raises(CompileError, match=message):
        mansard.quantize(kind, **how)
