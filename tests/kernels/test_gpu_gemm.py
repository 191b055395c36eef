"""Matrix products through shared memory on GPUs, against the reference interpreter."""

import dataclasses

import numpy as np
import pytest
from support.graph_runner import check, compare, compiled, outputs
from support.graphs import A0, A1, F32, binary, maps, matmul, op
from support.kernels.pairs import pairs

from mansard import dims
from mansard.codegen.kernel import KernelBuilder
from mansard.codegen.kernel.verify import verify
from mansard.codegen.loop_nest import Nest
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.gpu.gemm import tiled
from mansard.codegen.schedules.gpu.gemm.product import analyse
from mansard.codegen.schedules.gpu.gemm.tiles import GemmTile, tiles
from mansard.dims import Dim
from mansard.drivers.cpu.compiler import BACKEND as CPU
from mansard.drivers.vulkan.compiler import BACKEND
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.ir import GraphBuilder, IndexMap, Linear
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast, Const
from mansard.passes.fusion.fuse import fuse

RNG = np.random.default_rng(23)
BASELINE, AT_HAND = "vulkan:1.3", "vulkan"


@pytest.fixture
def device():
    """The device at hand, by its target text."""
    from mansard.hal import registry

    if not any(i.driver == "vulkan" and i.supported for i in registry.devices()):
        pytest.skip("no Vulkan 1.3 device")
    return AT_HAND


def random(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def nest_of(graph):
    (dispatch,) = fuse(graph).dispatches
    return Nest(dispatch)


def linear(m, n, k, transposed=False):
    """x times w, plus a bias, rectified."""
    b = GraphBuilder()
    x, bias = b.input("x", (m, k), F32), b.input("b", (n,), F32)
    w = b.input("w", (n, k) if transposed else (k, n), F32)
    y = binary(b, "add", matmul(b, x, w, transposed=transposed), bias)
    y = b.generic([y], [maps(0, 1)], (m, n), op("max", A0, Const(0.0, F32)))
    return b.build([y]), [random(m, k), random(n), random(*w.type.shape)]


@pytest.mark.vulkan
@pytest.mark.parametrize("target", [BASELINE, AT_HAND])
@pairs(
    *("shape", [(64, 64, 64), (130, 50, 17), (33, 101, 40), (5, 7, 9), (49, 36, 200)]),
    *("transposed", [False, True]),
)
def test_matmul_with_epilogue(device, shape, transposed, target):
    graph, inputs = linear(*shape, transposed)
    assert tiled.applies(nest_of(graph), BACKEND.parse_target(BASELINE))
    check(graph, inputs, target)


@pytest.mark.vulkan
@pairs(
    *("depth, split", [(8, 1), (16, 2), (8, 4)]),
    *("sizes", [(64, 64, 8, 8), (32, 64, 4, 8), (64, 32, 8, 4), (16, 32, 4, 4)]),
)
def test_every_kind_of_tile(device, monkeypatch, sizes, depth, split):
    tile = GemmTile(*sizes[:2], depth, *sizes[2:], split)
    monkeypatch.setattr(tiled, "tiles", lambda nest, product, target: [tile])
    for shape in ((70, 52, 150), (64, 64, 128)):
        graph, inputs = linear(*shape)
        check(graph, inputs, device)


@pytest.mark.vulkan
def test_symbolic_extents(device):
    s, t = dims.symbol(Dim("s", 4, 150)), dims.symbol(Dim("t", 1, 100))
    b = GraphBuilder()
    x, w, v = b.input("x", (s, t), F32), b.input("w", (t, 40), F32), b.input("v", (40, s), F32)
    graph = b.build([matmul(b, x, w), matmul(b, v, x)])
    with compiled(graph, device) as model:
        for size, depth in ((4, 1), (31, 33), (64, 64), (150, 100)):
            inputs = [random(size, depth), random(depth, 40), random(40, size)]
            compare(outputs(model, inputs), interpret(graph, inputs))


@pytest.mark.vulkan
def test_more_tiles_than_a_grid_may_have(device):
    graph, inputs = linear(150, 140, 30)
    check(graph, inputs, f"{BASELINE}+grid=5")


@pytest.mark.vulkan
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False)])
def test_batched_products_with_grouped_operands(device, turned):
    """(batch, head) x rows x depth by (batch, head // 2) …: attention's products with grouped heads."""
    b = GraphBuilder()
    x = b.input("x", (2, 4, 12, 33) if not turned[0] else (2, 4, 33, 12), F32)
    y = b.input("y", (2, 2, 33, 20) if not turned[1] else (2, 2, 20, 33), F32)
    # dims: batch, group, member, row, column, depth
    head = Linear(((1, 2), (2, 1)))
    left = [Linear.dim(0), head, *map(Linear.dim, (5, 3) if turned[0] else (3, 5))]
    right = [Linear.dim(0), Linear.dim(1), *map(Linear.dim, (4, 5) if turned[1] else (5, 4))]
    z = b.generic(
        [x, y], [IndexMap(tuple(left)), IndexMap(tuple(right))], (2, 2, 2, 12, 20, 33), op("mul", A0, A1),
        reduced=1, combiner="add",
    )  # fmt: skip
    check(b.build([z]), [random(*x.type.shape), random(*y.type.shape)], device)


