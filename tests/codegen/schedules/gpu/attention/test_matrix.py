"""Attention on matrix units, run by an emulator of kernel IR, against the reference interpreter."""

import dataclasses

import numpy as np
import pytest
from support.kernels.emulator import run

from mansard import dims
from mansard.codegen.schedules import candidates, schedule
from mansard.codegen.schedules.choose import takes_attention
from mansard.dims import Dim
from mansard.drivers.vulkan.compiler import BACKEND
from mansard.dtypes import DType
from mansard.ir import Generic, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Const
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.fusion.fuse import fuse
from mansard.passes.parallel.split_attention import split_attention
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps

F16, BF16, F32 = DType.F16, DType.BF16, DType.F32
PORTABLE = (
    "vulkan:1.3+float16+cooperative_matrix+bfloat16_matrix+matrix_16x16x16_f16_f16+matrix_16x16x16_f16_f32"
    "+matrix_16x16x16_bf16_f32+workgroup=256+shared=49152+subgroup=32"
)
TARGETS = {
    "registers": BACKEND.parse_target(PORTABLE + "+matrix_reductions+matrix_conversions"),
    "memory": BACKEND.parse_target(PORTABLE),
}
RNG = np.random.default_rng(7)


def check(
    shape,
    dtype,
    target,
    *,
    heads=2,
    key_heads=1,
    mask=None,
    causal=False,
    empty=False,
    sizes=None,
    parts=0,
    guarded=False,
):
    """The first dispatch of an attention on the emulator; ``shape`` is (rows, keys, depth, columns). With
    ``parts`` its keys are split for as many workgroups. ``guarded`` rows give 0, also for a query of NaN."""
    target = TARGETS[target]
    rows, length, depth, columns = shape
    b = GraphBuilder()
    q = b.input("q", (1, heads, rows, depth), dtype)
    k = b.input("k", (1, key_heads, length, depth), dtype)
    v = b.input("v", (1, key_heads, length, columns), dtype)
    m = b.input("m", (1, 1, rows, length), mask) if mask else None
    graph = b.build([b.attention(q, k, v, m, 0.2, causal)])
    sizes = sizes or {}
    arrays = []
    for value in graph.inputs:
        array = RNG.standard_normal(value.type.concrete(sizes)).astype(np.float32)
        arrays.append(array > 0 if value.type.dtype is DType.BOOL else array.astype(value.type.dtype.numpy))
    if empty:
        arrays[3][:, :, 1] = False
    canonical = run_passes(graph, canonical_steps())
    if guarded:
        canonical, arrays[0][:, :, 1] = _guarded(canonical), np.nan
    if parts:
        canonical = eliminate_dead(split_attention(canonical, parts))
    dispatch, *others = fuse(canonical, attention=lambda form: takes_attention(form, target)).dispatches
    assert bool(others) is bool(parts)
    assert "matrix" in candidates(dispatch, target)[0].to_dict()
    scheduled = schedule(dispatch, target, "k")
    BACKEND.compile_kernel(scheduled.kernel, target)
    out = [np.zeros(v.type.concrete(sizes), v.type.dtype.numpy) for v in dispatch.outputs]
    names = {value.name: array for value, array in zip(graph.inputs, arrays, strict=True)}
    grid = tuple(dims.evaluate(g, sizes) for g in scheduled.grid)
    params = [dims.evaluate(p, sizes) for p in scheduled.params]
    run(scheduled.kernel, [*(names[value.name] for value in dispatch.inputs), *out], params, grid, 32)
    results = interpret(dataclasses.replace(canonical, outputs=dispatch.outputs, output_names=()), arrays)
    tolerance = 2e-3 if dtype is F16 else 1.6e-2  # weights and results are rounded to 16 bits
    for actual, expected in zip(out, results, strict=True):
        wide = expected.astype(np.float64)
        bound = tolerance * max(1.0, float(np.abs(wide).max()))
        np.testing.assert_allclose(actual.astype(np.float64), wide, rtol=tolerance, atol=bound)
    return out[0].reshape(1, heads, -1, columns) if not parts else out


def _guarded(graph):
    """The graph with 0 for the weights of rows whose sum is not positive."""
    ops = []
    for op in graph.ops:
        if isinstance(op, Generic) and isinstance(op.body, Apply) and op.body.op == "div":
            zero = Const(0.0, F32)
            positive = Apply("gt", (op.body.args[1], zero), DType.BOOL)
            op = dataclasses.replace(op, body=Apply("select", (positive, op.body, zero), F32))
        ops.append(op)
    return graph.with_ops(ops)


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("target", TARGETS)
def test_causal_rows_in_whole_blocks(dtype, target):
    check((128, 128, 32, 16), dtype, target, causal=True)


@pytest.mark.parametrize("target", TARGETS)
def test_grouped_heads_and_tails_of_rows_and_keys(target):
    check((70, 77, 16, 32), F16, target, heads=4, key_heads=2)


@pytest.mark.parametrize(("mask", "empty"), [(F32, False), (DType.BOOL, True)])
def test_masks(mask, empty):
    outputs = check((40, 130, 16, 16), F16, "registers", mask=mask, empty=empty)
    assert not empty or not outputs[:, :, 1].any()


@pytest.mark.parametrize("target", TARGETS)
def test_guarded_rows_with_a_nan_give_zeros(target):
    assert not check((40, 70, 16, 16), F16, target, guarded=True)[:, :, 1].any()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "heads", "causal"), [(1, 4, False), (3, 6, False), (2, 2, True)])
def test_few_rows_of_all_heads_on_the_same_keys(rows, heads, causal, target):
    check((rows, 128, 32, 16), BF16, target, heads=heads, key_heads=2, causal=causal)


def test_parts_of_the_keys_of_few_rows():
    check((1, 512, 16, 32), F16, "registers", heads=4, key_heads=2, parts=8)


def test_parts_of_keys_whose_number_varies():
    length = dims.symbol(Dim("length", 1, 1000))
    for size in (3, 64, 200):
        check((1, length, 16, 16), F16, "registers", heads=4, mask=F32, parts=8, sizes={"length": size})


def test_causal_with_other_lengths():
    check((33, 70, 16, 16), BF16, "registers", causal=True)


def test_lengths_may_vary():
    length = dims.symbol(Dim("length", 1, 400))
    for size in (5, 64, 130):
        check((length, length, 16, 16), F16, "registers", heads=1, causal=True, sizes={"length": size})


@pytest.mark.parametrize("features", ["", "+matrix_16x16x16_bf16_f32"])
def test_without_a_shape_for_the_type_rows_are_taken_otherwise(features):
    target = BACKEND.parse_target("vulkan:1.3+cooperative_matrix+bfloat16_matrix" + features + "+subgroup=32")
    b = GraphBuilder()
    q, k, v = (b.input(n, (1, 1, 64, 32), F16) for n in "qkv")
    graph = run_passes(b.build([b.attention(q, k, v, None, 0.2)]), canonical_steps())
    (dispatch,) = fuse(graph, attention=lambda form: takes_attention(form, target)).dispatches
    assert all("matrix" not in c.to_dict() for c in candidates(dispatch, target))
