"""Rows, windows, elementwise dispatches and lines on a GPU, at its own limits and at those any device has."""

import numpy as np
import pytest
from support.graph_runner import check, compare, compiled, outputs
from support.graphs import A0, A1, F32, binary, layer_norm, maps, op, softmax, unary
from support.kernels.pairs import pairs
from support.kernels.runner import Machine

from mansard import dims
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.gpu import choose
from mansard.codegen.schedules.gpu.convolution import depthwise
from mansard.codegen.schedules.gpu.elementwise import map as elementwise
from mansard.codegen.schedules.gpu.elementwise import transpose
from mansard.codegen.schedules.gpu.reduction import rows, strided
from mansard.compiler.targets import backend
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import Constant, GraphBuilder, IndexMap, Linear
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index
from mansard.passes.fusion.fuse import fuse

pytestmark = [pytest.mark.vulkan, pytest.mark.variants(2)]
RNG = np.random.default_rng(11)


def _usable(target):
    from mansard.hal import registry

    if not any(i.driver == "vulkan" and i.supported for i in registry.devices()):
        pytest.skip("no Vulkan 1.3 device")
    return target


@pytest.fixture(params=["vulkan", "vulkan:1.3"])
def device(request):
    """The device with all it has, and as one that only has what is required."""
    return _usable(request.param)


@pytest.fixture(params=["vulkan", pytest.param("vulkan:1.3", marks=pytest.mark.slow)])
def either(request):
    """The same for schedules that use nothing beyond what is required: one of them runs by default."""
    return _usable(request.param)