def convolution(channels, filters, size, window, stride, dilation, groups, last):
    """A padded convolution in groups, channels last or before the image, with a bias."""
    padding = dilation * (window - 1) // 2
    out = (size + 2 * padding - dilation * (window - 1) - 1) // stride + 1
    b = GraphBuilder()
    inner, outer = channels // groups, filters // groups
    shape = (2, size, size, groups, inner) if last else (2, groups, inner, size, size)
    x = b.input("x", shape, F32)
    weights = (groups, window, window, inner, outer) if last else (groups, outer, inner, window, window)
    w, bias = b.input("w", weights, F32), b.input("b", (groups, outer), F32)
    # Dims: image, then row, column, group, filter in the order of the result, then the reduced ones.
    row, column, group, filter_ = (1, 2, 3, 4) if last else (3, 4, 1, 2)
    ky, kx, c = (5, 6, 7) if last else (6, 7, 5)
    at = [Linear(((o, stride), (k, dilation)), -padding) for o, k in ((row, ky), (column, kx))]
    fill = 0.0 if padding else None
    if last:
        reads = IndexMap((Linear.dim(0), *at, Linear.dim(group), Linear.dim(c)), fill)
        kernel = maps(group, ky, kx, c, filter_)
        extents = (2, out, out, groups, outer, window, window, inner)
    else:
        reads = IndexMap((Linear.dim(0), Linear.dim(group), Linear.dim(c), *at), fill)
        kernel = maps(group, filter_, c, ky, kx)
        extents = (2, groups, outer, out, out, inner, window, window)
    y = b.generic([x, w], [reads, kernel], extents, op("mul", A0, A1), reduced=3, combiner="add")
    y = b.generic([y, bias], [IndexMap.identity(5), maps(group, filter_)], extents[:5], op("add", A0, A1))
    return b.build([y]), [random(*v.type.shape) for v in (x, w, bias)]


@pytest.mark.vulkan
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(
    "case",
    [(8, 12, 9, 3, 1, 1, 1), (3, 8, 16, 7, 2, 1, 1), (16, 8, 10, 3, 1, 2, 2), (24, 16, 8, 1, 1, 1, 1),
     (8, 16, 9, 1, 2, 1, 1)],
)  # fmt: skip
def test_convolution(device, case, last):
    graph, inputs = convolution(*case, last)
    assert analyse(nest_of(graph)) is not None
    check(graph, inputs, device)


@pytest.mark.vulkan
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_narrow_operands_and_results(device, dtype):
    b = GraphBuilder()
    x, w = b.input("x", (36, 40), dtype), b.input("w", (40, 24), dtype)
    product = Apply("mul", (Cast(Arg(0, dtype), F32), Cast(Arg(1, dtype), F32)), F32)
    y = b.generic([x, w], [maps(0, 2), maps(2, 1)], (36, 24, 40), product, reduced=1, combiner="add")
    z = b.generic([y], [maps(0, 1)], (36, 24), Cast(A0, dtype))
    check(
        b.build([z]),
        [random(36, 40, dtype=dtype.numpy), random(40, 24, dtype=dtype.numpy)],
        device,
        rtol=1e-2,
    )


@pytest.mark.vulkan
def test_integers(device):
    b = GraphBuilder()
    x, w = b.input("x", (20, 50), DType.I32), b.input("w", (50, 24), DType.I32)
    product = Apply("mul", (Arg(0, DType.I32), Arg(1, DType.I32)), DType.I32)
    y = b.generic([x, w], [maps(0, 2), maps(2, 1)], (20, 24, 50), product, reduced=1, combiner="add")
    data = [RNG.integers(-(2**20), 2**20, s).astype(np.int32) for s in ((20, 50), (50, 24))]
    check(b.build([y]), data, device)


