"""Products whose matrices are chosen by a computed index, as those of experts are."""

from dataclasses import replace

import numpy as np
import pytest
from support.graph_runner import check
from support.graphs import F32
from support.kernels.pairs import pairs

from mansard.codegen.llvm import target as cpu_target
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules import schedule
from mansard.codegen.schedules.common.contraction import analyse
from mansard.codegen.schedules.cpu import gemm_tiles
from mansard.codegen.schedules.gpu.gemv.form import analyse as gemv_form
from mansard.codegen.schedules.gpu.gemv.form import computed_chunk, max_load_elements
from mansard.compiler.targets import resolve_targets
from mansard.dims import Dim, symbol
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap
from mansard.ir.dispatch import is_contraction
from mansard.ir.quantised_weight import GroupFactor, QuantisedWeight, chosen_product
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index, rewrite
from mansard.ir.types import Constant, Linear
from mansard.passes.fusion.fuse import fuse
from mansard.passes.fusion.packable import mark_packable
from mansard.passes.products.quantisation import quantisation
from mansard.passes.products.weight_only import quantise_weights
from mansard.placement import PlacementOptions

COUNT, COLUMNS, DEPTH = 7, 40, 72
RNG = np.random.default_rng(0)
TARGETS = ["cpu", "cpu:x86-64-v3"]


def wide(x):
    return x if x.dtype is F32 else Cast(x, F32)


def numbers(dtype, *shape):
    return (RNG.standard_normal(shape, np.float32) * (20 if dtype is DType.I8 else 1)).astype(dtype.numpy)


def graph(rows, dtype, parts=1, columns=COLUMNS):
    """``groups`` products of (rows, parts * DEPTH) with matrices out of a stack, one for each part."""
    b, groups = GraphBuilder(), 6
    x = b.input("x", (groups, rows, parts, DEPTH), dtype)
    chosen = b.input("chosen", (groups, parts), DType.I64)
    stack = b.input("stack", (COUNT, columns, DEPTH), dtype)
    matrix = Gather(2, (Arg(1, DType.I64), Index(2), Index(4)), dtype)
    body = Apply("mul", (wide(Arg(0, dtype)), wide(matrix)), F32)
    maps = (IndexMap.of_dims((0, 1, 3, 4)), IndexMap.of_dims((0, 3)), None)
    extents = (groups, rows, columns, parts, DEPTH)
    y = b.generic((x, chosen, stack), maps, extents, body, reduced=2, combiner="add")
    inputs = [
        numbers(dtype, groups, rows, parts, DEPTH),
        RNG.integers(-1, COUNT + 1, (groups, parts)),  # indices are clamped
        numbers(dtype, COUNT, columns, DEPTH),
    ]
    return b.build([y]), inputs


@pairs("rows, parts", [(1, 1), (1, 3), (4, 1), (6, 1)], "dtype", [F32, DType.BF16, DType.I8])
def test_matrices_of_a_stack(rows, parts, dtype, device):
    check(*graph(rows, dtype, parts), device)


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
@pytest.mark.parametrize("columns", [42, 200])
@pytest.mark.parametrize("streams", [1, 4])
def test_sums_over_matrices_whose_columns_are_no_whole_tiles(rows, columns, streams, monkeypatch):
    if streams > 1:
        monkeypatch.setattr(cpu_target, "GOLDEN_COVE", frozenset({"x86-64-v3"}))
    check(*graph(rows, F32, 3, columns), "cpu:x86-64-v3")


def constant(b, name, shape, dtype):
    return b.constant(
        name, Constant.of(RNG.standard_normal(shape, np.float32).astype(dtype.numpy), name), shape, dtype
    )


