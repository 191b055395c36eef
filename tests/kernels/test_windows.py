"""Convolutions and pooling on padded images: layout, padded reads and the window schedule."""

import numpy as np
import pytest
from support.graph_runner import check
from support.graphs import A0, A1, F32, maps, op

from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules import choose
from mansard.codegen.schedules.cpu import window as cpu_window
from mansard.compiler.targets import resolve_targets
from mansard.dims import Dim, symbol
from mansard.ir import GraphBuilder, IndexMap, Linear
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Const
from mansard.ir.types import Constant
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.fusion.fuse import fuse
from mansard.passes.fusion.packable import mark_packable
from mansard.passes.layout.channels_last import channels_last
from mansard.passes.layout.padding import read_padding
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps
from mansard.placement import PlacementOptions

pytestmark = pytest.mark.variants(2)

RNG = np.random.default_rng(11)


@pytest.fixture(params=["cpu", "cpu:x86-64-v3", pytest.param("vulkan", marks=pytest.mark.vulkan)])
def device(request):
    from mansard.hal import registry

    if request.param == "vulkan":
        usable = [i for i in registry.devices() if i.driver == "vulkan" and i.supported]
        if not usable:
            pytest.skip("no Vulkan 1.3 device")
    return request.param


def random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def constant(b, name, array):
    return b.constant(name, Constant.of(array, name), array.shape, F32)


