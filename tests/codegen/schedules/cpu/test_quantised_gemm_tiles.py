"""Products of many rows of bf16 with small integers by tile registers, on CPUs with AMX and by vectors on
others."""

import pytest
from support.decoders.quantised_weights import Form, graph_of, inputs_of
from support.graph_runner import compare, compiled, outputs
from support.kernels.runner import require_cpu

from mansard import dims
from mansard.codegen.llvm import target as cpu_target
from mansard.codegen.schedules import schedule
from mansard.codegen.schedules.cpu import gemm_tiles
from mansard.codegen.schedules.cpu.quantised import multiplication
from mansard.compiler import CompileOptions
from mansard.compiler.compile import lower_graph
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir.interpreter.graph import interpret

I4, U4, I8, U8, BF16, F16, F32 = (
    DType.I4, DType.U4, DType.I8, DType.U8, DType.BF16, DType.F16, DType.F32
)  # fmt: skip
AMX = "cpu:sapphirerapids"
FORMS = [
    Form(48, 128, 32, I4, BF16),
    Form(40, 256, 128, I4, BF16),  # a column tile of one panel, which is not full
    Form(70, 96, 32, U4, BF16, F16, U8),
    Form(33, 256, 32, U4, BF16, offsets=True, nested=True),
    Form(1000, 64, 32, I8, BF16),
    Form(24, 96, 96, U8, BF16, F32),
    Form(48, 4096, 128, I4, BF16),  # one group is unpacked at a time
    Form(48, 16384, 16384, I8, BF16, F32),  # parts of a group
    Form(40, 24576, 12288, U8, I8, F32, U8),
    Form(64, 96, 16, I8, BF16),  # tiles of half the depth
    Form(48, 128, 32, I4, I8, scaled_x=True),
    Form(40, 256, 128, U4, I8, F16, U8, scaled_x=True),
    Form(33, 256, 32, U4, I8, offsets=True, nested=True, scaled_x=True),
    Form(1000, 192, 64, I8, I8, scaled_x=True),
    Form(24, 96, 96, U8, U8, F32),
    Form(48, 8192, 128, I4, I8, scaled_x=True),
]
TOLERANCE = 2e-5


@pytest.fixture
def everywhere(monkeypatch, tmp_path):
    """The schedule for every CPU: those without the registers, or instructions for pairs, do without."""
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gemm_tiles, "FEATURES", frozenset())
    monkeypatch.setattr(gemm_tiles, "BYTES_FEATURES", frozenset())
    monkeypatch.setattr(multiplication, "_BF16_FEATURES", frozenset({"sse2", "neon"}))


def uses_tiles(graph, target):
    (dispatch,) = lower_graph(graph, CompileOptions(targets=(target,), cache=False)).dispatches
    kernel = schedule(dispatch, cpu_target.parse(target).kernel_target(), "k").kernel
    return kernel.body.uses({"tile_products"})


def check_rows(form, rows, target, counts):
    graph = graph_of(form, rows)
    with compiled(graph, target) as model:
        for count in counts:
            inputs = inputs_of(form, count)
            compare(outputs(model, inputs), interpret(graph, inputs), TOLERANCE, TOLERANCE)


@pytest.mark.parametrize("rows", [16, 45, 64])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_cpus_with_tile_registers_use_them(form, rows):
    graph = graph_of(form, rows)
    assert uses_tiles(graph, AMX)
    assert not uses_tiles(graph, f"{AMX},-amx-tile")
    require_cpu(AMX)
    check_rows(form, rows, AMX, [rows])


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("target", [f"{AMX},-amx-tile", "cpu:x86-64-v3"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_same_by_vectors(target, form):
    assert uses_tiles(graph_of(form, 45), target)
    require_cpu(target)
    check_rows(form, 45, target, [45])


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("least", [1, 5, 16, 32])
@pytest.mark.parametrize("form", [FORMS[1], FORMS[3], FORMS[9]], ids=str)
def test_any_number_of_rows(form, least):
    rows = dims.symbol(Dim("rows", least, 200, typical=100))
    check_rows(form, rows, "cpu", [n for n in (1, 3, 4, 5, 15, 16, 31, 32, 33, 200) if n >= least])


@pytest.mark.parametrize(
    ("form", "rows"),
    [
        (Form(48, 120, 24, I4, BF16), 64),  # groups are no whole tiles
        (Form(48, 128, 32, I4, F32), 64),
        (Form(48, 144, 48, I4, I8, scaled_x=True), 64),
        (Form(16, 64, 0, I8, BF16), 64),  # codes are stored (K, N)
        (FORMS[0], 15),
    ],
    ids=str,
)
def test_others_are_multiplied_otherwise(form, rows):
    assert not uses_tiles(graph_of(form, rows), AMX)