@pytest.mark.vulkan
def test_factors_computed_while_they_are_staged(device):
    """A map in front of a product, and padding that is not read though what it surrounds is not finite."""
    b = GraphBuilder()
    x, s, w = b.input("x", (20, 30), F32), b.input("s", (20,), F32), b.input("w", (30, 16), F32)
    body = Apply("mul", (Apply("mul", (Apply("exp", (A0,), F32), A1), F32), Arg(2, F32)), F32)
    y = b.generic([x, s, w], [maps(0, 2), maps(0), maps(2, 1)], (20, 16, 30), body, reduced=1, combiner="add")
    graph = b.build([y])
    assert analyse(nest_of(graph)) is not None
    check(graph, [random(20, 30), random(20), random(30, 16)], device)


@pytest.mark.vulkan
def test_infinities_stay_in_their_rows(device):
    """What is read beyond an edge is not multiplied: infinity times zero would be NaN."""
    graph, inputs = linear(20, 24, 37)
    inputs[0][3, 36] = np.inf
    inputs[2][36, 5] = np.inf
    check(graph, inputs, device)


def test_tiles_respect_the_target():
    graph, _ = linear(512, 512, 512)
    nest = nest_of(graph)
    product = analyse(nest)
    for text in (BASELINE, "vulkan:1.3+workgroup=256+shared=49152", "vulkan:1.3+workgroup=64"):
        target = BACKEND.parse_target(text)
        candidates = tiles(nest, product, target)
        assert candidates
        for tile in candidates:
            assert tile.invocations <= target.workgroup_invocations
            assert tile.shared_vectors(product) * 16 <= target.shared_memory_bytes
        offered = tiled.candidates(nest, target)
        assert offered[0] == candidates[0].parameters() and GemmTile.of(offered[0]) == candidates[0]
        for parameters in offered[:3]:
            kernel = tiled.schedule(nest, target, "k", parameters).kernel
            assert BACKEND.compile_kernel(kernel, target).format == "spirv"


def test_no_product_of_matrices_is_refused():
    b = GraphBuilder()
    x, y = b.input("x", (8, 9), F32), b.input("y", (8, 9), F32)
    z = b.generic([x, y], [maps(0, 1), maps(0, 1)], (8, 9), op("mul", A0, A1), reduced=1, combiner="add")
    nest = nest_of(b.build([z]))
    target = BACKEND.parse_target(BASELINE)
    assert not tiled.applies(nest, target)
    with pytest.raises(CodegenError, match="not a product of two matrices"):
        tiled.schedule(nest, target, "k")


@pytest.mark.parametrize(
    "wrong", [{"rows": 48}, {"thread_rows": 2}, {"thread_columns": 128}, {"depth": 2}, {"split": 0}]
)
def test_tiles_that_cannot_be_divided_are_refused(wrong):
    sizes = {
        "rows": 64,
        "columns": 64,
        "depth": 8,
        "thread_rows": 8,
        "thread_columns": 4,
        "split": 1,
        **wrong,
    }
    with pytest.raises(CodegenError, match="powers of two"):
        GemmTile.of(Parameters.from_mapping(sizes))


def test_memories_of_vectors_are_accessed_in_whole_vectors():
    for wrong in ("half", "lane of scalars"):
        b = KernelBuilder("k", [], 0, workgroup=(4, 1, 1), index=DType.I32)
        memory = b.shared(F32, 4, 4 if wrong == "half" else 1)
        if wrong == "half":
            b.store(memory, b.local_id(0), b.const(0.0, F32, 2))
        else:
            b.store_lane(memory, b.local_id(0), b.idx(0), b.const(0.0, F32))
        with pytest.raises(CodegenError, match="vectors"):
            verify(b.build())


def test_memories_of_vectors_are_for_gpus():
    b = KernelBuilder("k", [(F32, True)], 0)
    memory = b.shared(F32, 4, 4)
    b.store(memory, b.idx(0), b.const(1.0, F32, 4))
    b.store(b.bindings[0], b.idx(0), b.load(memory, b.idx(0)))
    with pytest.raises(CodegenError, match="for GPUs"):
        CPU.compile_kernel(b.build(), CPU.parse_target("cpu"))


def test_short_of_results_the_depth_is_split():
    target = dataclasses.replace(
        BACKEND.parse_target("vulkan:1.3+workgroup=256+shared=49152"), compute_units=132
    )
    few, _ = linear(128, 384, 1536)
    many, _ = linear(4096, 4096, 256)
    nests = [nest_of(graph) for graph in (few, many)]
    small, large = (tiles(nest, analyse(nest), target)[0] for nest in nests)
    assert small.split > 1 and small.rows * small.columns <= 32 * 64
    assert large.split == 1 and large.rows * large.columns >= 64 * 128