def image_graph(
    size, channels, filters, kernel, stride=1, low=1, high=1, dilation=1, depthwise=False, batch=1, relu=True
):
    """A padded convolution with constant weights and bias, as a frontend leaves it (channels first)."""
    height, width = size
    out = [(extent + low + high - dilation * (kernel - 1) - 1) // stride + 1 for extent in (height, width)]
    b = GraphBuilder()
    x = b.input("x", (batch, channels, height, width), F32)
    padded = b.pad(x, (0, 0, low, low), (0, 0, high, high), 0.0) if low or high else x
    bias = constant(b, "bias", random(filters))
    if depthwise:
        w = constant(b, "w", random(channels, kernel, kernel))
        rows, columns = Linear(((2, stride), (4, dilation))), Linear(((3, stride), (5, dilation)))
        window = IndexMap((Linear.dim(0), Linear.dim(1), rows, columns))
        extents, weights, reduced = (batch, channels, *out, kernel, kernel), maps(1, 4, 5), 2
    else:
        w = constant(b, "w", random(filters, channels, kernel, kernel))
        rows, columns = Linear(((2, stride), (5, dilation))), Linear(((3, stride), (6, dilation)))
        window = IndexMap((Linear.dim(0), Linear.dim(4), rows, columns))
        extents, weights, reduced = (batch, filters, *out, channels, kernel, kernel), maps(1, 4, 5, 6), 3
    y = b.generic([padded, w], [window, weights], extents, op("mul", A0, A1), reduced=reduced, combiner="add")
    shape = (batch, filters, *out)
    y = b.generic([y, bias], [IndexMap.identity(4), maps(1)], shape, op("add", A0, A1))
    if relu:
        y = b.generic([y], [IndexMap.identity(4)], shape, op("max", A0, Const(0.0, F32)))
    return b.build([y]), [random(batch, channels, height, width)]


STRIDED = {"kernel": 7, "stride": 2, "low": 3, "high": 3}
DEPTHWISE = {"kernel": 3, "depthwise": True}
CONVOLUTIONS = {
    "same 3x3": {"size": (14, 14), "channels": 8, "filters": 32, "kernel": 3},
    "one row tile": {"size": (7, 7), "channels": 5, "filters": 48, "kernel": 3},
    "padded after": {"size": (16, 16), "channels": 3, "filters": 16, "kernel": 3, "stride": 2, "low": 0},
    "7x7 stride 2": {"size": (20, 33), "channels": 3, "filters": 24, **STRIDED},
    "dilated": {
        "size": (9, 17), "channels": 4, "filters": 20, "kernel": 3, "dilation": 4, "low": 4, "high": 4
    },
    "never inside": {
        "size": (5, 5), "channels": 4, "filters": 16, "kernel": 3, "dilation": 7, "low": 7, "high": 7
    },
    "batch": {"size": (6, 10), "channels": 4, "filters": 16, "kernel": 3, "batch": 2},
    "not padded": {"size": (9, 40), "channels": 4, "filters": 16, "kernel": 3, "low": 0, "high": 0},
    "wide": {"size": (3, 129), "channels": 4, "filters": 21, "kernel": 3},
    "depthwise": {"size": (14, 14), "channels": 24, "filters": 24, **DEPTHWISE},
    "depthwise stride 2": {"size": (15, 15), "channels": 40, "filters": 40, "stride": 2, **DEPTHWISE},
    "depthwise dilated": {
        "size": (33, 9), "channels": 20, "filters": 20, "low": 2, "high": 2, "dilation": 2, **DEPTHWISE
    },
    "few channels": {"size": (8, 8), "channels": 2, "filters": 3, "kernel": 3},
}  # fmt: skip


NARROWER = ("same 3x3", "7x7 stride 2", "never inside", "depthwise stride 2")
"""Those that run by default with narrower vectors than this CPU may have; the others differ in size."""


@pytest.mark.parametrize(
    ("device", "name"),
    [
        *(("cpu", name) for name in CONVOLUTIONS),
        *(
            pytest.param("cpu:x86-64-v3", name, marks=[] if name in NARROWER else pytest.mark.slow)
            for name in CONVOLUTIONS
        ),
        *(pytest.param("vulkan", name, marks=pytest.mark.vulkan) for name in CONVOLUTIONS),
    ],
    indirect=["device"],
)
def test_convolution_of_a_padded_image(device, name):
    graph, inputs = image_graph(**CONVOLUTIONS[name])
    check(graph, inputs, device)


@pytest.mark.parametrize("name", sorted(set(CONVOLUTIONS) - {"few channels"}))
def test_windows_get_their_own_schedule_and_no_padded_copy(name):
    graph, _ = image_graph(**CONVOLUTIONS[name])
    image = run_passes(graph, (*canonical_steps(), read_padding, eliminate_dead, channels_last))
    dispatches = mark_packable(fuse(image)).dispatches
    (target,) = resolve_targets(("cpu:x86-64-v4",), PlacementOptions())
    windows = [d for d in dispatches if choose(Nest(d), target.kernel) is cpu_window.schedule]
    assert len(windows) == 1
    # The convolution, and the copies that give the output (and a depthwise one's input) an order.
    assert len(dispatches) == (3 if "depthwise" in name else 2)


@pytest.mark.parametrize("fill", [float("-inf"), 0.0])
@pytest.mark.parametrize("stride", [1, 2])
def test_max_pooling_of_a_padded_image(device, stride, fill):
    """With a fill that is not the neutral element, the padding counts."""
    b = GraphBuilder()
    x = b.input("x", (1, 18, 13, 13), F32)
    w = constant(b, "w", random(20, 18))
    mixed = b.generic(
        [x, w],
        [maps(0, 4, 2, 3), maps(1, 4)],
        (1, 20, 13, 13, 18),
        op("mul", A0, A1),
        reduced=1,
        combiner="add",
    )
    lowered = b.generic([mixed], [IndexMap.identity(4)], (1, 20, 13, 13), op("sub", A0, Const(9.0, F32)))
    padded = b.pad(lowered, (0, 0, 1, 1), (0, 0, 1, 1), fill)
    out = (13 + 2 - 3) // stride + 1
    rows, columns = Linear(((2, stride), (4, 1))), Linear(((3, stride), (5, 1)))
    window = IndexMap((Linear.dim(0), Linear.dim(1), rows, columns))
    y = b.generic([padded], [window], (1, 20, out, out, 3, 3), A0, reduced=2, combiner="max")
    check(b.build([y]), [random(1, 18, 13, 13)], device)


def test_padded_convolution_of_unknown_size(device):
    size = symbol(Dim("s", 4, 64))
    b = GraphBuilder()
    x = b.input("x", (1, 3, size, size), F32)
    padded = b.pad(x, (0, 0, 1, 1), (0, 0, 1, 1), 0.0)
    w = constant(b, "w", random(16, 3, 3, 3))
    window = IndexMap((Linear.dim(0), Linear.dim(4), Linear(((2, 1), (5, 1))), Linear(((3, 1), (6, 1)))))
    extents = (1, 16, size, size, 3, 3, 3)
    y = b.generic(
        [padded, w], [window, maps(1, 4, 5, 6)], extents, op("mul", A0, A1), reduced=3, combiner="add"
    )
    graph = b.build([y])
    check(graph, [random(1, 3, 9, 9)], device)


def test_layout_passes_keep_the_meaning():
    """The interpreter gives the same before and after, whatever reads the convolution."""
    graph, inputs = image_graph((6, 6), 4, 8, 3)
    b = GraphBuilder()
    x = b.input("x", (1, 4, 6, 6), F32)
    w = constant(b, "w", random(8, 4))
    y = b.generic(
        [x, w], [maps(0, 4, 2, 3), maps(1, 4)], (1, 8, 6, 6, 4), op("mul", A0, A1), reduced=1, combiner="add"
    )
    flat = b.reshape(y, (1, 288))
    total = b.generic([y], [maps(0, 1, 2, 3)], (1, 8, 6, 6), A0, reduced=2, combiner="add")
    both = b.concat([y, y], 1)
    for case in (graph, b.build([flat, total, both, y])):
        image = run_passes(case, (*canonical_steps(), read_padding, eliminate_dead, channels_last))
        assert "else 0.0" in str(image) or case is not graph
        for actual, expected in zip(interpret(image, inputs), interpret(case, inputs), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
