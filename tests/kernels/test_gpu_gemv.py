"""Products that read one large operand once, on a GPU, against the reference interpreter."""

import dataclasses

import numpy as np
import pytest
from support.graph_runner import check, compare, compiled, outputs
from support.graphs import A0, F32, binary, maps, op
from support.kernels.pairs import pairs
from support.kernels.runner import VULKAN_TARGET, Machine

from mansard import dims
from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.common import base
from mansard.codegen.schedules.gpu import choose
from mansard.codegen.schedules.gpu.gemv import gemv
from mansard.compiler import CompileOptions, compile_graph
from mansard.compiler.targets import backend, resolve_targets
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.errors import CompileError
from mansard.ir import Constant, GraphBuilder, IndexMap, Linear
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index
from mansard.passes.fusion.fuse import fuse
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps
from mansard.placement import PlacementOptions

pytestmark = pytest.mark.variants(2)

RNG = np.random.default_rng(11)
BF16, F16, I8, U8, I32 = DType.BF16, DType.F16, DType.I8, DType.U8, DType.I32


@pytest.fixture
def device():
    from mansard.hal import registry

    if not any(i.driver == "vulkan" and i.supported for i in registry.devices()):
        pytest.skip("no Vulkan 1.3 device")
    return "vulkan"


def random(shape, dtype=F32):
    if dtype.is_int:
        return RNG.integers(0 if dtype is U8 else -100, 100, shape).astype(dtype.numpy)
    return RNG.standard_normal(shape).astype(dtype.numpy)


def product(rows, n, k, weights, vector=F32, *, transposed=True, constant=False, bias=False):
    """x (rows, k) times w (n, k) or, not transposed, (k, n), in f32 (i32 for integers)."""
    b = GraphBuilder()
    total = I32 if weights.is_int and vector.is_int else F32
    x = b.input("x", (rows, k), vector)
    shape = (n, k) if transposed else (k, n)
    data = random(shape, weights)
    w = b.constant("w", Constant.of(data, "w"), shape, weights) if constant else b.input("w", shape, weights)

    def wide(index, dtype):
        return Arg(index, dtype) if dtype is total else Cast(Arg(index, dtype), total)

    body = Apply("mul", (wide(0, vector), wide(1, weights)), total)
    reads = [maps(0, 2), maps(1, 2) if transposed else maps(2, 1)]
    y = b.generic([x, w], reads, (rows, n, k), body, reduced=1, combiner="add")
    arrays = [random((rows, k), vector)] + ([] if constant else [data])
    if bias:
        y = binary(b, "add", y, b.input("b", (n,), F32))
        y = b.generic([y], [maps(0, 1)], (rows, n), op("max", A0, Const(0.0, F32)))
        arrays.append(random((n,)))
    return b.build([y]), arrays


def nest_of(graph):
    (dispatch,) = fuse(run_passes(graph, canonical_steps())).dispatches
    return Nest(dispatch)


def target(text="vulkan"):
    return resolve_targets([text], PlacementOptions(fallback="error"))[0].kernel


def test_what_the_schedule_takes():
    kernel = backend("vulkan").parse_target("vulkan")

    def taken(graph):
        return choose.choose(nest_of(graph), kernel) is gemv.schedule

    assert taken(product(1, 300, 200, F32)[0])
    assert taken(product(8, 300, 200, BF16)[0])
    assert taken(product(1, 300, 200, F32, transposed=False)[0])
    assert not taken(product(9, 300, 200, F32)[0])
    assert not taken(product(1, 300, 8, F32)[0])
    b = GraphBuilder()
    x, w = b.input("x", (1, 64, 20, 20), F32), b.input("w", (64, 7, 7), F32)
    window = IndexMap((Linear.dim(0), Linear.dim(1), Linear(((2, 1), (4, 1))), Linear(((3, 1), (5, 1)))))
    extents = (1, 64, 14, 14, 7, 7)
    body = op("mul", A0, Arg(1, F32))
    y = b.generic([x, w], [window, maps(1, 4, 5)], extents, body, reduced=2, combiner="add")
    assert not taken(b.build([y]))


@pytest.mark.vulkan
@pytest.mark.parametrize("transposed", [True, False])
@pairs(
    *("rows, n, k", [(1, 40, 256), (1, 7, 33), (3, 130, 96), (8, 24, 40), (5, 33, 1000)]),
    *("weights", [F32, F16, BF16, I8, U8]),
)
def test_element_types_layouts_and_rows(device, weights, transposed, rows, n, k):
    graph, arrays = product(rows, n, k, weights, transposed=transposed, bias=True)
    check(graph, arrays, device, rtol=2e-5, atol=2e-5)


@pytest.mark.vulkan
@pairs(
    *("weights, vector", [(BF16, BF16), (F16, F16), (I8, I8), (U8, I8), (I8, U8), (F32, BF16)]),
    *("transposed", [True, False]),
)
def test_narrow_vectors(device, weights, vector, transposed):
    graph, arrays = product(2, 50, 160, weights, vector, transposed=transposed)
    check(graph, arrays, device, rtol=2e-5, atol=2e-5)


