"""Products as on Intel's Golden Cove: slow at sums of bf16 pairs, and reading memory in several streams."""

import numpy as np
import pytest
from support.decoders.quantised_weights import Form, graph_of, inputs_of
from support.graph_runner import compare, compiled, outputs
from support.graphs import maps
from support.kernels.runner import require_cpu

from mansard import dims
from mansard.codegen.llvm import target as cpu_target
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.cpu.quantised import gemm, multiplication
from mansard.compiler import CompileOptions
from mansard.compiler.compile import lower_graph
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast

I4, I8, U8, BF16, F32 = DType.I4, DType.I8, DType.U8, DType.BF16, DType.F32
TARGET = "cpu:x86-64-v3"
FORMS = [Form(48, 64, 32, I8, BF16), Form(23, 120, 24, U8, BF16, zeros=U8), Form(1200, 96, 96, I8, BF16, F32)]
ROWS = (1, 2, 9, 15, 16, 40)


@pytest.fixture(autouse=True)
def golden_cove(monkeypatch, tmp_path):
    """The target as such a CPU."""
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cpu_target, "GOLDEN_COVE", frozenset({"x86-64-v3"}))
    monkeypatch.setattr(multiplication, "_BF16_FEATURES", frozenset({"sse2"}))


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("columns", [48, 200, 4096])
def test_a_row_by_weights_in_rows(columns, dtype):
    """Pieces of weights are read in parts, and the last one may be a part itself."""
    require_cpu(TARGET)
    b, random = GraphBuilder("row"), np.random.default_rng(3)
    x, w = b.input("x", (1, 96), dtype), b.input("w", (columns, 96), dtype)
    body = Apply("mul", (Cast(Arg(0, dtype), F32), Cast(Arg(1, dtype), F32)), F32)
    graph = b.build(
        [b.generic([x, w], [maps(0, 2), maps(1, 2)], (1, columns, 96), body, reduced=1, combiner="add")]
    )
    inputs = [random.standard_normal(shape).astype(dtype.numpy) for shape in ((1, 96), (columns, 96))]
    with compiled(graph, TARGET) as model:
        compare(outputs(model, inputs), interpret(graph, inputs), 1e-5, 1e-5)


def weights_of(form, rows):
    kernel_target = cpu_target.parse(TARGET).kernel_target()
    (dispatch,) = lower_graph(graph_of(form, rows), CompileOptions(targets=(TARGET,), cache=False)).dispatches
    nest = Nest(dispatch)
    (root,) = (r for r in nest.roots if r.reduces)
    weights = gemm.find(nest, root, kernel_target)
    assert weights is not None
    return weights, gemm.candidates(nest, weights, kernel_target)[0]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_results(form, rows, shared):
    require_cpu(TARGET)
    graph, inputs = graph_of(form, rows, shared=shared), inputs_of(form, rows)
    with compiled(graph, TARGET) as model:
        compare(outputs(model, inputs), interpret(graph, inputs), 2e-5, 2e-5)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_all_numbers_of_rows_read_the_same_panels(form):
    found = [weights_of(form, rows)[0] for rows in ROWS]
    assert [weights.step for weights in found] == [1, 1, 1, 1, 2, 2]
    assert len({weights.weights.panels for weights in found}) == 1


def test_windows_have_the_sums_of_single_rows():
    """Whatever their largest number of rows."""
    assert weights_of(FORMS[0], dims.symbol(Dim("window", 1, 40, typical=8)))[0].step == 1
    assert weights_of(FORMS[0], dims.symbol(Dim("length", 1, 512, typical=128)))[0].step == 2


def test_one_row_reads_several_panels_side_by_side():
    assert weights_of(FORMS[2], 1)[1]["columns"] == 4  # two panels of two vectors
    assert weights_of(FORMS[0], 1)[1]["columns"] == 2  # more would leave few workgroups


def test_codes_of_4_bits_stay_pairs_and_one_panel():
    weights, parameters = weights_of(Form(1200, 64, 32, I4, BF16), 1)
    assert (weights.step, parameters["columns"]) == (2, 2)
