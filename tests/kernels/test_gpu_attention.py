"""Attention on a GPU, against the reference interpreter: whole in one kernel, or split along its keys."""

import ml_dtypes
import numpy as np
import pytest
from support.graph_runner import compare, compiled, outputs
from support.graphs import attention, spelled_out_attention, values

from mansard import dims
from mansard.codegen.schedules import schedule
from mansard.codegen.schedules.choose import takes_attention
from mansard.codegen.schedules.common.attention_nest import AttentionNest, attention_form
from mansard.codegen.schedules.gpu.attention import matrix_tiles
from mansard.compiler.targets import backend
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.passes.fusion.fuse import fuse
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps

pytestmark = pytest.mark.variants(2)

F32, F16, BF16 = DType.F32, DType.F16, DType.BF16


def check(graph, inputs, tolerance=1e-5, kernels=1, device="vulkan"):
    with compiled(graph, device) as model:
        assert model.explain().totals == {device: kernels}
        compare(outputs(model, inputs), interpret(graph, inputs), tolerance, tolerance)


@pytest.mark.parametrize(
    "shape",
    [
        (1, 64, 64, 32, 32),
        (2, 33, 130, 16, 48),  # tails in rows and in keys
        (1, 17, 5, 64, 8),
        (1, 5, 40, 33, 30),  # neither keys nor values in whole vectors
        (1, 4, 20, 256, 256),
        (3, 7, 9, 1, 1),
    ],
)
def test_shapes(shape):
    graph = attention(2, 2, shape)
    check(graph, values(graph))


@pytest.mark.parametrize(("heads", "keys", "rows"), [(6, 2, 1), (5, 1, 3), (6, 2, 40)])
def test_grouped_heads(heads, keys, rows):
    graph = attention(heads, keys, (1, rows, 45, 24, 32))
    check(graph, values(graph))


@pytest.mark.parametrize(("shape", "dtype"), [((2, 2, 50, 60), F32), ((1, 1, 1, 60), DType.BOOL)])
def test_masks(shape, dtype):
    graph = attention(2, 2, (2, 50, 60, 32, 16), mask=(shape, dtype))
    check(graph, values(graph))


@pytest.mark.parametrize(("rows", "dtype", "hidden"), [(5, DType.BOOL, False), (40, F32, -np.inf)])
def test_rows_without_any_key_give_zeros(rows, dtype, hidden):
    graph = attention(2, 1, (1, rows, 40, 16, 16), mask=((1, 1, rows, 40), dtype))
    inputs = values(graph)
    inputs[3][:, :, ::2] = hidden
    with compiled(graph, "vulkan") as model:
        (out,) = outputs(model, inputs)
    assert not out[:, :, ::2].any()
    compare([out], interpret(graph, inputs))


def test_rows_masked_with_the_lowest_number_give_means():
    graph = attention(1, 1, (1, 20, 150, 16, 16), mask=((20, 150), F32))
    inputs = values(graph)
    inputs[3][:] = 0
    inputs[3][1] = np.finfo(np.float32).min
    inputs[3][2, :149] = -np.inf
    check(graph, inputs)


@pytest.mark.parametrize(("rows", "length"), [(6, 6), (100, 100), (20, 150), (60, 20)])
def test_causal(rows, length):
    graph = attention(2, 1, (1, rows, length, 16, 32), causal=True)
    check(graph, values(graph))


def test_large_scores_and_non_numbers_stay_in_their_rows():
    graph = attention(1, 1, (1, 40, 70, 16, 16))
    inputs = values(graph)
    inputs[0][:, :, 3] *= 1e4
    inputs[0][:, :, 20] = np.nan
    check(graph, inputs, 1e-4)


@pytest.mark.parametrize(("dtype", "kind"), [(F16, np.float16), (BF16, ml_dtypes.bfloat16)])
def test_narrow_operands_are_summed_in_f32(dtype, kind):
    graph = attention(4, 2, (1, 20, 70, 32, 48), dtype=dtype, mask=((1, 1, 20, 70), DType.BOOL))
    check(graph, values(graph), 2 * float(ml_dtypes.finfo(kind).eps))


def test_lengths_may_vary():
    rows, length = dims.symbol(Dim("rows", 1, 300)), dims.symbol(Dim("length", 1, 300))
    graph = attention(4, 2, (1, rows, length, 16, 16), causal=True, mask=((1, 1, rows, length), F32))
    with compiled(graph, "vulkan") as model:
        for sizes in ((1, 1), (1, 300), (16, 17), (129, 140)):
            inputs = values(graph, rows=sizes[0], length=sizes[1])
            compare(outputs(model, inputs), interpret(graph, inputs))


