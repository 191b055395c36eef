"""The reference interpreter against NumPy and PyTorch, op by op."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as tf
from support.ir_graphs import (
    F32,
    I64,
    affine,
    arg,
    call,
    const,
    elementwise,
    index,
    matmul,
    plain,
    random,
    transpose,
)

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.errors import InputError, ShapeContractError, VerificationError
from mansard.ir import Constant, GraphBuilder
from mansard.ir.interpreter.graph import interpret, run_op
from mansard.ir.ops.generic_reference import boxes
from mansard.ir.scalar import DimValue, Gather


def run1(b: GraphBuilder, out, *inputs):
    (result,) = interpret(b.build([out]), list(inputs))
    return result


# Generic ------------------------------------------------------------------------------------
def test_elementwise_broadcast_and_transpose():
    b = GraphBuilder()
    x, v = b.input("x", (3, 4), F32), b.input("v", (4, 1), F32)
    y = b.generic([x, v], [plain(1, 0), plain(0, None)], (4, 3), call("sub", arg(0), arg(1)))
    xa, va = random((3, 4)), random((4, 1), seed=1)
    np.testing.assert_array_equal(run1(b, y, xa, va), xa.T - va)


def test_diagonal_and_reversed_reads():
    b = GraphBuilder()
    x = b.input("x", (4, 5), F32)
    diagonal = b.generic([x], [plain(0, 0)], (4,), arg(0))
    backwards = b.generic([x], [affine(({0: -1}, 3), ({1: -2}, 4))], (4, 3), arg(0))
    xa = random((4, 5))
    got = interpret(b.build([diagonal, backwards]), [xa])
    np.testing.assert_array_equal(got[0], np.diagonal(xa))
    np.testing.assert_array_equal(got[1], xa[::-1, ::-2])


def test_matmul_of_each_dtype():
    for dtype in (DType.F64, F32, DType.I64, DType.I32, DType.I8, DType.U8, DType.F16, DType.BF16):
        b = GraphBuilder()
        x, w = b.input("x", (5, 7), dtype), b.input("w", (7, 6), dtype)
        xa, wa = random((5, 7), dtype), random((7, 6), dtype, seed=1)
        exact = xa.astype(np.float64) @ wa.astype(np.float64)
        got = run1(b, matmul(b, x, w), xa, wa)
        assert got.dtype == dtype.numpy
        if dtype.is_float:
            np.testing.assert_allclose(got.astype(np.float64), exact, rtol=1e-2, atol=2e-2)
        else:
            np.testing.assert_array_equal(got, exact.astype(np.int64).astype(dtype.numpy))


def test_integer_matmul_wraps_where_f64_is_not_exact():
    b = GraphBuilder()
    x, w = b.input("x", (1, 3), I64), b.input("w", (3, 1), I64)
    xa = np.array([[2**62, 3, 2**40 + 1]])
    wa = np.array([[4], [5], [2**40 + 1]])
    assert run1(b, matmul(b, x, w), xa, wa)[0, 0] == (15 + (2**80 + 2**41 + 1) + 2**63) % 2**63


def test_batched_grouped_contraction():
    # (B, M, G, K) x (G, N, K) summed over K, with a reduced dim in one factor only.
    b = GraphBuilder()
    x, w = b.input("x", (2, 3, 4, 5), F32), b.input("w", (4, 6, 5, 7), F32)
    maps = [plain(0, 2, 1, 4), plain(1, 3, 4, 5)]
    y = b.generic([x, w], maps, (2, 4, 3, 6, 5, 7), call("mul", arg(0), arg(1)), reduced=2, combiner="add")
    xa, wa = random((2, 3, 4, 5)), random((4, 6, 5, 7), seed=1)
    expected = np.einsum("bmgk,gnkl->bgmn", xa, wa)
    np.testing.assert_allclose(run1(b, y, xa, wa), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_convolution(groups, monkeypatch):
    monkeypatch.setattr("mansard.ir.ops.generic_reference.PRODUCT_ELEMENTS", 500)  # several boxes
    n, c, h, w, k, stride, dilation = 2, 8, 11, 9, 3, 2, 2
    out_c, per = 16, c // groups
    oh, ow = (h - dilation * (k - 1) - 1) // stride + 1, (w - dilation * (k - 1) - 1) // stride + 1
    b = GraphBuilder()
    x = b.input("x", (n, groups, per, h, w), F32)
    f = b.input("f", (groups, out_c // groups, per, k, k), F32)
    # d0 n, d1 group, d2 channel of group, d3 oh, d4 ow | d5 c, d6 kh, d7 kw
    read = affine(({0: 1}, 0), ({1: 1}, 0), ({5: 1}, 0), ({3: stride, 6: dilation}, 0),
                  ({4: stride, 7: dilation}, 0))  # fmt: skip
    y = b.generic([x, f], [read, plain(1, 2, 5, 6, 7)], (n, groups, out_c // groups, oh, ow, per, k, k),
                  call("mul", arg(0), arg(1)), reduced=3, combiner="add")  # fmt: skip
    xa, fa = random((n, groups, per, h, w)), random((groups, out_c // groups, per, k, k), seed=1)
    expected = tf.conv2d(
        torch.from_numpy(xa).reshape(n, c, h, w), torch.from_numpy(fa).reshape(out_c, per, k, k),
        stride=stride, dilation=dilation, groups=groups,
    )  # fmt: skip
    got = run1(b, y, xa, fa).reshape(n, out_c, oh, ow)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=1e-4)


def test_max_pooling_propagates_nan():
    b = GraphBuilder()
    x = b.input("x", (6, 6), F32)
    read = affine(({0: 2, 2: 1}, 0), ({1: 2, 3: 1}, 0))
    y = b.generic([x], [read], (3, 3, 2, 2), arg(0), reduced=2, combiner="max")
    xa = random((6, 6))
    xa[3, 3] = np.nan
    expected = tf.max_pool2d(torch.from_numpy(xa)[None], 2)[0].numpy()
    np.testing.assert_array_equal(run1(b, y, xa), expected)
    assert np.isnan(expected[1, 1])


@pytest.mark.parametrize(("combiner", "numpy"), [
    ("add", np.sum), ("mul", np.prod), ("min", np.min), ("max", np.max), ("argmin", np.argmin),
    ("argmax", np.argmax),
])  # fmt: skip
def test_reductions_in_several_boxes(combiner, numpy, monkeypatch):
    monkeypatch.setattr("mansard.ir.ops.generic_reference.BOX_POINTS", 7)
    b = GraphBuilder()
    x = b.input("x", (5, 4, 6), F32)
    y = b.generic([x], [plain(0, 2, 1)], (5, 6, 4), arg(0), reduced=1, combiner=combiner)
    xa = random((5, 4, 6))
    np.testing.assert_allclose(run1(b, y, xa), numpy(xa, axis=1), rtol=1e-5)


def test_argmax_takes_the_first_and_nan_wins():
    b = GraphBuilder()
    x = b.input("x", (3, 4), F32)
    low = b.generic([x], [plain(0, 1)], (3, 4), arg(0), reduced=1, combiner="argmin")
    high = b.generic([x], [plain(0, 1)], (3, 4), arg(0), reduced=1, combiner="argmax")
    xa = np.array([[1, 5, 5, 1], [3, np.nan, 9, np.nan], [2, 2, 2, 2]], np.float32)
    got = interpret(b.build([low, high]), [xa])
    assert got[0].tolist() == [0, 1, 0]
    assert got[1].tolist() == [1, 1, 0]


def test_bool_reductions():
    b = GraphBuilder()
    x = b.input("x", (2, 3), DType.BOOL)
    every = b.generic([x], [plain(0, 1)], (2, 3), arg(0, DType.BOOL), reduced=1, combiner="and")
    some = b.generic([x], [plain(0, 1)], (2, 3), arg(0, DType.BOOL), reduced=1, combiner="or")
    got = interpret(b.build([every, some]), [np.array([[1, 1, 1], [0, 1, 0]], bool)])
    assert [g.tolist() for g in got] == [[True, False], [True, True]]


def test_reduction_of_nothing_is_the_neutral_element():
    b = GraphBuilder()
    x = b.input("x", (2, 0), F32)
    outs = [b.generic([x], [plain(0, 1)], (2, 0), arg(0), reduced=1, combiner=c)
            for c in ("add", "mul", "min", "max")]  # fmt: skip
    got = interpret(b.build(outs), [np.zeros((2, 0), np.float32)])
    assert [g[0] for g in got] == [0, 1, np.inf, -np.inf]


def test_f16_sum_accumulates_in_f32():
    b = GraphBuilder()
    x = b.input("x", (4096,), DType.F16)
    y = b.generic([x], [plain(0)], (4096,), arg(0, DType.F16), reduced=1, combiner="add")
    # In f16 the sum of ones stops at 2048.
    assert run1(b, y, np.ones(4096, np.float16)) == 4096


def test_gather_clamps():
    b = GraphBuilder()
    table, ids = b.input("table", (4, 3), F32), b.input("ids", (5,), I64)
    y = b.generic([table, ids], [None, plain(0)], (5, 3), Gather(0, (arg(1, I64), index(1)), F32))
    ta = random((4, 3))
    np.testing.assert_array_equal(run1(b, y, ta, np.array([0, 3, -7, 99, 2])), ta[[0, 3, 0, 3, 2]])


def test_gather_from_an_empty_operand_is_zero():
    b = GraphBuilder()
    x = b.input("x", (0,), F32)
    y = b.generic([x], [None], (2,), Gather(0, (index(0),), F32))
    assert run1(b, y, np.zeros(0, np.float32)).tolist() == [0, 0]


def test_read_outside_an_operand_is_an_error():
    s = dims.symbol(Dim("s", 1, 8))
    b = GraphBuilder()
    x = b.input("x", (s,), F32)
    y = b.generic([x], [affine(({0: 1}, 2))], (3,), arg(0))
    graph = b.build([y])
    np.testing.assert_array_equal(interpret(graph, [np.arange(5, dtype=np.float32)])[0], [2, 3, 4])
    with pytest.raises(VerificationError, match="reads 2 to 4 of a dim of 4"):
        interpret(graph, [np.zeros(4, np.float32)])


def test_boxes_cover_everything_once():
    count = np.zeros((5, 6, 7), int)
    for box in boxes(count.shape, 20):
        assert count[box].size <= 20
        count[box] += 1
    assert (count == 1).all()


# Views and special ops ----------------------------------------------------------------------
def test_views():
    b = GraphBuilder()
    x = b.input("x", (4, 6), F32)
    outs = [
        b.reshape(x, (3, 8)),
        b.slice(x, (1, 0), (2, 3), (2, 2)),
        b.concat([x, b.slice(x, (0, 0), (4, 2), (1, 1))], 1),
        b.pad(x, (1, 0), (0, 2), -1.5),
    ]
    xa = random((4, 6))
    got = interpret(b.build(outs), {"x": xa})
    np.testing.assert_array_equal(got[0], xa.reshape(3, 8))
    np.testing.assert_array_equal(got[1], xa[1:5:2, 0:5:2])
    np.testing.assert_array_equal(got[2], np.concatenate([xa, xa[:, :2]], 1))
    np.testing.assert_array_equal(got[3], np.pad(xa, ((1, 0), (0, 2)), constant_values=-1.5))


@pytest.mark.parametrize("combiner", [None, "add", "mul", "min", "max"])
def test_scatter_applies_rows_in_order_and_drops_outside(combiner):
    b = GraphBuilder()
    t, i, u = b.input("t", (5, 3), F32), b.input("i", (6, 1), I64), b.input("u", (6, 3), F32)
    ta, ua = random((5, 3)), random((6, 3), seed=1)
    rows = np.array([1, 4, 1, -1, 5, 1])
    expected = ta.copy()
    combine = {None: lambda a, b: b, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
    for row, update in zip(rows, ua, strict=True):
        if 0 <= row < 5:
            expected[row] = combine[combiner](expected[row], update)
    got = run1(b, b.scatter(t, i, u, combiner), ta, rows[:, None], ua)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_with_nan_largest(descending):
    b = GraphBuilder()
    x = b.input("x", (2, 7), F32)
    values, order = b.sort(x, 1, descending)
    xa = np.array([[3, 1, np.nan, 1, 3, -np.inf, np.nan], [0, -0.0, 0, 5, 5, 5, 1]], np.float32)
    got = interpret(b.build([values, order]), [xa])
    expected = torch.sort(torch.from_numpy(xa), dim=1, descending=descending, stable=True)
    np.testing.assert_array_equal(got[0], expected.values.numpy())
    np.testing.assert_array_equal(got[1], expected.indices.numpy())


def test_top_k():
    b = GraphBuilder()
    x = b.input("x", (6, 4), DType.BF16)
    values, order = b.sort(x, 0, descending=True, limit=2)
    xa = random((6, 4), DType.BF16)
    got = interpret(b.build([values, order]), [xa])
    expected = np.argsort(-xa.astype(np.float32), axis=0, kind="stable")[:2]
    np.testing.assert_array_equal(got[1], expected)
    np.testing.assert_array_equal(got[0], np.take_along_axis(xa, expected, 0))


def test_scan():
    b = GraphBuilder()
    x = b.input("x", (3, 5), F32)
    outs = [b.scan(x, 1), b.scan(x, 0, "max"), b.scan(x, 1, "mul", inclusive=False)]
    xa = random((3, 5))
    got = interpret(b.build(outs), [xa])
    np.testing.assert_allclose(got[0], np.cumsum(xa, 1), rtol=1e-5)
    np.testing.assert_array_equal(got[1], np.maximum.accumulate(xa, 0))
    expected = np.concatenate([np.ones((3, 1)), np.cumprod(xa, 1)[:, :-1]], 1)
    np.testing.assert_allclose(got[2], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("mask", "causal"), [("none", False), ("none", True), ("bool", False), ("float", False)]
)
def test_attention_equals_pytorch(mask, causal):
    b = GraphBuilder()
    q, k, v = (b.input(n, s, F32) for n, s in [("q", (2, 4, 5, 8)), ("k", (2, 2, 7, 8)), ("v", (2, 2, 7, 6))])
    arrays = [random((2, 4, 5, 8)), random((2, 2, 7, 8), seed=1), random((2, 2, 7, 6), seed=2)]
    m = None
    if mask == "bool":
        m = b.input("m", (2, 1, 5, 7), DType.BOOL)
        arrays.append(random((2, 1, 5, 7), DType.BOOL, seed=3))
        arrays[3][1, 0, 2] = False  # a row with nothing left
    elif mask == "float":
        m = b.input("m", (5, 7), F32)
        arrays.append(random((5, 7), seed=3))
    out = b.attention(q, k, v, m, 0.3, causal)
    t = [torch.from_numpy(a) for a in arrays]
    expected = tf.scaled_dot_product_attention(
        t[0], t[1], t[2], t[3] if m is not None else None, is_causal=causal, scale=0.3, enable_gqa=True
    ).numpy()
    got = run1(b, out, *arrays)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    if mask == "bool":
        assert not got[1, :, 2].any()


def test_assert():
    b = GraphBuilder()
    x = b.input("x", (3,), DType.BOOL)
    b.assert_true(x, "x must hold")
    graph = b.build([x])
    interpret(graph, [np.ones(3, bool)])
    with pytest.raises(InputError, match="x must hold"):
        interpret(graph, [np.array([True, False, True])])


# Symbols, states, inputs --------------------------------------------------------------------
def test_symbols_are_bound_from_inputs():
    s = dims.symbol(Dim("s", 2, 64, 2))
    b = GraphBuilder()
    x = b.input("x", (dims.mul(s, 3), s), F32)
    total = b.generic([x], [plain(0, 1)], (dims.mul(s, 3), s), arg(0), reduced=2, combiner="add")
    count = DimValue(dims.mul(dims.mul(s, s), 3))
    n = b.generic([], [], (), count)
    graph = b.build([total, n])
    got = interpret(graph, {"x": np.ones((12, 4), np.float32)})
    assert (got[0], got[1]) == (48, 48)
    with pytest.raises(ShapeContractError, match=r"x: dim 's' is 66; .* 2 to 64"):
        interpret(graph, [np.ones((198, 66), np.float32)])
    with pytest.raises(ShapeContractError, match="multiples of 2"):
        interpret(graph, [np.ones((9, 3), np.float32)])
    with pytest.raises(InputError, match=r"3\*s \(= 12\)"):
        interpret(graph, [np.ones((8, 4), np.float32)])


def test_symbol_solved_from_an_expression():
    s = dims.symbol(Dim("s", 1, 64))
    b = GraphBuilder()
    x = b.input("x", (dims.add(dims.mul(s, 2), 1),), F32)
    graph = b.build([b.generic([], [], (), DimValue(s)), elementwise(b, "neg", x)])
    assert interpret(graph, [np.zeros(9, np.float32)])[0] == 4
    with pytest.raises(InputError, match="no whole 's'"):
        interpret(graph, [np.zeros(8, np.float32)])


def test_wrong_inputs():
    b = GraphBuilder()
    x = b.input("x", (2, 3), F32)
    graph = b.build([elementwise(b, "neg", x)])
    with pytest.raises(InputError, match="element type f64"):
        interpret(graph, [np.zeros((2, 3))])
    with pytest.raises(InputError, match="shape"):
        interpret(graph, [np.zeros(6, np.float32)])
    with pytest.raises(InputError, match=r"the graph takes \['x'\]"):
        interpret(graph, {"y": np.zeros((2, 3), np.float32)})
    with pytest.raises(InputError, match="2 inputs given"):
        interpret(graph, [np.zeros((2, 3), np.float32)] * 2)


def test_states_live_across_calls():
    b = GraphBuilder()
    x = b.input("x", (2,), F32)
    held = b.state("held", (2,), F32, Constant.of(np.array([10, 20], np.float32)))
    after = elementwise(b, "add", held, x)
    b.update_state(held, after)
    graph = b.build([elementwise(b, "neg", held)])
    states = {}
    first = interpret(graph, [np.array([1, 2], np.float32)], states)
    second = interpret(graph, [np.array([1, 2], np.float32)], states)
    assert first[0].tolist() == [-10, -20]
    assert second[0].tolist() == [-11, -22]
    assert states["held"].tolist() == [12, 24]


def test_constants_are_checked():
    b = GraphBuilder()
    w = b.constant("w", Constant("layer.w", lambda: np.zeros((3, 2), np.float32)), (2, 3), F32)
    with pytest.raises(VerificationError, match=r"layer\.w"):
        interpret(b.build([elementwise(b, "neg", w)]), [])


def test_run_op_checks_the_result_type():
    s = dims.symbol(Dim("s"))
    b = GraphBuilder()
    x = b.input("x", (s,), F32)
    out = b.value("out", (4,), F32)
    from mansard.ir import Concat

    op = Concat((x,), (out,), 0)
    with pytest.raises(VerificationError, match="not 4xf32"):
        run_op(op, [np.zeros(3, np.float32)], {"s": 3})


def test_bf16_is_rounded_once():
    b = GraphBuilder()
    x = b.input("x", (3,), DType.BF16)
    body = call("sub", call("add", arg(0, DType.BF16), const(1.0, DType.BF16)), const(1.0, DType.BF16))
    y = b.generic([x], [plain(0)], (3,), body)
    xa = np.array([0.001, 0.002, 3], ml_dtypes.bfloat16)
    np.testing.assert_allclose(run1(b, y, xa).astype(np.float32), xa.astype(np.float32), rtol=1e-3)


def test_transpose_helper_order():
    b = GraphBuilder()
    x = b.input("x", (2, 3, 4), F32)
    xa = random((2, 3, 4))
    np.testing.assert_array_equal(run1(b, transpose(b, x, (2, 0, 1)), xa), xa.transpose(2, 0, 1))