@pytest.mark.vulkan
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("dynamic", [True, False])
def test_every_choice_of_parameters(device, transposed, dynamic):
    """All ways to share the work, for a subgroup size that is known and for one that is not."""
    kernel = backend("vulkan").parse_target(VULKAN_TARGET)
    if not dynamic:
        kernel = dataclasses.replace(kernel, subgroup=(8, 8))
    graph, arrays = product(2, 70, 264, BF16, BF16, transposed=transposed)
    (expected,) = interpret(graph, arrays)
    nest = nest_of(graph)
    choices = gemv.candidates(nest, kernel)
    assert len(choices) == len(set(choices)) > 10
    for parameters in choices[:: max(1, len(choices) // 8)]:
        scheduled = gemv.schedule(nest_of(graph), kernel, "product", parameters)
        y = np.zeros_like(expected)
        params = [dims.evaluate(p, {}) for p in scheduled.params]
        grid = tuple(dims.evaluate(g, {}) for g in scheduled.grid)
        Machine("vulkan").run(scheduled.kernel, [*arrays, y], params, grid)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.vulkan
def test_more_outputs_than_workgroups(device):
    graph, arrays = product(1, 270000, 32, I8)
    check(graph, arrays, device, rtol=2e-5, atol=2e-5)


@pytest.mark.vulkan
def test_indices_of_64_bits(device, monkeypatch):
    monkeypatch.setattr(base, "index_dtype", lambda dispatch, kernel: DType.I64)
    for transposed in (True, False):
        graph, arrays = product(2, 50, 256, BF16, BF16, transposed=transposed, bias=True)
        options = CompileOptions(targets=(device,), placement=PlacementOptions(fallback="error"), cache=False)
        compiled = compile_graph(graph, options)
        with Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights)) as model:
            compare(outputs(model, arrays), interpret(graph, arrays), rtol=2e-5, atol=2e-5)


@pytest.mark.vulkan
def test_batches_and_groups_of_rows(device):
    """Scores of grouped heads: keys are read once for the queries that share them."""
    heads, group, positions, width = 3, 4, 50, 64
    b = GraphBuilder()
    q, k = b.input("q", (heads, group, width), F32), b.input("k", (heads, positions, width), F16)
    body = Apply("mul", (A0, Cast(Arg(1, F16), F32)), F32)
    extents = (heads, group, positions, width)
    y = b.generic([q, k], [maps(0, 1, 3), maps(0, 2, 3)], extents, body, reduced=1, combiner="add")
    graph = b.build([y])
    assert choose.choose(nest_of(graph), target()) is gemv.schedule
    check(graph, [random((heads, group, width)), random((heads, positions, width), F16)], device)


