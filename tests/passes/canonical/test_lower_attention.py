"""Attention lowered to products and a softmax, against the op's own meaning."""

from __future__ import annotations

import numpy as np
import pytest
from support.ir_graphs import BOOL, F32, random

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import Attention, Generic, GraphBuilder, Reshape
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Const, walk
from mansard.ir.verify import verify
from mansard.passes.canonical.lower_attention import lower_attention
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps

ROWS, LENGTH = 5, 7


def build(
    heads, key_heads, mask_shape=None, mask_dtype=BOOL, causal=False, dtype=F32, symbolic=False, softcap=None
):
    """The graph, its lowered form and random inputs."""
    rows = dims.symbol(Dim("q", 1, 64)) if symbolic else ROWS
    length = dims.symbol(Dim("s", 1, 64)) if symbolic else LENGTH
    b = GraphBuilder()
    shapes = {"q": (2, heads, ROWS, 8), "k": (2, key_heads, LENGTH, 8), "v": (2, key_heads, LENGTH, 6)}
    q = b.input("q", (2, heads, rows, 8), dtype)
    k, v = (b.input(n, (2, key_heads, length, shapes[n][3]), dtype) for n in "kv")
    inputs = [random(s, dtype, seed=i) for i, s in enumerate(shapes.values())]
    mask = None
    if mask_shape is not None:
        named = {ROWS: rows, LENGTH: length}
        mask = b.input("m", tuple(named.get(d, d) for d in mask_shape), mask_dtype)
        inputs.append(random(mask_shape, mask_dtype, seed=9))
    graph = b.build([b.attention(q, k, v, mask, 0.3, causal, softcap)])
    return graph, inputs


def check(graph, inputs, rtol=1e-5, atol=1e-6):
    lowered = lower_attention(graph)
    verify(lowered)
    assert not any(isinstance(op, Attention) for op in lowered.ops)
    assert all(isinstance(op, (Generic, Reshape)) for op in lowered.ops)
    assert lowered.outputs == graph.outputs
    (expected,) = interpret(graph, inputs)
    for after in (lowered, run_passes(graph, canonical_steps())):
        (got,) = interpret(after, inputs)
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol)
    return lowered, expected


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1), (1, 1)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("symbolic", [False, True])
def test_grouped_heads(heads, causal, symbolic):
    check(*build(*heads, causal=causal, symbolic=symbolic))


@pytest.mark.parametrize(
    "shape",
    [(2, 4, ROWS, LENGTH), (2, 1, ROWS, LENGTH), (1, 4, 1, LENGTH), (ROWS, LENGTH), (1, LENGTH), (LENGTH,)],
)
@pytest.mark.parametrize("dtype", [BOOL, F32])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
def test_masks_broadcast(shape, dtype, heads):
    check(*build(*heads, shape, dtype))


@pytest.mark.parametrize("symbolic", [False, True])
def test_masks_over_symbols(symbolic):
    check(*build(4, 2, (2, 1, ROWS, LENGTH), symbolic=symbolic))


def test_scores_with_a_soft_cap_are_capped_before_they_are_masked():
    graph, inputs = build(4, 2, (ROWS, LENGTH), softcap=0.2)
    inputs[3][2] = False
    _, capped = check(graph, inputs)
    _, plain = check(build(4, 2, (ROWS, LENGTH))[0], inputs)
    assert not capped[:, :, 2].any() and np.abs(capped - plain).max() > 0.1


def test_rows_with_nothing_left_are_zero():
    graph, inputs = build(4, 2, (ROWS, LENGTH))
    inputs[3][2] = False
    _, expected = check(graph, inputs)
    assert not expected[:, :, 2].any()
    assert expected[:, :, 1].all()


def test_mask_and_causal_together():
    graph, inputs = build(4, 2, (ROWS, LENGTH), causal=True)
    inputs[3][:, 0] = False  # row 0 sees only position 0, which is masked
    _, expected = check(graph, inputs)
    assert not expected[:, :, 0].any()


def test_float_mask_of_minus_infinity():
    graph, inputs = build(2, 2, (ROWS, LENGTH), F32)
    inputs[3][:, 3] = -np.inf
    check(graph, inputs)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F64])
def test_dtypes(dtype):
    tolerance = 1e-12 if dtype is DType.F64 else 2e-2
    lowered, _ = check(*build(4, 2, dtype=dtype), rtol=tolerance, atol=tolerance)
    scores = next(op for op in lowered.ops if isinstance(op, Generic))
    assert scores.output.type.dtype is (DType.F64 if dtype is DType.F64 else F32)


def test_large_scores_do_not_overflow():
    graph, inputs = build(2, 2)
    inputs[0] *= 1000
    check(graph, inputs, rtol=1e-4)


def test_no_guard_without_a_mask():
    lowered, _ = check(*build(2, 2))
    literals = [n.value for op in lowered.ops if isinstance(op, Generic) for n in walk(op.body)
                if isinstance(n, Const)]  # fmt: skip
    assert literals == [0.3]


def test_keys_are_not_repeated_in_memory():
    lowered, _ = check(*build(8, 2))
    scores = next(op for op in lowered.ops if isinstance(op, Generic))
    assert scores.inputs[1].type.shape == (2, 2, LENGTH, 8)


def test_two_attentions_get_names_of_their_own():
    b = GraphBuilder()
    x = b.input("x", (1, 2, 4, 8), F32)
    y = b.attention(x, x, x, None, 0.5)
    graph = b.build([b.attention(y, y, x, None, 0.5)])
    check(graph, [random((1, 2, 4, 8))])