def random(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def chosen(graph, target="vulkan:1.3+subgroup_arithmetic"):
    """The schedules of a graph's dispatches."""
    kernel = backend("vulkan").parse_target(target)
    return [choose.choose(Nest(d), kernel) for d in fuse(graph).dispatches]


# Rows that lie along memory -------------------------------------------------------------------------
def reduction(shape, combiner, dtype=F32):
    b = GraphBuilder()
    x = b.input("x", shape, dtype)
    identity = IndexMap.identity(len(shape))
    return b.build([b.generic([x], [identity], shape, Arg(0, dtype), reduced=1, combiner=combiner)])


@pytest.mark.parametrize("length", [33, 64, 100, 384, 1000, 4096, 9001])
def test_norms_of_rows(device, length):
    b = GraphBuilder()
    x = b.input("x", (5, length), F32)
    graph = b.build([layer_norm(b, x, b.input("g", (length,), F32), b.input("b", (length,), F32))])
    assert chosen(graph) == [rows.schedule]
    check(graph, [random(5, length), random(length), random(length)], device)


@pytest.mark.parametrize("count", [1, 7, 700])
def test_softmax_of_few_and_many_rows(device, count):
    b = GraphBuilder()
    graph = b.build([softmax(b, b.input("x", (count, 96), F32))])
    data = random(count, 96) * 10
    data[0, 3:] = -np.inf
    check(graph, [data], device)


@pytest.mark.parametrize("width", [3, 9, 21, 31])
def test_softmax_of_short_rows(device, width):
    b = GraphBuilder()
    graph = b.build([softmax(b, b.input("x", (203, width), F32))])
    check(graph, [random(203, width) * 5], device)


def test_rows_of_unknown_number_and_length(device):
    n, s = dims.symbol(Dim("n", 1, 40)), dims.symbol(Dim("s", 1, 3000))
    b = GraphBuilder()
    graph = b.build([softmax(b, b.input("x", (n, s), F32))])
    with compiled(graph, device) as model:
        for shape in ((1, 1), (3, 130), (40, 7), (2, 2999)):
            inputs = [random(*shape)]
            compare(outputs(model, inputs), interpret(graph, inputs))


@pairs("length", [40, 128, 2050, 70000], "combiner", ["add", "min", "max", "argmin", "argmax"])
def test_reductions_with_ties_and_nan(device, combiner, length):
    data = np.round(random(6, length) * 3)
    if combiner != "add":
        data[1, length // 2] = data[1, length - 1] = np.nan
        data[2] = -np.inf if combiner.endswith("max") else np.inf
        data[3] = 1.0
    check(reduction((6, length), combiner), [data], device)


@pairs(
    *("dtype", [DType.I64, DType.I32, DType.U8, DType.I8, DType.F16]),
    *("combiner", ["add", "max", "argmax"]),
)
def test_reductions_of_other_types(device, combiner, dtype):
    data = RNG.integers(-60, 60, (3, 200))
    if dtype in (DType.F16, DType.U8):
        data = np.abs(data) / (8 if dtype is DType.F16 else 1)
    b = GraphBuilder()
    x = b.input("x", (3, 200), dtype)
    body = Cast(Arg(0, dtype), F32) if dtype is DType.F16 else Arg(0, dtype)
    y = b.generic([x], [IndexMap.identity(2)], (3, 200), body, reduced=1, combiner=combiner)
    check(b.build([y]), [data.astype(dtype.numpy)], device)


def test_all_and_any_of_bools(device):
    flag = Arg(0, DType.BOOL)
    b = GraphBuilder()
    x = b.input("x", (4, 300), DType.BOOL)
    reductions = [
        b.generic([x], [IndexMap.identity(2)], (4, 300), flag, reduced=1, combiner=c) for c in ("and", "or")
    ]
    mask = RNG.random((4, 300)) < 0.99
    mask[1], mask[2] = True, False
    check(b.build(reductions), [mask], device)


# Rows that lie across memory ------------------------------------------------------------------------
@pairs(
    *("pixels, channels", [(49, 1280), (49, 6), (200, 33), (9, 130), (1000, 4)]),
    *("combiner", ["add", "max", "argmax"]),
)
def test_reductions_over_pixels_of_channels_last_images(device, combiner, pixels, channels):
    b = GraphBuilder()
    x = b.input("x", (2, pixels, channels), F32)
    y = b.generic([x], [maps(0, 2, 1)], (2, channels, pixels), A0, reduced=1, combiner=combiner)
    graph = b.build([y])
    assert chosen(graph) == [strided.schedule]
    data = np.round(random(2, pixels, channels) * 4)
    if combiner != "add":
        data[1, pixels // 2, 0] = np.nan
    check(graph, [data], device)


@pytest.mark.parametrize(("channels", "points"), [(3, 16), (21, 37), (70, 128)])
def test_softmax_over_channels(device, channels, points):
    b = GraphBuilder()
    x = b.input("x", (2, channels, points), F32)
    turned = IndexMap((Linear.dim(0), Linear.dim(2), Linear.dim(1)))
    row, shape, over = IndexMap.of_dims((0, 2)), (2, channels, points), (2, points, channels)
    top = b.generic([x], [turned], over, A0, reduced=1, combiner="max")
    powers = b.generic([x, top], [IndexMap.identity(3), row], shape, op("exp", op("sub", A0, A1)))
    total = b.generic([powers], [turned], over, A0, reduced=1, combiner="add")
    y = b.generic([powers, total], [IndexMap.identity(3), row], shape, op("div", A0, A1))
    check(b.build([y]), [random(2, channels, points)], device)


# Windows --------------------------------------------------------------------------------------------
def window_maps(size, stride, dilation, pad, *, last):
    """The map of an image read by a 3x3 window, over (channel, y, x) or (y, x, channel) and two taps."""
    y, x, channel = (0, 1, 2) if last else (1, 2, 0)
    rows_ = Linear(((y, stride), (3, dilation)), -pad)
    columns = Linear(((x, stride), (4, dilation)), -pad)
    where = (rows_, columns, Linear.dim(channel)) if last else (Linear.dim(channel), rows_, columns)
    return where, (size + 2 * pad - 2 * dilation - 1) // stride + 1


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(
    ("channels", "size", "stride", "dilation", "pad"),
    [(8, 13, 1, 1, 1), (12, 14, 2, 1, 1), (6, 9, 1, 2, 2), (5, 7, 1, 1, 0), (4, 3, 1, 1, 1)],
)
def test_depthwise_convolutions(either, last, channels, size, stride, dilation, pad):
    where, out = window_maps(size, stride, dilation, pad, last=last)
    b = GraphBuilder()
    x = b.input("x", (size, size, channels) if last else (channels, size, size), F32)
    w = b.constant("w", Constant.of(random(channels, 3, 3)), (channels, 3, 3), F32)
    shape = (out, out, channels) if last else (channels, out, out)
    bias = b.input("b", (channels,), F32)
    channel = 2 if last else 0
    y = b.generic(
        [x, w],
        [IndexMap(where, 0.0 if pad else None), maps(channel, 3, 4)],
        (*shape, 3, 3),
        op("mul", A0, A1),
        reduced=2,
        combiner="add",
    )
    y = b.generic([y, bias], [IndexMap.identity(3), maps(channel)], shape, op("add", A0, A1))
    y = b.generic([y], [IndexMap.identity(3)], shape, op("max", A0, Const(0.0, F32)))
    graph = b.build([y])
    assert depthwise.schedule in chosen(graph)
    check(graph, [random(*x.type.shape), random(channels)], either)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("combiner", ["max", "add"])
def test_pooling(either, last, combiner):
    where, out = window_maps(15, 2, 1, 1, last=last)
    b = GraphBuilder()
    x = b.input("x", (15, 15, 6) if last else (6, 15, 15), F32)
    shape = (out, out, 6) if last else (6, out, out)
    fill = -np.inf if combiner == "max" else 0.0
    y = b.generic([x], [IndexMap(where, float(fill))], (*shape, 3, 3), A0, reduced=2, combiner=combiner)
    data = random(*x.type.shape)
    if combiner == "max":
        data[3, 4, 2] = np.nan
    check(b.build([y]), [data], either)


def run_all(graph, schedule, inputs, count):
    """Every choice of parameters a schedule offers for a graph of one dispatch."""
    (dispatch,) = fuse(graph).dispatches
    target = backend("vulkan").parse_target("vulkan:1.3")
    nest = Nest(dispatch)
    assert choose.choose(nest, target) is schedule
    tried = choose.TUNABLE[schedule].candidates(nest, target)
    assert len(set(tried)) == len(tried) >= count
    (expected,) = interpret(graph, inputs)
    for parameters in tried:
        scheduled = choose.TUNABLE[schedule].schedule(nest, target, "k", parameters)
        out = np.full_like(expected, -7)
        grid = tuple(dims.evaluate(d, {}) for d in scheduled.grid)
        Machine("vulkan").run(
            scheduled.kernel, [*inputs, out], [dims.evaluate(p, {}) for p in scheduled.params], grid
        )
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5, err_msg=str(parameters))


def test_all_parameters_of_windows_give_the_same_results():
    where, out = window_maps(7, 1, 1, 1, last=True)
    b = GraphBuilder()
    x = b.input("x", (7, 7, 4), F32)
    y = b.generic([x], [IndexMap(where, 0.0)], (out, out, 4, 3, 3), A0, reduced=2, combiner="add")
    run_all(b.build([y]), depthwise.schedule, [random(7, 7, 4)], 12)


@pytest.mark.parametrize("shape", [(9, 52), (5, 7, 3)])
def test_all_parameters_of_maps_give_the_same_results(shape):
    b = GraphBuilder()
    x, y = b.input("x", shape, F32), b.input("y", shape[-1:], F32)
    graph = b.build([binary(b, "sub", x, y)])
    run_all(graph, elementwise.schedule, [random(*shape), random(shape[-1])], 6)


# Elementwise ----------------------------------------------------------------------------------------
@pairs(
    *("dtype", [F32, DType.F16, DType.I64]),
    *("shape", [(1,), (7,), (64, 64), (3, 40001), (513, 260), (100, 1000, 3)]),
)
def test_wide_maps(either, shape, dtype):
    b = GraphBuilder()
    x, y = b.input("x", shape, dtype), b.input("y", shape[-1:], dtype)
    a, c = Arg(0, dtype), Arg(1, dtype)
    z = b.generic([x, y], [IndexMap.identity(len(shape)), maps(len(shape) - 1)], shape, op("add", a, c))
    values = [RNG.integers(-99, 99, s).astype(dtype.numpy) for s in (shape, shape[-1:])]
    check(b.build([z]), values, either)


def test_wide_maps_of_unknown_size(device):
    s = dims.symbol(Dim("s", 1, 200000))
    b = GraphBuilder()
    graph = b.build([unary(b, "neg", b.input("x", (s,), F32))])
    with compiled(graph, device) as model:
        for size in (1, 3, 4, 4097, 200000):
            inputs = [random(size)]
            compare(outputs(model, inputs), interpret(graph, inputs))


@pytest.mark.parametrize("rows_", [7, 900])
def test_halves_of_rows_that_change_places(either, rows_):
    half = 32
    below = Apply("lt", (Index(1), Const(half, DType.I64)), DType.BOOL)
    b = GraphBuilder()
    x = b.input("x", (rows_, 2 * half), F32)
    upper = op("neg", Gather(0, (Index(0), op("add", Index(1), Const(half, DType.I64))), F32))
    lower = Gather(0, (Index(0), op("add", Index(1), Const(-half, DType.I64))), F32)
    y = b.generic([x], [None], (rows_, 2 * half), Apply("select", (below, upper, lower), F32))
    check(b.build([y]), [random(rows_, 2 * half)], either)


@pairs(
    *("dtype", [F32, DType.BOOL, DType.F16, DType.I64]),
    *("shape", [(64, 128), (33, 31), (3, 40, 50), (70, 66), (100, 7)]),
)
def test_transposes(either, shape, dtype):
    b = GraphBuilder()
    x = b.input("x", shape, dtype)
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    turned = tuple(shape[i] for i in order)
    # A map from result dims to the operand's: its own inverse here.
    y = b.generic([x], [maps(*order)], turned, Arg(0, dtype))
    graph = b.build([y])
    assert chosen(graph) == [transpose.schedule if min(shape[-2:]) >= 16 else elementwise.schedule]
    check(
        graph,
        [(RNG.integers(0, 2, shape) if dtype is DType.BOOL else random(*shape)).astype(dtype.numpy)],
        either,
    )


def test_a_sum_with_a_transposed_operand(either):
    b = GraphBuilder()
    x, y = b.input("x", (50, 70), F32), b.input("y", (70, 50), F32)
    z = b.generic([x, y], [maps(0, 1), maps(1, 0)], (50, 70), op("add", A0, A1))
    graph = b.build([z, binary(b, "mul", x, x)])
    check(graph, [random(50, 70), random(70, 50)], either)


@pytest.mark.parametrize("width", [3, 48, 200])
def test_rows_gathered_by_number(either, width):
    b = GraphBuilder()
    i, t = b.input("i", (40,), DType.I64), b.input("t", (30, width), F32)
    y = b.generic([i, t], [maps(0), None], (40, width), Gather(1, (Arg(0, DType.I64), Index(1)), F32))
    numbers = RNG.integers(-2, 33, 40)  # clamped into the table
    check(b.build([y]), [numbers, random(30, width)], either)


# Lines: sorting, top-k, running sums, scatters ------------------------------------------------------
@pytest.mark.parametrize("dtype", [F32, DType.I64])
def test_lines_in_order_next_to_others(device, dtype):
    b = GraphBuilder()
    graph = b.build(b.sort(b.input("x", (5, 700), dtype), 1, True))
    data = np.full((5, 700), 3).astype(dtype.numpy)
    data[1, 699], data[2, 0], data[3] = 4, 4, np.arange(700)
    check(graph, [data], device)


@pairs(
    "shape, axis, dtype",
    [
        ((5, 1), 1, F32),
        ((3, 7), 1, DType.I64),
        ((4, 300), 1, F32),
        ((4, 130), 1, DType.BOOL),
        ((4, 200), 1, DType.F16),
        ((4, 100), 1, DType.I32),
        ((6, 100, 3), 1, F32),
        ((2, 5000), 1, F32),
        ((1, 2100), 1, DType.I32),
    ],
    *("descending", [False, True]),
)
def test_sorting_is_stable(device, shape, axis, descending, dtype):
    b = GraphBuilder()
    graph = b.build(b.sort(b.input("x", shape, dtype), axis, descending))
    data = RNG.integers(0, 2 if dtype is DType.BOOL else 20, shape).astype(dtype.numpy)
    if dtype.is_float:
        data[0].reshape(-1)[0] = np.nan
        data[-1].reshape(-1)[-1] = -np.inf
    check(graph, [data], device)


@pytest.mark.parametrize("length", [30, 1000, 3000, 40001])
def test_top_k(device, length):
    b = GraphBuilder()
    graph = b.build(b.sort(b.input("x", (3, length), F32), 1, True, limit=20))
    data = np.round(random(3, length) * 50)
    data[1, 17] = data[2, length - 1] = np.nan
    check(graph, [data], device)


@pytest.mark.parametrize("wanted", [0, 1])
@pytest.mark.parametrize("limit", [None, 3])
def test_sorting_for_values_or_order_alone(device, limit, wanted):
    b = GraphBuilder()
    graph = b.build([b.sort(b.input("x", (4, 300), F32), 1, True, limit)[wanted]])
    for where in (device, "cpu"):
        check(graph, [random(4, 300)], where)


def test_sorting_lines_of_unknown_length(device):
    s = dims.symbol(Dim("s", 1, 600))
    b = GraphBuilder()
    graph = b.build(b.sort(b.input("x", (4, s), F32), 1))
    with compiled(graph, device) as model:
        for size in (1, 2, 63, 600):
            inputs = [np.round(random(4, size) * 9)]
            compare(outputs(model, inputs), interpret(graph, inputs))


@pairs(
    *("shape, axis", [((2, 100), 1), ((3, 5000), 1), ((1, 20001), 1), ((4, 90, 3), 1)]),
    *("combiner, inclusive", [("add", True), ("add", False), ("max", False), ("min", True), ("mul", True)]),
)
def test_running_values(device, shape, axis, combiner, inclusive):
    b = GraphBuilder()
    graph = b.build([b.scan(b.input("x", shape, F32), axis, combiner, inclusive)])
    data = random(*shape)
    if combiner == "mul":
        data = np.exp(0.01 * data).astype(np.float32)
    check(graph, [data], device, rtol=1e-4)


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64, DType.F16])
def test_running_sums_of_other_types(device, dtype):
    b = GraphBuilder()
    graph = b.build([b.scan(b.input("x", (2, 700), dtype), 1)])
    check(graph, [RNG.integers(0, 3, (2, 700)).astype(dtype.numpy)], device, rtol=1e-2)


