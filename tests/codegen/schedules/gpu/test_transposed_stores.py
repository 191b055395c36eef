"""GPU kernels that store results in the order of a transpose: every schedule, ragged edges, all types."""

import pytest
from support.graph_runner import check
from support.graphs import A0, F32, transposed
from support.transposed_results import biased_product, dispatches, functions, open_product, random, result_of

from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap, Linear
from mansard.ir.scalar import Apply, Arg

pytestmark = pytest.mark.vulkan


@pytest.fixture(autouse=True)
def device():
    from support import vulkan_support

    return vulkan_support.usable_device()


@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(33, 64, 17), (257, 40, 21), (7, 32, 100), (1, 16, 300), (64, 64, 64), (300, 3, 2), (2, 4096, 48)],
)
def test_products(rows, depth, columns):
    graph = biased_product(rows, depth, columns, 1 / depth)
    assert dispatches(graph, "vulkan") == 1
    check(graph, [random(rows, depth)], "vulkan")


@pytest.mark.parametrize(
    ("size", "channels", "filters", "stride"), [(9, 5, 7, 1), (16, 8, 32, 2), (5, 3, 1, 1)]
)
def test_convolutions(size, channels, filters, stride):
    b, out = GraphBuilder(), (size - 1) // stride + 1
    x = b.input("x", (2, size, size, channels), F32)
    w = b.input("w", (3, 3, channels, filters), F32)
    at = [Linear(((o, stride), (k, 1)), -1) for o, k in ((1, 4), (2, 5))]
    reads = IndexMap((Linear.dim(0), *at, Linear.dim(6)), 0.0)
    extents = (2, out, out, filters, 3, 3, channels)
    body = Apply("mul", (A0, Arg(1, F32)), F32)
    y = b.generic([x, w], [reads, IndexMap.of_dims((4, 5, 6, 3))], extents, body, reduced=3, combiner="add")
    graph = b.build([transposed(b, y, (0, 3, 1, 2))])
    assert dispatches(graph, "vulkan") == 1
    check(graph, [random(2, size, size, channels), random(3, 3, channels, filters)], "vulkan")


def test_depthwise_convolutions():
    b = GraphBuilder()
    x, w = b.input("x", (1, 12, 12, 24), F32), b.input("w", (3, 3, 24), F32)
    at = [Linear(((o, 1), (k, 1)), -1) for o, k in ((1, 4), (2, 5))]
    reads = IndexMap((Linear.dim(0), *at, Linear.dim(3)), 0.0)
    body = Apply("mul", (A0, Arg(1, F32)), F32)
    weights = IndexMap.of_dims((4, 5, 3))
    y = b.generic([x, w], [reads, weights], (1, 12, 12, 24, 3, 3), body, reduced=2, combiner="add")
    graph = b.build([transposed(b, y, (0, 3, 1, 2))])
    assert dispatches(graph, "vulkan") == 1
    check(graph, [random(1, 12, 12, 24), random(3, 3, 24)], "vulkan")


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.I8, DType.U8, DType.BOOL, DType.I64])
def test_narrow_and_wide_results(dtype):
    graph, x = result_of(dtype)
    check(graph, [x], "vulkan", rtol=0, atol=0)


@pytest.mark.parametrize(("height", "channels"), [(33, 21), (16, 16), (5, 3), (40, 70), (100, 4)])
def test_maps(height, channels):
    graph = functions(height, channels)
    assert dispatches(graph, "vulkan") == 1
    check(graph, [random(2, height, channels)], "vulkan")


@pytest.mark.parametrize("size", [1, 2, 7, 64, 200])
def test_open_sizes(size):
    graph = open_product()
    assert dispatches(graph, "vulkan") == 1
    check(graph, [random(size, 32)], "vulkan")
