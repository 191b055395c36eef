"""Attention as one kernel on the CPU, against the reference interpreter."""

import ml_dtypes
import numpy as np
import pytest
from support.graph_runner import compare, compiled, outputs
from support.graphs import attention, spelled_out_attention, values
from support.kernels.pairs import pairs

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder
from mansard.ir.interpreter.graph import interpret

F32 = DType.F32


def check(graph, inputs, tolerance=1e-5, device="cpu"):
    with compiled(graph, device) as model:
        one_key = graph.inputs[1].type.shape[2] == 1  # no contraction is left then
        assert one_key or set(model.explain().totals.values()) == {1}
        compare(outputs(model, inputs), interpret(graph, inputs), tolerance, tolerance)


@pytest.mark.parametrize(
    "shape",
    [
        (1, 64, 64, 32, 32),
        (2, 33, 130, 16, 48),  # tails in rows, and two blocks of keys
        (1, 17, 5, 128, 8),
        (1, 16, 1, 20, 12),  # columns that fill no vector
        (1, 100, 40, 600, 600),  # too deep for tiles of rows
        (1, 1, 300, 64, 64),
        (3, 7, 9, 1, 1),
    ],
)
def test_shapes(shape):
    graph = attention(2, 2, shape)
    check(graph, values(graph))


@pytest.mark.parametrize(("heads", "keys", "rows"), [(6, 2, 1), (5, 1, 3), (6, 2, 40), (4, 4, 3)])
def test_grouped_heads(heads, keys, rows):
    graph = attention(heads, keys, (1, rows, 45, 24, 32))
    check(graph, values(graph))


@pairs(
    *("shape", [(1, 1, 1, 60), (2, 1, 50, 60), (2, 2, 50, 60), (50, 60), (1, 2, 50, 1)]),
    *("dtype", [F32, DType.BOOL]),
)
def test_masks(shape, dtype):
    graph = attention(2, 2, (2, 50, 60, 32, 16), mask=(shape, dtype))
    check(graph, values(graph))


@pytest.mark.parametrize(
    ("rows", "dtype", "hidden"), [(5, DType.BOOL, False), (70, DType.BOOL, False), (20, F32, -np.inf)]
)
def test_rows_without_any_key_give_zeros(rows, dtype, hidden):
    graph = attention(2, 1, (1, rows, 40, 16, 16), mask=((1, 1, rows, 40), dtype))
    inputs = values(graph)
    inputs[3][:, :, ::2] = hidden
    with compiled(graph, "cpu") as model:
        (out,) = outputs(model, inputs)
    assert not out[:, :, ::2].any()
    compare([out], interpret(graph, inputs))


@pytest.mark.parametrize("rows", [4, 48])
def test_rows_masked_with_the_lowest_number_give_means(rows):
    graph = attention(1, 1, (1, rows, 300, 16, 16), mask=((rows, 300), F32))
    inputs = values(graph)
    inputs[3][:] = 0
    inputs[3][1] = np.finfo(np.float32).min
    inputs[3][2, :299] = -np.inf
    check(graph, inputs)


@pytest.mark.parametrize(("rows", "length"), [(6, 6), (100, 100), (20, 300), (300, 20)])
def test_causal(rows, length):
    graph = attention(2, 1, (1, rows, length, 16, 32), causal=True)
    check(graph, values(graph))


def test_large_scores_and_non_numbers_stay_in_their_rows():
    graph = attention(1, 1, (1, 40, 150, 16, 16))
    inputs = values(graph)
    inputs[0][:, :, 3] *= 1e4
    inputs[0][:, :, 20] = np.nan
    check(graph, inputs, 1e-4)


@pytest.mark.parametrize(("dtype", "kind"), [(DType.F16, np.float16), (DType.BF16, ml_dtypes.bfloat16)])
@pytest.mark.parametrize("rows", [1, 50])
def test_narrow_operands_are_summed_in_f32(rows, dtype, kind):
    graph = attention(4, 2, (1, rows, 70, 32, 48), dtype=dtype, mask=((1, 1, rows, 70), DType.BOOL))
    inputs = values(graph)
    check(graph, inputs, 2 * float(ml_dtypes.finfo(kind).eps))


def test_lengths_may_vary():
    rows, length = dims.symbol(Dim("rows", 1, 300)), dims.symbol(Dim("length", 1, 300))
    graph = attention(4, 2, (1, rows, length, 16, 16), causal=True, mask=((1, 1, rows, length), F32))
    with compiled(graph, "cpu") as model:
        for sizes in ((1, 1), (1, 300), (5, 5), (16, 17), (63, 65), (129, 140)):
            inputs = values(graph, rows=sizes[0], length=sizes[1])
            compare(outputs(model, inputs), interpret(graph, inputs))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("rows", [2, 40])
def test_no_keys_at_all_give_zeros(rows, whole):
    length = dims.symbol(Dim("length", 0, 300))
    graph = attention(2, 2, (1, rows, length, 16, 16)) if whole else spelled_out_attention(rows, length)
    with compiled(graph, "cpu") as model:
        assert set(model.explain().totals.values()) == {1}
        for size in (0, 7):
            inputs = values(graph, length=size)
            compare(outputs(model, inputs), interpret(graph, inputs))


@pytest.mark.parametrize(("rows", "length"), [(4, 70), (40, 70), (40, dims.symbol(Dim("length", 0, 100)))])
def test_guarded_rows_with_a_nan_give_zeros(rows, length):
    graph = spelled_out_attention(rows, length, guarded=True)
    with compiled(graph, "cpu") as model:
        assert set(model.explain().totals.values()) == {1}
        for size in (70,) if isinstance(length, int) else (0, 33):
            inputs = values(graph, length=size)
            inputs[0][1], inputs[0][2, 0], inputs[0][3, 0] = np.nan, np.inf, 1e30
            expected = interpret(graph, inputs)
            assert not expected[0][1:3].any()
            compare(outputs(model, inputs), expected)


@pairs(
    *("rows, parts", [(1, (128, 1)), (3, (5, 20, 9)), (40, (150, 40))]),
    *("dtype", [F32, DType.BF16]),
)
def test_keys_and_values_are_read_where_their_parts_lie(rows, parts, dtype):
    b = GraphBuilder()
    q = b.input("q", (1, 4, rows, 32), dtype)
    keys = [b.input(f"k{i}", (1, 2, n, 32), dtype) for i, n in enumerate(parts)]
    rest = [b.input(f"v{i}", (1, 2, n, 16), dtype) for i, n in enumerate(parts)]
    key, value = b.concat(keys, 2), b.concat(rest, 2)
    out = b.attention(q, key, value, None, 0.3)
    last = b.slice(key, (0, 0, sum(parts) - 1, 0), (1, 2, 1, 32), (1, 1, 1, 1))
    graph = b.build([out, last])
    inputs = values(graph)
    with compiled(graph, "cpu") as model:
        assert set(model.explain().totals.values()) == {2}
        tolerance = 1e-5 if dtype is F32 else 1e-2
        compare(outputs(model, inputs), interpret(graph, inputs), tolerance, tolerance)


@pytest.mark.parametrize(
    ("target", "rows"), [("cpu:x86-64-v3", 1), ("cpu:x86-64-v3", 40), ("cpu:x86-64", 40)]
)
def test_other_vector_widths(rows, target):
    graph = attention(4, 2, (1, rows, 40, 24, 20), mask=((1, 1, rows, 40), DType.BOOL))
    check(graph, values(graph), device=target)