@pairs("width", [1, 5, 64, 300], "combiner", [None, "add", "max"])
def test_scatters_apply_rows_in_order(device, combiner, width):
    b = GraphBuilder()
    t, i = b.input("t", (20, width), F32), b.input("i", (70, 1), DType.I64)
    graph = b.build([b.scatter(t, i, b.input("u", (70, width), F32), combiner)])
    numbers = RNG.integers(-2, 22, (70, 1))  # those outside are dropped
    check(graph, [random(20, width), numbers, random(70, width)], device)


@pytest.mark.parametrize("combiner", [None, "min"])
@pytest.mark.parametrize("width", [1, 3])
def test_few_updates_of_short_rows_are_searched_by_every_element(device, combiner, width):
    b, rows_ = GraphBuilder(), dims.symbol(Dim("rows", 1, 8, typical=4))
    t, i = b.input("t", (2, 300, width), F32), b.input("i", (rows_, 2), DType.I64)
    graph = b.build([b.scatter(t, i, b.input("u", (rows_, width), F32), combiner)])
    numbers = np.array([[0, 7], [1, 299], [0, 7], [2, 1], [0, -1]])
    with compiled(graph, device) as model:
        inputs = [random(2, 300, width), numbers, random(5, width)]
        compare(outputs(model, inputs), interpret(graph, inputs))


