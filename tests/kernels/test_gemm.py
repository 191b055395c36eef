"""Products with constant weights: packed panels, register tiles of every shape, ragged edges, epilogues."""

import numpy as np
import pytest
from support.graph_runner import check, compare, compiled, outputs
from support.graphs import A0, A1, F32, binary, maps, matmul, op, unary
from support.kernels.pairs import pairs

from mansard import dims
from mansard.codegen.schedules.cpu import gemm
from mansard.codegen.schedules.cpu.gemm_tile import RegisterTile
from mansard.compiler import CompileOptions, compile_graph
from mansard.dims import Dim
from mansard.ir import Constant, GraphBuilder, IndexMap, Linear
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Const

RNG = np.random.default_rng(11)
TARGETS = ["cpu", "cpu:x86-64-v3", "cpu:x86-64"]


def random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def weight(b, *shape):
    return b.constant("w", Constant.of(random(*shape), "w"), shape, F32)


def relu6(b, y):
    clamped = op("min", op("max", A0, Const(0.0, F32)), Const(6.0, F32))
    return b.generic([y], [IndexMap.identity(2)], y.type.shape, clamped)


def linear(m, k, n, epilogue="bias", *, transposed=False):
    """x (m, k) by a constant weight, with an epilogue; the graph and its inputs."""
    b = GraphBuilder()
    x = b.input("x", (m, k), F32)
    y = matmul(b, x, weight(b, *((n, k) if transposed else (k, n))), transposed=transposed)
    inputs = [random(m, k)]
    if epilogue != "none":
        y = binary(b, "add", y, b.constant("b", Constant.of(random(n), "b"), (n,), F32))
    if epilogue == "relu6":
        y = relu6(b, y)
    elif epilogue == "erf":
        y = unary(b, "erf", y)
    elif epilogue == "residual":
        y = binary(b, "add", y, b.input("r", (m, n), F32))
        inputs.append(random(m, n))
    return b.build([y]), inputs


@pairs(
    "m, k, n, epilogue",
    [
        (49, 16, 40, "relu6"),
        (13, 33, 100, "erf"),
        (128, 64, 96, "residual"),
        (300, 24, 17, "bias"),
        (7, 5, 1000, "none"),
        (9, 1, 31, "bias"),
        (33, 70, 8, "none"),
        (1, 20, 24, "bias"),
        (20, 300, 48, "relu6"),
    ],
    *("target", TARGETS),
)
def test_products_of_ragged_shapes(target, m, k, n, epilogue):
    graph, inputs = linear(m, k, n, epilogue)
    check(graph, inputs, target)


@pytest.mark.parametrize("target", TARGETS)
def test_weights_kept_as_frameworks_keep_them(target):
    graph, inputs = linear(14, 40, 72, "relu6", transposed=True)
    check(graph, inputs, target)


def test_what_loads_a_weight_needs_no_hash():
    class Loader:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self):
            return random(24, 40)

    b = GraphBuilder()
    w = b.constant("w", Constant("w", Loader()), (24, 40), F32)
    compiled = compile_graph(b.build([unary(b, "exp", w)]), CompileOptions(targets=("cpu",)))
    assert [spec.shape for spec, _ in compiled.weights] == [(24, 40)]


@pytest.mark.parametrize(("m", "k", "n"), [(301, 24, 200), (96, 40, 232), (64, 33, 200)])
def test_rows_that_caches_do_not_hold_are_taken_in_groups(m, k, n, monkeypatch):
    monkeypatch.setattr(gemm, "GROUPED_BYTES", 4096)
    monkeypatch.setattr(gemm, "GROUP_BYTES", 2500)
    graph, inputs = linear(m, k, n, "residual")
    compiled = compile_graph(graph, CompileOptions(targets=("cpu",), cache=False))
    (step,) = [s for part in compiled.plan.devices[0].segments for s in part.steps if hasattr(s, "grid")]
    assert step.grid[1] > 1 and step.grid[2] > 1
    compare(outputs(_model(compiled), inputs), interpret(graph, inputs))


@pytest.mark.parametrize("lower", [1, 16])
def test_symbolic_rows(lower):
    rows = dims.symbol(Dim("rows", lower, 100))
    b = GraphBuilder()
    y = matmul(b, b.input("x", (rows, 40), F32), weight(b, 40, 56))
    graph = b.build([relu6(b, y)])
    with compiled(graph, "cpu") as model:
        for size in {lower, 3, 7, 8, 9, 16, 31, 100}:
            if size >= lower:
                inputs = [random(size, 40)]
                compare(outputs(model, inputs), interpret(graph, inputs))


