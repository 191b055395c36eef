"""Products of bf16 by tile registers: the instruction, and the schedules that use it, on CPUs with AMX and by
vectors on others."""

import numpy as np
import pytest
from support.graph_runner import compare, compiled, outputs
from support.graphs import F32, maps
from support.kernels.runner import Machine, require_cpu

from mansard import dims
from mansard.codegen.kernel import KernelBuilder
from mansard.codegen.kernel.tile_products import SIDE, tile_products
from mansard.codegen.kernel.verify import verify
from mansard.codegen.llvm import target as cpu_target
from mansard.codegen.llvm.module import assembly, emit
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules import schedule
from mansard.codegen.schedules.cpu import gemm_tiles
from mansard.compiler import CompileOptions
from mansard.compiler.compile import lower_graph
from mansard.dims import Dim
from mansard.dtypes import DType, from_numpy
from mansard.errors import CodegenError
from mansard.ir import Constant, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast, Const

BF16 = DType.BF16
RNG = np.random.default_rng(16)
AMX = "cpu:sapphirerapids"
TARGETS = [AMX, "cpu"]


@pytest.fixture
def everywhere(monkeypatch, tmp_path):
    """Schedules with tiles for every CPU: those without the registers compute them by vectors."""
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gemm_tiles, "FEATURES", frozenset())
    monkeypatch.setattr(gemm_tiles, "BYTES_FEATURES", frozenset())


def numbers(dtype, shape):
    return RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)


def kernel(rows, columns, depth, stride, first, added=False, dtypes=(BF16, BF16)):
    """The products of tiles of two buffers, copied to a third one, or added to what it holds."""
    summed = F32 if BF16 in dtypes else DType.I32
    b = KernelBuilder("tiles", [(dtypes[0], False), (dtypes[1], False), (summed, True)], 0)
    size = rows * columns * SIDE * SIDE
    sums = b.shared(summed, 3 + size)
    x, place = (b.bindings[0], b.idx(first), b.idx(stride)), b.idx(3)
    with b.for_(b.idx(0), b.idx(size), b.idx(SIDE)) as loop:
        b.store(sums, b.add(place, loop.index), b.load(b.bindings[2], loop.index, SIDE))
    weights = b.bindings[1], b.idx(2 * first)
    tile_products(b, x, weights, (sums, place), (rows, columns), depth, added=added)
    with b.for_(b.idx(0), b.idx(size), b.idx(SIDE)) as loop:
        b.store(b.bindings[2], loop.index, b.load(sums, b.add(place, loop.index), SIDE))
    built = b.build()
    verify(built)
    return built


