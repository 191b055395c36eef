"""Attention split along its keys: the same meaning, and which attentions are left alone."""

import numpy as np
import pytest
from support.ir_graphs import BOOL, F32, random

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.verify import verify
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.fusion.fuse import fuse
from mansard.passes.parallel.split_attention import CHUNKS, split_attention
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps


def build(rows, length, *, heads=4, key_heads=2, mask=None, causal=False, dtype=F32):
    b = GraphBuilder()
    q = b.input("q", (1, heads, rows, 8), dtype)
    k = b.input("k", (1, key_heads, length, 8), dtype)
    v = b.input("v", (1, key_heads, length, 6), dtype)
    m = b.input("m", (1, 1, rows, length), mask) if mask else None
    return run_passes(b.build([b.attention(q, k, v, m, 0.3, causal)]), canonical_steps())


def split(graph, workgroups=64, **kwargs):
    return eliminate_dead(split_attention(graph, workgroups, **kwargs))


@pytest.mark.parametrize("one_launch", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "mask"), [(512, None), (700, BOOL), (600, F32), (1024, BOOL)])
def test_the_meaning_stays(length, mask, causal, one_launch):
    graph = build(3, length, mask=mask, causal=causal)
    after = split(graph, one_launch=one_launch)
    assert after is not graph
    verify(after)
    inputs = [random(v.type.concrete({}), v.type.dtype, seed=i) for i, v in enumerate(graph.inputs)]
    if mask is BOOL:
        inputs[3][..., 1, :] = False  # a row without a key
        inputs[3][..., 2, : length // 2] = False  # and one without the first chunks
    for a, b in zip(interpret(after, inputs), interpret(graph, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_lengths_may_vary():
    length = dims.symbol(Dim("length", 1, 2000))
    graph = build(1, length, mask=F32, dtype=DType.F16)
    after = split(graph)
    for size in (1, 63, 128, 700):
        sizes = {"length": size}
        inputs = [random(v.type.concrete(sizes), v.type.dtype, seed=i) for i, v in enumerate(graph.inputs)]
        (a,), (b,) = interpret(after, inputs), interpret(graph, inputs)
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=2e-3, atol=2e-3)


def test_parts_are_one_kernel_and_the_merge_another():
    graph = split(build(1, 1024))
    whole = fuse(graph, attention=lambda form: form.partial is not None)
    assert [(d.name, len(d.outputs)) for d in whole.dispatches] == [("attention", 3), ("rows", 1)]


@pytest.mark.parametrize(
    ("rows", "length", "chunk"),
    [
        (1, 512, 32),  # no smaller ones
        (1, 1096, 40),  # 28 chunks of 8 heads, of 264 workgroups at a time, an eighth of which is left free
        (1, 2120, 80),
        (1, 16384, 592),
        (20, 1096, 32),  # many rows
    ],
)
def test_chunks_of_few_rows_fit_a_persistent_kernel(rows, length, chunk):
    graph = build(rows, length, heads=8, key_heads=8)

    def extents(**kwargs):
        ops = split(graph, 528, **kwargs).ops
        return {op.extents[-2:] for op in ops if getattr(op, "combiner", None) == "max"}

    assert (-(-length // chunk), chunk) in extents(one_launch=True)
    assert chunk in CHUNKS or (-(-length // chunk), chunk) not in extents(), "for other targets"


def test_a_window_of_rows_that_share_keys_is_split():
    rows = dims.symbol(Dim("rows", 1, 8, typical=4))
    graph = build(rows, 1024, heads=8, key_heads=2)
    assert split_attention(graph, 64) is not graph


@pytest.mark.parametrize(
    ("rows", "length", "heads"),
    [(40, 1024, 4), (1, 300, 4), (1, 1024, 128)],  # many rows, few keys, enough heads
)
def test_what_gains_nothing_stays(rows, length, heads):
    graph = build(rows, length, heads=heads, key_heads=heads)
    assert split_attention(graph, 64) is graph


def test_keys_joined_from_parts_are_read_where_they_lie():
    b = GraphBuilder()
    q = b.input("q", (1, 2, 1, 8), F32)
    keys = [b.input(f"k{n}", (1, 2, n, 8), F32) for n in (1023, 1)]
    values = [b.input(f"v{n}", (1, 2, n, 8), F32) for n in (1023, 1)]
    out = b.attention(q, b.concat(keys, 2), b.concat(values, 2), None, 0.3)
    graph = run_passes(b.build([out]), canonical_steps())
    assert split_attention(graph, 64) is graph