def test_keys_and_values_are_read_where_their_parts_lie():
    b = GraphBuilder()
    q = b.input("q", (1, 4, 3, 32), BF16)
    keys = [b.input(f"k{i}", (1, 2, n, 32), BF16) for i, n in enumerate((5, 20, 9))]
    rest = [b.input(f"v{i}", (1, 2, n, 16), BF16) for i, n in enumerate((5, 20, 9))]
    graph = b.build([b.attention(q, b.concat(keys, 2), b.concat(rest, 2), None, 0.3)])
    check(graph, values(graph), 1e-2)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("rows", "longest"), [(20, 300), (1, 2000)])
def test_no_keys_at_all_give_zeros(rows, longest, whole):
    length = dims.symbol(Dim("length", 0, longest))
    graph = attention(2, 2, (1, rows, length, 16, 16)) if whole else spelled_out_attention(rows, length)
    with compiled(graph, "vulkan") as model:
        for size in (0, 7):
            inputs = values(graph, length=size)
            compare(outputs(model, inputs), interpret(graph, inputs))


@pytest.mark.parametrize(("rows", "length", "kernels"), [(20, 70, 1), (4, 2000, 2)])
def test_guarded_rows_with_a_nan_give_zeros(rows, length, kernels):
    graph = spelled_out_attention(rows, length, guarded=True)
    inputs = values(graph)
    inputs[0][1], inputs[0][2, 0], inputs[0][3, 0] = np.nan, np.inf, 1e30
    check(graph, inputs, kernels=kernels)


@pytest.mark.parametrize("shape", [(1, 70, 90, 36, 20), (1, 20, 50, 256, 256), (1, 1, 40, 64, 64)])
def test_what_every_device_has_is_enough(shape):
    graph = attention(2, 2, shape, causal=True)
    check(graph, values(graph), device="vulkan:1.3")


# Few rows ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("length", "dtype", "mask", "causal"),
    [
        (1024, F32, None, False),
        (1000, F32, F32, False),
        (700, F16, DType.BOOL, False),
        (1024, F32, None, True),
    ],
)
def test_keys_of_few_rows_are_split(length, dtype, mask, causal):
    rows = 3 if causal else 1
    shape = ((1, 1, rows, length), mask) if mask else None
    graph = attention(4, 2, (1, rows, length, 32, 16), dtype=dtype, mask=shape, causal=causal)
    check(graph, values(graph), 1e-5 if dtype is F32 else 2e-3, kernels=2)


def test_split_lengths_may_vary():
    length = dims.symbol(Dim("length", 1, 2000))
    graph = attention(4, 2, (1, 1, length, 16, 16), mask=((1, 1, 1, length), DType.BOOL))
    with compiled(graph, "vulkan") as model:
        for size in (1, 300, 1999):
            inputs = values(graph, length=size)
            inputs[3][..., : size // 2] = False  # whole chunks are hidden
            compare(outputs(model, inputs), interpret(graph, inputs))


def test_attention_stays_whole_beside_a_cpu():
    graph = attention(2, 2, (1, 16, 20, 16, 16))
    with compiled(graph, "cpu", "vulkan") as model:
        assert sum(model.explain().totals.values()) == 1


# Matrix units -----------------------------------------------------------------------------------------
def _dispatches(graph, text):
    target = backend("vulkan").parse_target(text)
    return fuse(run_passes(graph, canonical_steps()), attention=lambda form: takes_attention(form, target))


@pytest.mark.parametrize(
    ("shape", "dtype", "taken"),
    [
        ((1, 128, 128, 64, 64), F16, True),
        ((1, 100, 77, 128, 64), BF16, True),
        ((1, 4, 128, 64, 64), F16, True),
        ((1, 4, 30, 64, 64), F16, False),  # too few rows and keys
        ((1, 128, 128, 36, 64), F16, False),  # keys are not whole matrices
        ((1, 128, 128, 64, 64), F32, False),
    ],
)
def test_matrix_units_take_what_lies_in_whole_matrices(shape, dtype, taken):
    graph = attention(4, 2, shape, dtype=dtype, causal=True)
    (dispatch,) = _dispatches(graph, "vulkan:h200").dispatches
    target = backend("vulkan").parse_target("vulkan:h200")
    form = attention_form(dispatch)
    assert bool(matrix_tiles.tiles_for(AttentionNest(dispatch, form), target)) is taken
    compiled = backend("vulkan").compile_kernel(schedule(dispatch, target, "k").kernel, target)
    assert any(name.startswith("matrix_16x16x16") for name in compiled.requires) is taken