def constant_stack(rows, dtype, columns=48, depth=128, *, groups=6, parts=0, major=False):
    """``groups`` products with matrices out of a constant stack, plus a bias: one for each group, or the sum
    over some ``parts``."""
    b = GraphBuilder()
    outer = (groups, rows)
    x = b.input("x", (*outer, parts, depth) if parts else (*outer, depth), dtype)
    chosen = b.input("chosen", (groups, parts) if parts else (groups,), DType.I64)
    shape = (COUNT, depth, columns) if major else (COUNT, columns, depth)
    stack, bias = constant(b, "stack", shape, dtype), constant(b, "bias", (columns,), F32)
    k = 4 if parts else 3
    matrix = Gather(2, (Arg(1, DType.I64), *((Index(k), Index(2)) if major else (Index(2), Index(k)))), dtype)
    body = Apply("mul", (wide(Arg(0, dtype)), wide(matrix)), F32)
    extents = (*outer, columns, parts, depth) if parts else (*outer, columns, depth)
    maps = [IndexMap.of_dims((0, 1, *range(3, k + 1))), IndexMap.of_dims((0, 3) if parts else (0,)), None]
    y = b.generic((x, chosen, stack), maps, extents, body, reduced=2 if parts else 1, combiner="add")
    added = Apply("add", (Arg(0, F32), Arg(1, F32)), F32)
    z = b.generic((y, bias), (IndexMap.identity(3), IndexMap.of_dims((2,))), (*outer, columns), added)
    count = groups if isinstance(groups, int) else 5
    return b.build([z]), [
        RNG.standard_normal((count, *x.type.shape[1:]), np.float32).astype(dtype.numpy),
        RNG.integers(-1, COUNT + 1, (count, *chosen.type.shape[1:])),
    ]


@pairs("rows", [1, 3, 4, 7, 8, 12, 20, 32, 64], "parts, major", [(0, False), (0, True), (3, False)])
@pytest.mark.parametrize("dtype", [F32, DType.BF16])
@pytest.mark.parametrize("target", TARGETS)
def test_constant_stacks(rows, dtype, parts, major, target):
    check(*constant_stack(rows, dtype, parts=parts, major=major), target)


@pytest.mark.parametrize("major", [False, True])
@pytest.mark.parametrize("rows", [32, 40])
def test_constant_stacks_by_tiles(rows, major, monkeypatch):
    """By tile registers, or the vectors that stand for them where a CPU has none."""
    monkeypatch.setattr(gemm_tiles, "FEATURES", frozenset())
    check(*constant_stack(rows, DType.BF16, major=major), "cpu")


@pytest.mark.parametrize("rows", [1, 8])
def test_any_number_of_products(rows):
    graph, inputs = constant_stack(rows, DType.BF16, groups=symbol(Dim("groups", 1, 40)))
    check(graph, inputs, "cpu")


@pytest.mark.parametrize("rows", [7, 8, 12])
@pytest.mark.parametrize("columns", [36, 80])
def test_rows_longer_than_a_piece_of_the_sums(rows, columns):
    """Tiles of two columns (`gemm_rows`) with sums over several pieces of the reduced dim."""
    check(*constant_stack(rows, DType.BF16, columns=columns, depth=3072), "cpu")


QUANTISED = [
    {"kind": "int8"},
    {"kind": "int4"},
    {"kind": "int4", "symmetric": False},
    {"kind": "int8", "group_size": 64, "symmetric": False},
]


@pytest.mark.parametrize("how", QUANTISED, ids=lambda how: "-".join(map(str, how.values())))
@pairs("rows", [1, 4, 8, 20, 64], "parts, columns", [(0, 48), (0, 40), (3, 48), (3, 37)])
@pytest.mark.parametrize("dtype", [F32, DType.BF16])
@pytest.mark.parametrize("target", TARGETS)
def test_quantised_stacks(rows, parts, columns, dtype, how, target):
    graph, inputs = constant_stack(rows, dtype, columns=columns, parts=parts)
    after = quantise_weights(graph, quantisation(min_elements=1, **how))
    assert "stack.codes" in {v.name for v in after.constants}
    check(after, inputs, target)


