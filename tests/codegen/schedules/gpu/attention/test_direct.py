"""Attention of few rows on a GPU, whose keys and values are not copied to workgroup memory."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from support.graph_runner import compare, compiled, outputs
from support.graphs import attention, values
from support.kernels.emulator import run

from mansard import dims
from mansard.codegen.schedules import schedule
from mansard.codegen.schedules.common.attention_nest import (
    AttentionNest,
    attention_form,
    classify,
    distribute,
)
from mansard.codegen.schedules.gpu.attention.direct import direct_tile
from mansard.compiler.targets import backend
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.passes.fusion.fuse import fuse
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps

pytestmark = [pytest.mark.vulkan, pytest.mark.variants(2)]
F32, F16, BF16 = DType.F32, DType.F16, DType.BF16


H200 = backend("vulkan").parse_target("vulkan:h200")
PLAIN = backend("vulkan").parse_target("vulkan:1.3")
SMALL = dataclasses.replace(H200, subgroup=(8, 8), workgroup_invocations=256)


def tile(graph, target=H200):
    """The tile of the graph's attention."""
    (dispatch,) = fuse(run_passes(graph, canonical_steps()), attention=lambda form: True).dispatches
    form = attention_form(dispatch)
    assert form is not None
    nest = AttentionNest(dispatch, form)
    return direct_tile(nest, distribute(nest, classify(nest)), target)


def check(graph, inputs, tolerance=1e-5):
    assert tile(graph, SMALL) is not None
    with compiled(graph, "vulkan") as model:
        compare(outputs(model, inputs), interpret(graph, inputs), tolerance, tolerance)


@pytest.mark.parametrize(
    "shape", [(1, 1, 64, 32, 32), (2, 1, 37, 64, 128), (1, 2, 5, 128, 64), (1, 1, 3, 32, 32)]
)
@pytest.mark.parametrize(("heads", "keys"), [(1, 1), (4, 1), (6, 2)])
def test_shapes(shape, heads, keys):
    graph = attention(heads, keys, shape)
    check(graph, values(graph))


@pytest.mark.parametrize(
    ("heads", "length", "keys"),
    [
        (2, 32, 4),  # one block
        (2, 40, 5),
        (2, 72, 5),  # two, and 64 keys at a time take too many registers
        (4, 72, 3),  # more rows: sums that one block leaves to the next take registers too
        (2, 128, 6),
    ],
)
def test_as_few_blocks_as_registers_allow(heads, length, keys):
    found = tile(attention(heads, 1, (1, 1, length, 128, 128), dtype=BF16))
    assert (found.rows, found.keys) == (heads, keys)


@pytest.mark.parametrize("length", [20, 64])
@pytest.mark.parametrize("dtype", [F32, DType.BOOL])
def test_masks(length, dtype):
    graph = attention(4, 2, (1, 2, length, 32, 32), mask=((1, 1, 2, length), dtype))
    check(graph, values(graph))


def test_causal():
    graph = attention(4, 2, (1, 4, 50, 32, 32), causal=True)
    check(graph, values(graph))


@pytest.mark.parametrize(("dtype", "kind"), [(F16, np.float16), (BF16, ml_dtypes.bfloat16)])
def test_narrow_operands_are_summed_in_f32(dtype, kind):
    graph = attention(8, 2, (1, 1, 70, 128, 128), dtype=dtype)
    check(graph, values(graph), 2 * float(ml_dtypes.finfo(kind).eps))


def test_large_scores_and_non_numbers_stay_in_their_rows():
    graph = attention(2, 1, (1, 3, 40, 32, 32))
    inputs = values(graph)
    inputs[0][:, :, 0] *= 1e4
    inputs[0][:, :, 1] = np.nan
    check(graph, inputs, 1e-4)


def test_rows_without_any_key_give_zeros():
    graph = attention(2, 1, (1, 2, 40, 32, 32), mask=((1, 1, 2, 40), DType.BOOL))
    inputs = values(graph)
    inputs[3][:, :, 1] = False
    check(graph, inputs)


def test_the_length_may_vary():
    length = dims.symbol(Dim("length", 1, 300))
    graph = attention(4, 2, (1, 1, length, 32, 32))
    with compiled(graph, "vulkan") as model:
        for size in (1, 3, 32, 33, 300):
            inputs = values(graph, length=size)
            compare(outputs(model, inputs), interpret(graph, inputs))


@pytest.mark.parametrize("lengths", [(23, 1), (40, 8)])
def test_keys_that_lie_in_two_buffers(lengths):
    """Of which each is a block of its own, even where both together have room in one."""
    b = GraphBuilder()
    q = b.input("q", (1, 4, 1, 32), F32)
    keys, parts = ([b.input(f"{n}{size}", (1, 2, size, 32), F32) for size in lengths] for n in "kv")
    graph = b.build([b.attention(q, b.concat(keys, 2), b.concat(parts, 2), None, 0.3)])
    check(graph, values(graph))


@pytest.mark.parametrize("length", [600, 2000])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_parts_of_the_keys(length, dtype):
    graph = attention(4, 2, (1, 1, length, 64, 64), dtype=dtype, mask=((1, 1, 1, length), DType.BOOL))
    inputs = values(graph)
    with compiled(graph, "vulkan") as model:
        assert model.explain().totals["vulkan"] > 1
        compare(
            outputs(model, inputs), interpret(graph, inputs), *((1e-2,) * 2 if dtype is BF16 else (1e-5,) * 2)
        )


@pytest.mark.parametrize("length", [40, 20, 100])  # one block of keys, some of one, several
@pytest.mark.parametrize(("heads", "rows"), [(2, 1), (4, 1), (2, 3)])
def test_queries_that_other_dispatches_pass_on(heads, rows, length):
    """The workgroup copies them, behind its requests of keys and values where these are one block."""
    graph = attention(heads, 1, (1, rows, length, 128, 128), dtype=BF16)
    (dispatch,) = fuse(run_passes(graph, canonical_steps()), attention=lambda form: True).dispatches
    kernel = schedule(dispatch, H200, "k").kernel
    assert kernel.exchange.bindings
    inputs = values(graph)
    (expected,) = interpret(graph, inputs)
    result = np.zeros(expected.shape, expected.dtype)
    names = dict(zip((v.name for v in graph.inputs), inputs, strict=True))
    arrays = [*(names[v.name] for v in dispatch.inputs), result]
    scheduled = schedule(dispatch, H200, "k")
    run(kernel, arrays, (), tuple(scheduled.grid), 32)
    np.testing.assert_allclose(result.astype(np.float32), expected.astype(np.float32), atol=2e-2)


def test_what_takes_other_kernels():
    assert tile(attention(32, 8, (1, 1, 32, 128, 128))) is not None
    assert tile(attention(32, 8, (1, 3, 32, 128, 128))) is None  # too many rows
    assert tile(attention(32, 8, (1, 1, 32, 80, 128))) is None  # no whole vectors of each invocation
    assert tile(attention(32, 8, (1, 1, 32, 1024, 1024))) is None  # too many elements of each
    assert tile(attention(32, 8, (1, 1, 32, 128, 128)), PLAIN) is None  # subgroups of no known size