@pytest.mark.vulkan
@pytest.mark.parametrize("transposed", [True, False])
def test_weights_with_scales_of_groups(device, transposed):
    """Dequantisation is part of the product: a scale for every 32 positions of every output."""
    n, k, size = 24, 128, 32
    b = GraphBuilder()
    x = b.input("x", (1, k // size, size), F32)
    w = b.input("w", (n, k // size, size) if transposed else (k // size, size, n), I8)
    scale = b.input("s", (n, k // size) if transposed else (k // size, n), F32)
    real = Apply("mul", (Cast(Arg(1, I8), F32), Arg(2, F32)), F32)
    body = Apply("mul", (A0, real), F32)
    reads = [maps(0, 2, 3), maps(1, 2, 3) if transposed else maps(2, 3, 1)]
    reads.append(maps(1, 2) if transposed else maps(2, 1))
    y = b.generic([x, w, scale], reads, (1, n, k // size, size), body, reduced=2, combiner="add")
    graph = b.build([y])
    assert choose.choose(nest_of(graph), target()) is gemv.schedule
    arrays = [random(v.type.shape, v.type.dtype) for v in graph.inputs]
    check(graph, arrays, device, rtol=2e-5, atol=2e-5)


def quantised(rows, n, k, dtype, *, size=32, transposed=True):
    """x (rows, k) times 4-bit constants with a scale, and for u4 a zero point, for every ``size`` of k."""
    b = GraphBuilder()
    groups = k // size
    x = b.input("x", (rows, groups, size), F32)
    shape = (n, groups, size) if transposed else (groups, size, n)
    low = 0 if dtype is DType.U4 else -8
    data = RNG.integers(low, low + 16, shape).astype(np.int8).astype(dtype.numpy)
    w = b.constant("w", Constant.of(data, "w"), shape, dtype)
    few = (n, groups) if transposed else (groups, n)
    scale = b.constant("s", Constant.of(random(few), "s"), few, F32)
    extents = (n, groups, size)
    walked = [maps(0, 1, 2) if transposed else maps(1, 2, 0), maps(0, 1) if transposed else maps(1, 0)]
    wide = Cast(Arg(0, dtype), F32)
    if dtype is DType.U4:
        wide = op("sub", wide, Const(8.0, F32))
    real = b.generic([w, scale], walked, extents, Apply("mul", (wide, Arg(1, F32)), F32))
    reads = [maps(0, 2, 3), maps(1, 2, 3)]
    body = op("mul", A0, Arg(1, F32))
    y = b.generic([x, real], reads, (rows, n, groups, size), body, reduced=2, combiner="add")
    return b, y, [random((rows, groups, size))]


@pytest.mark.vulkan
@pytest.mark.parametrize("transposed", [True, False])
@pairs("rows, n, k", [(1, 100, 256), (2, 133, 160), (30, 80, 256)], "dtype", [DType.I4, DType.U4])
def test_weights_of_4_bits(device, dtype, transposed, rows, n, k):
    """Weights stay packed on the device, and are scaled where they are read."""
    b, y, arrays = quantised(rows, n, k, dtype, transposed=transposed)
    graph = b.build([y])
    with compiled(graph, device) as model:
        compare(outputs(model, arrays), interpret(graph, arrays), rtol=2e-5, atol=2e-5)
        used = sum(r.bytes for r in model.memory().rows if r.what == "weights")
    assert used < n * k + 8192


@pytest.mark.vulkan
def test_rows_of_a_4_bit_table(device):
    b = GraphBuilder()
    ids = b.input("ids", (7,), DType.I64)
    data = RNG.integers(-8, 8, (20, 6)).astype(np.int8).astype(DType.I4.numpy)
    table = b.constant("w", Constant.of(data, "w"), (20, 6), DType.I4)
    body = Cast(Gather(1, (Arg(0, DType.I64), Index(1)), DType.I4), F32)
    graph = b.build([b.generic([ids, table], [maps(0), None], (7, 6), body)])
    check(graph, [np.array([0, 19, 3, -1, 77, 8, 8])], device)


def test_arithmetic_in_4_bits_is_refused():
    b = GraphBuilder()
    data = RNG.integers(-8, 8, (20, 6)).astype(np.int8).astype(DType.I4.numpy)
    w = b.constant("w", Constant.of(data, "w"), (20, 6), DType.I4)
    x = b.input("x", (20, 6), F32)
    doubled = Cast(Apply("add", (Arg(0, DType.I4), Arg(0, DType.I4)), DType.I4), F32)
    graph = b.build([b.generic([w, x], [maps(0, 1)] * 2, (20, 6), op("mul", doubled, Arg(1, F32)))])
    options = CompileOptions(targets=("vulkan:1.3",), placement=PlacementOptions(fallback="error"))
    with pytest.raises(CompileError, match="packed element type i4"):
        compile_graph(graph, options)


@pytest.mark.vulkan
@pytest.mark.parametrize("along", [True, False])
@pytest.mark.parametrize("dim", [Dim("s", 1, 300), Dim("s", 8, 304, multiple=8)])
def test_symbolic_sizes(device, along, dim):
    """Keys and values of as many positions as there are: outputs of one product, depth of the other."""
    s = dims.symbol(dim)
    b = GraphBuilder()
    if along:
        x, w = b.input("x", (2, 64), F32), b.input("w", (s, 64), F16)
        reads, extents = [maps(0, 2), maps(1, 2)], (2, s, 64)
    else:
        x, w = b.input("x", (2, s), F32), b.input("w", (s, 40), F16)
        reads, extents = [maps(0, 2), maps(2, 1)], (2, 40, s)
    body = Apply("mul", (A0, Cast(Arg(1, F16), F32)), F32)
    graph = b.build([b.generic([x, w], reads, extents, body, reduced=1, combiner="add")])
    assert choose.choose(nest_of(graph), target()) is gemv.schedule
    with compiled(graph, device) as model:
        for size in (dim.min, 8, 96, dim.max):
            shapes = [v.type.concrete({"s": size}) for v in graph.inputs]
            arrays = [random(shapes[0]), random(shapes[1], F16)]
            compare(outputs(model, arrays), interpret(graph, arrays), rtol=2e-5, atol=2e-5)


@pytest.mark.vulkan
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("dtype", [DType.F64, DType.I64])
def test_wide_numbers(device, dtype, transposed):
    """Element types that are neither read as words nor added in subgroups."""
    if dtype is DType.F64 and "float64" not in target().features:
        pytest.skip("the device has no float64")
    b = GraphBuilder()
    x = b.input("x", (8, 200), dtype)
    w = b.input("w", (300, 200) if transposed else (200, 300), dtype)
    body = Apply("mul", (Arg(0, dtype), Arg(1, dtype)), dtype)
    reads = [maps(0, 2), maps(1, 2) if transposed else maps(2, 1)]
    graph = b.build([b.generic([x, w], reads, (8, 300, 200), body, reduced=1, combiner="add")])
    assert choose.choose(nest_of(graph), target()) is gemv.schedule
    check(graph, [random(v.type.shape, dtype) for v in graph.inputs], device)