@pytest.mark.parametrize("parts", [0, 3])
@pytest.mark.parametrize(("columns", "packed"), [(48, True), (40, False)])
def test_matrices_of_a_quantised_stack_are_packed_one_by_one(columns, packed, parts):
    """In panels that are no larger than the matrices, so that each begins where it did."""
    graph, _ = constant_stack(1, DType.BF16, columns=columns, parts=parts)
    after = quantise_weights(graph, quantisation("int4", min_elements=1))
    (dispatch,) = mark_packable(fuse(after)).dispatches
    (target,) = resolve_targets(["cpu"], PlacementOptions(fallback="error"))
    layouts = schedule(dispatch, target.kernel, "kernel").packed
    stacks = {v.name: panels.matrices for i, v in enumerate(dispatch.inputs) if (panels := layouts.get(i))}
    assert stacks == ({"stack.codes": COUNT, "stack.scales": COUNT} if packed else {})


def test_matrices_chosen_by_two_loops_and_a_stack_that_is_read_twice():
    b = GraphBuilder()
    x = b.input("x", (3, 2, 64), F32)
    chosen = b.input("chosen", (3, 2), DType.I64)
    stack = constant(b, "stack", (COUNT, 32, 64), F32)
    one = Gather(2, (Arg(1, DType.I64), Index(2), Index(3)), F32)
    first = Gather(2, (Const(0, DType.I64), Index(2), Index(3)), F32)
    maps = (IndexMap.of_dims((0, 1, 3)), IndexMap.of_dims((0, 1)), None)
    results = [
        b.generic(
            (x, chosen, stack), maps, (3, 2, 32, 64),
            Apply("mul", (Arg(0, F32), matrix), F32), reduced=1, combiner="add",
        )
        for matrix in (one, Apply("add", (one, first), F32))
    ]  # fmt: skip
    inputs = [RNG.standard_normal((3, 2, 64), np.float32), RNG.integers(0, COUNT, (3, 2))]
    check(b.build(results), inputs, "cpu")