@pytest.mark.parametrize("target", [*TARGETS, "cpu:x86-64-v3"])
@pytest.mark.parametrize("rows, columns", [(1, 1), (1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("depth", [32, 80, 320])
def test_products_of_tiles(target, rows, columns, depth, added):
    require_cpu(target)
    first = 6
    stride = depth + 10
    x = RNG.standard_normal(first + rows * SIDE * stride).astype(BF16.numpy)
    panels = RNG.standard_normal((columns, depth // 2, SIDE, 2)).astype(BF16.numpy)
    before = RNG.standard_normal((rows * SIDE, columns * SIDE)).astype(np.float32)
    sums = before.copy()
    weights = np.concatenate([np.ones(2 * first, BF16.numpy), panels.reshape(-1)])
    built = kernel(rows, columns, depth, stride, first, added)
    Machine(target).run(built, [x, weights, sums.reshape(-1)], grid=(1, 1, 1))
    left = x[first:].reshape(rows * SIDE, stride)[:, :depth].astype(np.float32)
    right = panels.transpose(0, 2, 1, 3).reshape(columns * SIDE, depth).astype(np.float32)
    np.testing.assert_allclose(sums, left @ right.T + before * added, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("target", [*TARGETS, "cpu:x86-64-v3"])
@pytest.mark.parametrize(
    "of_x, of_weights", [("int8", "int8"), ("int8", "uint8"), ("uint8", "int8"), ("uint8", "uint8")]
)
@pytest.mark.parametrize(
    "rows, columns, depth, added", [(2, 2, 32, False), (1, 2, 192, True), (2, 1, 96, True)]
)
def test_products_of_tiles_of_bytes(target, rows, columns, depth, added, of_x, of_weights):
    require_cpu(target)
    first, stride = 4, depth + 6

    x, panels = (
        numbers(of_x, first + rows * SIDE * stride),
        numbers(of_weights, (columns, depth // 4, SIDE, 4)),
    )
    before = numbers("int16", (rows * SIDE, columns * SIDE)).astype(np.int32)
    sums, weights = before.copy(), np.concatenate([numbers(of_weights, 2 * first), panels.reshape(-1)])
    dtypes = [from_numpy(array.dtype) for array in (x, weights)]
    built = kernel(rows, columns, depth, stride, first, added, dtypes)
    Machine(target).run(built, [x, weights, sums.reshape(-1)], grid=(1, 1, 1))
    left = x[first:].reshape(rows * SIDE, stride)[:, :depth].astype(np.int32)
    right = panels.transpose(0, 2, 1, 3).reshape(columns * SIDE, depth).astype(np.int32)
    np.testing.assert_array_equal(sums, left @ right.T + before * added)


def test_code_for_tile_registers_needs_nothing_else():
    text = assembly(emit([kernel(2, 2, 96, 96, 0)], cpu_target.parse(AMX)), cpu_target.parse(AMX))
    assert text.count("tdpbf16ps") >= 4 and "ldtilecfg" in text and "tilerelease" in text
    assert "call" not in text
    other = cpu_target.parse(f"{AMX},-amx-bf16")
    assert "tdpbf16ps" not in assembly(emit([kernel(2, 2, 96, 96, 0)], other), other)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"rows": 3}, "1 to 2 tiles"),
        ({"depth": 0}, "multiple of 32 bytes"),
        ({"depth": 24}, "multiple of 32 bytes"),
        ({"columns": 2}, "512 f32"),
        ({"weights": "sums"}, "memories of bf16, or of bytes"),
    ],
)
def test_broken_rules(change, message):
    b = KernelBuilder("tiles", [(BF16, False), (BF16, False)], 0)
    sums = b.shared(F32, SIDE * SIDE)
    attrs = {
        "x": b.bindings[0],
        "weights": b.bindings[1],
        "sums": sums,
        "rows": 1,
        "columns": 1,
        "depth": 32,
        "added": False,
    }
    attrs |= {name: sums if value == "sums" else value for name, value in change.items()}
    b.inst("tile_products", (b.idx(0), b.idx(32), b.idx(0), b.idx(0)), None, **attrs)
    with pytest.raises(CodegenError, match=message):
        verify(b.build())


def product(rows, columns, depth, *, constant, residual=True):
    """``x @ w.T`` and something added to it. Weights are a constant, which is packed, or an input in rows."""
    b = GraphBuilder("product")
    x = b.input("x", (rows, depth), BF16)
    if constant:
        data = RNG.standard_normal((columns, depth)).astype(BF16.numpy)
        w = b.constant("w", Constant.of(data, "w"), data.shape, BF16)
    else:
        w = b.input("w", (columns, depth), BF16)
    body = Apply("mul", (Cast(Arg(0, BF16), F32), Cast(Arg(1, BF16), F32)), F32)
    y = b.generic([x, w], [maps(0, 2), maps(1, 2)], (rows, columns, depth), body, reduced=1, combiner="add")
    if residual:
        other = b.input("other", (rows, columns), F32)
        total = Apply("add", (Arg(0, F32), Arg(1, F32)), F32)
        y = b.generic([y, other], [maps(0, 1), maps(0, 1)], (rows, columns), total)
    return b.build([y])


def inputs_of(graph, rows):
    shapes = [[d if isinstance(d, int) else rows for d in v.type.shape] for v in graph.inputs]
    return [
        RNG.standard_normal(shape).astype(v.type.dtype.numpy)
        for shape, v in zip(shapes, graph.inputs, strict=True)
    ]


def product_of_bytes(rows, columns, depth, of_x, of_weights):
    """``scale * (x @ w.T)`` with constant weights."""
    b = GraphBuilder("product")
    x = b.input("x", (rows, depth), of_x)
    data = numbers(of_weights.numpy, (columns, depth))
    w = b.constant("w", Constant.of(data, "w"), data.shape, of_weights)
    i32 = DType.I32
    body = Apply("mul", (Cast(Arg(0, of_x), i32), Cast(Arg(1, of_weights), i32)), i32)
    y = b.generic([x, w], [maps(0, 2), maps(1, 2)], (rows, columns, depth), body, reduced=1, combiner="add")
    scaled = Apply("mul", (Cast(Arg(0, i32), F32), Const(0.5, F32)), F32)
    return b.build([b.generic([y], [maps(0, 1)], (rows, columns), scaled)])


def uses_tiles(graph, target):
    (dispatch,) = lower_graph(graph, CompileOptions(targets=(target,), cache=False)).dispatches
    kernel_ = schedule(dispatch, cpu_target.parse(target).kernel_target(), "k").kernel
    return kernel_.body.uses({"tile_products"})


SHAPES = [
    (32, 64, 64),
    (100, 48, 96),  # the last rows are computed twice
    (33, 1000, 128),  # a column tile of one panel, which is not full
    (64, 24, 1024),
    (300, 528, 3360),  # rows of weights: packed in five parts, ten row tiles in blocks of eight
]


@pytest.mark.parametrize(
    "rows, columns, depth, constant",
    [*((*shape, constant) for shape in SHAPES for constant in (True, False)), (17, 80, 128, True)],
)
def test_cpus_with_tile_registers_use_them(rows, columns, depth, constant):
    graph = product(rows, columns, depth, constant=constant)
    assert uses_tiles(graph, AMX)
    assert not uses_tiles(graph, f"{AMX},-amx-tile")
    require_cpu(AMX)
    inputs = inputs_of(graph, rows)
    with compiled(graph, AMX) as model:
        compare(outputs(model, inputs), interpret(graph, inputs), 1e-5, 1e-4)


SIGNS = [(DType.I8, DType.I8), (DType.U8, DType.I8), (DType.I8, DType.U8), (DType.U8, DType.U8)]


@pytest.mark.parametrize("of_x, of_weights", SIGNS)
@pytest.mark.parametrize("rows, columns, depth", [(100, 48, 96), (33, 1000, 128), (16, 24, 1024)])
def test_bytes(rows, columns, depth, of_x, of_weights):
    graph = product_of_bytes(rows, columns, depth, of_x, of_weights)
    assert uses_tiles(graph, AMX)
    assert not uses_tiles(graph, f"{AMX},-amx-int8")
    require_cpu(AMX)
    inputs = [numbers(of_x.numpy, (rows, depth))]
    with compiled(graph, AMX) as model:
        compare(outputs(model, inputs), interpret(graph, inputs), 0, 0)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("target", [f"{AMX},-amx-tile", "cpu:x86-64-v3"])
@pytest.mark.parametrize("of_x, of_weights", SIGNS)
def test_bytes_by_vectors(target, of_x, of_weights):
    rows = dims.symbol(Dim("rows", 1, 300, typical=100))
    graph = product_of_bytes(rows, 80, 160, of_x, of_weights)
    assert uses_tiles(graph, target)
    require_cpu(target)
    with compiled(graph, target) as model:
        for count in (1, 5, 15, 31, 32, 100):
            inputs = [numbers(of_x.numpy, (count, 160))]
            compare(outputs(model, inputs), interpret(graph, inputs), 0, 0)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("target", [f"{AMX},-amx-tile", "cpu:x86-64-v3"])
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("rows, columns, depth", SHAPES)
def test_the_same_by_vectors(target, constant, rows, columns, depth):
    graph = product(rows, columns, depth, constant=constant)
    # Rows are packed in pairs only where the CPU multiplies these.
    assert uses_tiles(graph, target) == (constant or "avx512bf16" in cpu_target.parse(target).features)
    require_cpu(target)
    inputs = inputs_of(graph, rows)
    with compiled(graph, target) as model:
        compare(outputs(model, inputs), interpret(graph, inputs), 1e-5, 1e-4)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("least", [1, 7, 16, 32])
@pytest.mark.parametrize("constant, depth", [(True, 256), (False, 256), (False, 2080)])
def test_any_number_of_rows(least, constant, depth):
    rows = dims.symbol(Dim("rows", least, 300))
    graph = product(rows, 80, depth, constant=constant)
    with compiled(graph, "cpu") as model:
        for count in (1, 3, 6, 7, 15, 16, 31, 32, 47, 300):
            if count >= least:
                inputs = inputs_of(graph, count)
                compare(outputs(model, inputs), interpret(graph, inputs), 1e-5, 1e-4)


def test_factors_that_do_not_lie_so_are_multiplied_otherwise():
    for rows, depth in ((15, 64), (64, 72)):
        assert not uses_tiles(product(rows, 64, depth, constant=True), AMX)


def test_a_nest_has_rows_for_tiles():
    """Of a matrix that is read in the other order, depths are not contiguous."""
    b = GraphBuilder("turned")
    x, w = b.input("x", (64, 64), BF16), b.input("w", (64, 64), BF16)
    body = Apply("mul", (Cast(Arg(0, BF16), F32), Cast(Arg(1, BF16), F32)), F32)
    y = b.generic([x, w], [maps(2, 0), maps(1, 2)], (64, 64, 64), body, reduced=1, combiner="add")
    (dispatch,) = lower_graph(b.build([y]), CompileOptions(targets=(AMX,), cache=False)).dispatches
    nest = Nest(dispatch)
    (root,) = nest.roots
    row, inner, weights = [0], list(root.inner), dispatch.inputs[1]
    assert not gemm_tiles.takes(nest, row, inner, weights, cpu_target.parse(AMX).kernel_target())
