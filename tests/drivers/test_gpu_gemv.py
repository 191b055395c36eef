"""Products that read one large operand once, on a GPU, against the reference interpreter."""

import numpy as np
import pytest
from graph_runner import check
from graphs import A0, F32, binary, maps, op

from mansard.codegen.nest import Nest
from mansard.codegen.schedules.gpu import choose, gemv
from mansard.compiler.targets import backend, resolve_targets
from mansard.dtypes import DType
from mansard.ir import Constant, GraphBuilder, IndexMap
from mansard.ir.scalar import Apply, Arg, Cast, Const
from mansard.passes.fuse import fuse
from mansard.passes.pipeline import CANONICAL, run_passes
from mansard.placement import Placement

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
    (dispatch,) = fuse(run_passes(graph, CANONICAL)).dispatches
    return Nest(dispatch)


def target(text="vulkan"):
    return resolve_targets([text], Placement(fallback="error"))[0].kernel


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
    from mansard.ir import Linear

    window = IndexMap((Linear.dim(0), Linear.dim(1), Linear(((2, 1), (4, 1))), Linear(((3, 1), (5, 1)))))
    extents = (1, 64, 14, 14, 7, 7)
    body = op("mul", A0, Arg(1, F32))
    y = b.generic([x, w], [window, maps(1, 4, 5)], extents, body, reduced=2, combiner="add")
    assert not taken(b.build([y]))


@pytest.mark.vulkan
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("weights", [F32, F16, BF16, I8, U8])
@pytest.mark.parametrize(
    ("rows", "n", "k"), [(1, 40, 256), (1, 7, 33), (3, 130, 96), (8, 24, 40), (5, 33, 1000)]
)
def test_element_types_layouts_and_rows(device, weights, transposed, rows, n, k):
    graph, arrays = product(rows, n, k, weights, transposed=transposed, bias=True)
    check(graph, arrays, device, rtol=2e-5, atol=2e-5)


@pytest.mark.vulkan
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize(
    ("weights", "vector"), [(BF16, BF16), (F16, F16), (I8, I8), (U8, I8), (I8, U8), (F32, BF16)]
)
def test_narrow_vectors(device, weights, vector, transposed):
    graph, arrays = product(2, 50, 160, weights, vector, transposed=transposed)
    check(graph, arrays, device, rtol=2e-5, atol=2e-5)