def test_several_reduced_loops_and_rows_that_cannot_merge():
    """A strided 3x3 convolution of a channels-last image, as one contraction."""
    size, channels, filters = 9, 6, 20
    out = (size - 3) // 2 + 1
    b = GraphBuilder()
    x = b.input("x", (2, size, size, channels), F32)
    window = IndexMap((Linear.dim(0), Linear(((1, 2), (4, 1))), Linear(((2, 2), (5, 1))), Linear.dim(6)))
    extents = (2, out, out, filters, 3, 3, channels)
    w = weight(b, filters, channels, 3, 3)
    y = b.generic([x, w], [window, maps(3, 6, 4, 5)], extents, op("mul", A0, A1), reduced=3, combiner="add")
    check(b.build([y]), [random(2, size, size, channels)], "cpu")


def test_every_tile_gives_the_same():
    shapes = [(50, 40, 100), (7, 33, 24)]
    for m, k, n in shapes:
        graph, inputs = linear(m, k, n)
        expected = interpret(graph, inputs)
        for tile in (
            RegisterTile(4, 2, 16, 3),
            RegisterTile(5, 1, 8, 1),
            RegisterTile(2, 3, 8, 2),
            RegisterTile(7, 6, 4, 1),
        ):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(gemm, "choose", lambda *_, tile=tile: tile)
                compiled = compile_graph(graph, CompileOptions(targets=("cpu",), cache=False))
            compare(outputs(_model(compiled), inputs), expected)


def _model(artifact):
    from mansard.api import Model
    from mansard.artifact.resources import MemoryResources

    return Model(artifact.plan, MemoryResources(artifact.executables, artifact.weights))


def test_one_packed_copy_is_stored(tmp_path):
    import mansard

    graph, inputs = linear(32, 24, 40, "none")
    compiled = compile_graph(graph, CompileOptions(targets=("cpu",)))
    assert [spec.shape for spec, _ in compiled.weights] == [(3, 24, 16)]
    with _model(compiled) as model:
        model.save(tmp_path / "m.mansard")
    with mansard.load(tmp_path / "m.mansard") as model:
        compare(outputs(model, inputs), interpret(graph, inputs))


def test_a_weight_with_two_readers_stays_dense():
    b = GraphBuilder()
    w = weight(b, 24, 40)
    x = [b.input("x", (32, 24), F32), b.input("y", (48, 24), F32)]
    graph = b.build([matmul(b, v, w) for v in x])
    compiled = compile_graph(graph, CompileOptions(targets=("cpu",)))
    assert [spec.shape for spec, _ in compiled.weights] == [(24, 40)]
    inputs = [random(32, 24), random(48, 24)]
    compare(outputs(_model(compiled), inputs), interpret(graph, inputs))


@pairs("m, k, n", [(50, 40, 100), (64, 33, 16), (33, 7, 23), (300, 64, 48)], "target", TARGETS)
def test_products_of_two_computed_operands(target, m, k, n):
    b = GraphBuilder()
    x, w = b.input("x", (m, k), F32), b.input("w", (k, n), F32)
    check(b.build([relu6(b, matmul(b, x, w))]), [random(m, k), random(k, n)], target)


def test_a_matrix_by_itself():
    b = GraphBuilder()
    x = b.input("x", (40, 40), F32)
    check(b.build([matmul(b, x, x)]), [random(40, 40)], "cpu")


def test_batches_of_products_with_symbolic_rows():
    rows = dims.symbol(Dim("rows", 1, 90))
    b = GraphBuilder()
    x, w = b.input("x", (3, rows, 20), F32), b.input("w", (3, 20, 36), F32)
    reads = [maps(0, 1, 3), maps(0, 3, 2)]
    y = b.generic([x, w], reads, (3, rows, 36, 20), op("mul", A0, A1), reduced=1, combiner="add")
    graph = b.build([y])
    with compiled(graph, "cpu") as model:
        for size in (1, 5, 8, 33, 90):
            inputs = [random(3, size, 20), random(3, 20, 36)]
            compare(outputs(model, inputs), interpret(graph, inputs))