def with_reduced_order(op, order):
    """A sum whose reduced dims run in another order."""
    rank = op.rank
    places = [*range(rank), *(rank + order.index(d) for d in range(len(order)))]
    return replace(
        op,
        extents=(*op.extents[:rank], *(op.extents[rank + d] for d in order)),
        maps=tuple(m.compose([Linear.dim(d) for d in places]) if m is not None else None for m in op.maps),
        body=rewrite(op.body, lambda n: Index(places[n.dim]) if isinstance(n, Index) else n),
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
@pytest.mark.parametrize("target", TARGETS)
def test_loops_that_choose_within_a_sum(order, target):
    graph, inputs = constant_stack(1, DType.BF16, parts=3)
    after = quantise_weights(graph, quantisation("int8", group_size=32, min_elements=1))
    ops = [with_reduced_order(op, order) if is_contraction(op) else op for op in after.ops]
    check(after.with_ops(ops), inputs, target)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("columns", [40, 48])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("target", TARGETS)
def test_quantised_sums_that_a_condition_makes_zero(rows, columns, kind, target):
    """As `ExpertParts` has them, with a bias: what is computed from a sum that is zero is stored."""
    b = GraphBuilder()
    x, places = b.input("x", (rows, 128), DType.BF16), b.input("places", (rows, 4), DType.I64)
    dtype = DType.I8 if kind == "int8" else DType.I4
    codes = RNG.integers(-8, 8, (COUNT, columns, 128)).astype(dtype.numpy)
    weight = QuantisedWeight(
        b.constant("codes", Constant.of(codes, "codes"), codes.shape, dtype),
        (GroupFactor(constant(b, "scales", (COUNT, columns, 4), DType.F16), 32),),
    )
    number, zero = Arg(1, DType.I64), Const(0, DType.I64)
    read = (x, IndexMap.of_dims((0, 3))), (places, IndexMap.of_dims((0, 1)))
    row, out = (Apply("max", (number, zero), DType.I64), Index(2)), b.value("y", (rows, 4, columns), F32)
    op = chosen_product(weight, read, Cast(Arg(0, DType.BF16), F32), (rows, 4, columns), (), row, out)
    here = Apply("ge", (number, zero), DType.BOOL)
    y = b.append(replace(op, body=Apply("select", (here, op.body, Const(0.0, F32)), F32)))
    bias = constant(b, "bias", (columns,), F32)
    added = Apply("add", (Arg(0, F32), Arg(1, F32)), F32)
    z = b.generic((y, bias), (IndexMap.identity(3), IndexMap.of_dims((2,))), (rows, 4, columns), added)
    numbers = np.array([[1, -1, COUNT - 1, -1], [-1, -1, -1, -1], [2, 2, -1, 1]])[:rows]
    check(
        b.build([z]), [RNG.standard_normal((rows, 128), np.float32).astype(DType.BF16.numpy), numbers], target
    )


@pytest.mark.parametrize("rows", [1, 8])
def test_rows_of_a_chosen_matrix_are_read_as_vectors(rows):
    (dispatch,) = fuse(graph(rows, F32)[0]).dispatches
    nest = Nest(dispatch)
    (root,) = nest.roots
    shape = analyse(nest, root)
    assert shape.form == "dot" and nest.total(shape.column) == COLUMNS
    assert rows == 1 or nest.total(shape.row) == rows


def test_gpus_read_chosen_matrices_as_products_of_one_row_do():
    (dispatch,) = fuse(graph(1, F32)[0]).dispatches
    form = gemv_form(Nest(dispatch))
    assert form is not None and form.along and form.large.value.name == "stack"


@pytest.mark.parametrize(("dtype", "elements"), [(F32, 4), (DType.BF16, 8), (DType.I8, 8), (DType.I4, 8)])
def test_gpus_read_chosen_matrices_in_wide_loads(dtype, elements):
    """As many elements as a load of 16 bytes has and divide the rows of the matrices."""
    (dispatch,) = fuse(graph(1, dtype)[0]).dispatches
    nest = Nest(dispatch)
    form = gemv_form(nest)
    assert computed_chunk(nest, form.large, form.inner, max_load_elements(dtype)) == elements
    assert computed_chunk(nest, form.large, form.column, max_load_elements(dtype)) == 1


@pytest.mark.parametrize("dtype", [F32, DType.BF16])
@pytest.mark.parametrize(("rows", "major"), [(1, False), (1, True), (3, False)])
def test_sums_that_a_condition_makes_zero(rows, major, dtype, device):
    """As the products of experts of another part: their place is -1."""
    b, chosen = GraphBuilder(), 4
    x = b.input("x", (rows, DEPTH), dtype)
    places = b.input("places", (rows, chosen), DType.I64)
    shape = (COUNT, DEPTH, COLUMNS) if major else (COUNT, COLUMNS, DEPTH)
    stack = b.input("stack", shape, dtype)
    place, zero = Arg(1, DType.I64), Const(0, DType.I64)
    inner = (Index(3), Index(2)) if major else (Index(2), Index(3))
    matrix = Gather(2, (Apply("max", (place, zero), DType.I64), *inner), dtype)
    product = Apply("mul", (wide(Arg(0, dtype)), wide(matrix)), F32)
    here = Apply("ge", (place, zero), DType.BOOL)
    body = Apply("select", (here, product, Const(0.0, F32)), F32)
    maps = (IndexMap.of_dims((0, 3)), IndexMap.of_dims((0, 1)), None)
    y = b.generic((x, places, stack), maps, (rows, chosen, COLUMNS, DEPTH), body, reduced=1, combiner="add")
    stacked = RNG.standard_normal(shape, np.float32).astype(dtype.numpy)
    stacked[0] = np.inf  # what a place of -1 would read
    inputs = [
        RNG.standard_normal((rows, DEPTH), np.float32).astype(dtype.numpy),
        np.array([[1, -1, COUNT - 1, -1], [-1, -1, -1, -1], [2, 2, -1, 1]])[:rows],
        stacked,
    ]
    check(b.build([y]), inputs, device)