@pairs("width", [1, 3], "combiner", [None, "max"])
def test_many_updates_of_short_rows(device, combiner, width):
    b, rows_ = GraphBuilder(), dims.symbol(Dim("rows", 1, 900, typical=400))
    t, i = b.input("t", (2, rows_, width), F32), b.input("i", (500, 2), DType.I64)
    graph = b.build([b.scatter(t, i, b.input("u", (500, width), F32), combiner)])
    with compiled(graph, device) as model:
        for rows in (1, 256, 700):
            numbers = np.stack([RNG.integers(-1, 3, 500), RNG.integers(-5, rows + 5, 500)], axis=1)
            inputs = [random(2, rows, width), numbers, random(500, width)]
            compare(outputs(model, inputs), interpret(graph, inputs))


@pairs("width, unique", [(32, False), (32, True), (2, True), (2, False)], "combiner", [None, "add"])
def test_scatters_into_states_in_place(device, combiner, width, unique):
    b = GraphBuilder()
    s = b.state("s", (16, width), F32)
    i, u = b.input("i", (9, 1), DType.I64), b.input("u", (9, width), F32)
    after = b.scatter(s, i, u, combiner, unique=unique)
    b.update_state(s, after)
    graph = b.build([unary(b, "neg", after)])
    numbers, rows_ = RNG.permutation(np.arange(-1, 17))[:9, None], random(9, width)
    if not unique:
        numbers[3] = numbers[7]
    expected = np.zeros((16, width), np.float32)
    with compiled(graph, device) as model:
        for _ in range(2):
            (output,) = outputs(model, [numbers, rows_])
            for n, (k,) in enumerate(numbers):
                if 0 <= k < 16:
                    expected[k] = rows_[n] + (expected[k] if combiner else 0)
            np.testing.assert_allclose(output, -expected, rtol=1e-6)
        assert [before == after for before, after in model.plan.states] == [True]
