"""Exchanged values in bodies of persistent kernels: what is waited for, and where."""

import contextlib
import dataclasses
import re

import numpy as np
import pytest
from support.graphs import maps
from support.kernels.norm_products import products

from mansard.codegen.kernel import KernelBuilder
from mansard.codegen.kernel.exchanges import exchanged
from mansard.codegen.nvptx.persistent import BodyEmitter, body
from mansard.codegen.nvptx.target import HOPPER
from mansard.codegen.schedules import schedule
from mansard.compiler import CompileOptions
from mansard.compiler.compile import lower_graph
from mansard.compiler.identity import dispatch_from_data, dispatch_key, dispatch_to_data
from mansard.drivers.vulkan.compiler import BACKEND
from mansard.dtypes import DType
from mansard.hal.exchanges import MAX_VECTOR, Exchange
from mansard.ir import Constant, GraphBuilder
from mansard.ir.scalar import Apply, Arg, Cast, Gather, Index

H200 = BACKEND.parse_target("vulkan:h200")
F32, I32, BF16 = DType.F32, DType.I32, DType.BF16
LOAD, STORE, WAIT = "ld.relaxed.gpu.global", "st.relaxed.gpu.global", "setp.eq.u32 lost"


def builder(*bindings, exchange=(0, 1), workgroup=64):
    b = KernelBuilder(
        "k", bindings or [(BF16, False), (BF16, True)], 0, workgroup=(workgroup, 1, 1), index=I32
    )
    b.exchange = Exchange(frozenset(exchange), frozenset({1}))
    return b


def lines(kernel):
    """What of a body's LLVM is of interest here, in order."""
    marks = (LOAD, STORE, WAIT, "bar.sync", "@llvm.nvvm.ex2", "@llvm.fma")
    text = BodyEmitter(kernel, HOPPER, ["!0 = !{}"]).emit()
    return [mark for line in text.splitlines() for mark in marks if mark in line]


def test_loads_are_repeated_and_stores_replace_what_stands_for_nothing():
    b = builder()
    at = b.local_id(0)
    b.store(b.bindings[1], at, b.load(b.bindings[0], at))
    assert lines(b.build()) == [LOAD, LOAD, WAIT, STORE]
    text = body(b.build()).text
    assert "32767" in text, "another NaN than the one of all bits"
    b = builder(exchange=())
    b.store(b.bindings[1], at := b.local_id(0), b.load(b.bindings[0], at))
    assert lines(b.build()) == []


def test_a_value_is_waited_for_where_it_is_used():
    """Casts do not use it."""
    b = builder((BF16, False), (F32, True), (F32, False), exchange=(0,))
    at = b.local_id(0)
    x = b.cast(b.load(b.bindings[0], at), F32)
    b.barrier()
    y = b.unary("exp2_native", b.load(b.bindings[2], at))
    b.store(b.bindings[1], at, b.fma(x, y, y))
    assert lines(b.build()) == [LOAD, "bar.sync", "@llvm.nvvm.ex2", LOAD, WAIT, "@llvm.fma"]


@pytest.mark.parametrize("nested", [False, True])
def test_other_loads_are_converted_where_they_are_used(nested):
    """So that a kernel does not wait for them before it waits for exchanged values."""
    b = builder((F32, False), (F32, True), (BF16, False), exchange=(0,))
    at = b.local_id(0)
    inside = b.compare("lt", at, b.idx(7))
    y = b.select(inside, b.cast(b.load(b.bindings[2], at), F32), b.const(0.0, F32))
    x = b.load(b.bindings[0], at)
    b.barrier()
    with b.if_(inside) if nested else contextlib.nullcontext():
        b.store(b.bindings[1], at, b.fma(b.unary("exp2_native", x), y, y))
    text = BodyEmitter(b.build(), HOPPER, ["!0 = !{}"]).emit()
    places = [text.index(mark) for mark in ("load i16", "bar.sync", WAIT, "ex2", "shl i32", "select", "fma")]
    assert places == sorted(places)
    assert text.count("shl i32") == 1


def test_conversions_are_done_before_a_loop_that_uses_them():
    b = builder((F32, False), (F32, True), (BF16, False), exchange=(0,))
    at = b.local_id(0)
    y = b.cast(b.load(b.bindings[2], at), F32)
    with b.for_(b.idx(0), b.idx(100), inits=[b.const(0.0, F32)]) as loop:
        loop.yield_(b.fma(y, b.load(b.bindings[0], loop.index), loop.carried[0]))
    b.store(b.bindings[1], at, loop.results[0])
    text = BodyEmitter(b.build(), HOPPER, ["!0 = !{}"]).emit()
    assert text.index("shl i32") < text.index(LOAD)


def test_a_conversion_that_several_blocks_use_is_done_once_before_them():
    b = builder((F32, False), (F32, True), (BF16, False), exchange=(0,))
    at = b.local_id(0)
    y = b.cast(b.load(b.bindings[2], at), F32)
    b.barrier()
    for limit in (7, 9):
        with b.if_(b.compare("lt", at, b.idx(limit))):
            b.store(b.bindings[1], at, b.add(y, b.const(float(limit), F32)))
    text = BodyEmitter(b.build(), HOPPER, ["!0 = !{}"]).emit()
    assert text.count("shl i32") == 1
    assert text.index("bar.sync") < text.index("shl i32") < text.index("fadd")


def test_loads_are_waited_for_together():
    b = builder((BF16, False), (F32, True), (F32, False), exchange=(0, 2))
    at = b.local_id(0)
    x, y, z = (b.load(b.bindings[n], at) for n in (0, 2, 2))
    b.store(b.bindings[1], at, b.fma(b.cast(x, F32), y, z))
    assert lines(b.build()) == [LOAD] * 6 + [WAIT, "@llvm.fma"]


def test_each_load_waits_for_its_own_binding():
    """A value that is in ordinary memory may have all bits set."""
    b = builder((F32, False), (F32, True), (F32, False), exchange=(0, 2))
    at = b.local_id(0)
    b.store(b.bindings[1], at, b.add(b.load(b.bindings[0], at), b.load(b.bindings[2], at)))
    text = BodyEmitter(b.build(), HOPPER, ["!0 = !{}"]).emit()
    flags = re.findall(r"and i1 %t\d+, (%exchanged[02])", text)
    assert sorted(flags) == ["%exchanged0", "%exchanged0", "%exchanged2", "%exchanged2"], (
        "once more in the loop"
    )


@pytest.mark.parametrize("also_behind", [False, True])
def test_waits_of_a_block_alone(also_behind):
    """A value that nothing else uses is waited for in the block that does, which not all may reach."""
    b = builder((F32, False), (F32, True), exchange=(0,))
    at = b.local_id(0)
    x = b.load(b.bindings[0], at)
    with b.if_(b.compare("lt", at, b.idx(7))):
        b.barrier()
        b.store(b.bindings[1], at, x)
    if also_behind:
        b.store(b.bindings[1], b.add(at, b.idx(64)), x)
    order = [LOAD, LOAD, WAIT, "bar.sync"] if also_behind else [LOAD, "bar.sync", LOAD, WAIT]
    assert lines(b.build()) == order


def test_waits_in_a_loop():
    """A carried value is there when the next iteration begins."""
    b = builder((F32, False), (F32, True), exchange=(0,))
    at = b.local_id(0)
    start = b.load(b.bindings[0], at)
    with b.for_(b.idx(0), b.idx(100), inits=[start]) as loop:
        loop.yield_(b.load(b.bindings[0], loop.index))
    b.store(b.bindings[1], at, loop.results[0])
    assert lines(b.build()).count(WAIT) == 2


@pytest.mark.parametrize("words, dtype", [(1, BF16), (2, BF16), (4, BF16), (4, F32)])
def test_vectors(words, dtype):
    b = builder((dtype, False), (F32, True), exchange=(0,))
    lanes = words * 32 // dtype.bits
    at = b.mul(b.local_id(0), b.idx(lanes))
    x = b.cast(b.load(b.bindings[0], at, lanes, aligned=True), F32)
    b.store(b.bindings[1], b.local_id(0), b.reduce("add", x))
    text = body(b.build()).text
    form = f"v{words}.b32" if words > 1 else "b32"
    assert len(re.findall(rf"ld\.relaxed\.gpu\.global\.{re.escape(form)}", text)) == 2
    halves = sum(f"{mark}" in text for mark in ("-65538", "-2147450880"))
    assert halves == (2 if dtype is BF16 else 0), "an empty element of two in a word"


def test_other_forms_are_not_exchanged():
    b = builder((BF16, False), (BF16, True), (BF16, False), (BF16, False), exchange=(0, 1, 2, 3))
    at = b.local_id(0)
    gathered = b.load(b.bindings[0], b.iota(4, I32))
    unaligned = b.load(b.bindings[2], at, 4)
    b.store(b.bindings[1], at, b.extract(gathered, 0))
    b.store(b.bindings[1], at, b.extract(unaligned, 0))
    b.store(b.bindings[1], at, b.load(b.bindings[3], at))
    assert exchanged(b.build()) == {1, 3}


def test_bindings_have_a_bit_each():
    bindings = [(F32, False)] * 40 + [(F32, True)]
    b = builder(*bindings, exchange=range(41))
    at = b.local_id(0)
    parts = [b.load(b.bindings[n], at) for n in (0, 30, 31, 39)]
    b.store(b.bindings[40], at, b.add(b.add(parts[0], parts[1]), b.add(parts[2], parts[3])))
    assert body(b.build()).exchange.bindings == set(range(31))


def test_the_exchange_of_kernels():
    """Of products with a norm before them: the vector and the result, no weights."""
    (dispatch,) = lower_graph(
        products(1, 512, 256, BF16), CompileOptions(targets=("vulkan:h200",))
    ).dispatches
    kernel = schedule(dispatch, H200, "k").kernel
    found = body(kernel).exchange
    buffers = (*dispatch.inputs, *dispatch.outputs)
    assert {buffers[n].name for n in found.bindings} >= {v.name for v in dispatch.outputs}
    assert all(buffers[n].type.bytes <= MAX_VECTOR for n in found.bindings)
    assert found.overwrites == {n for n, value in enumerate(buffers) if value in dispatch.outputs}


def test_constants_are_not_exchanged():
    """Whatever methods share them: no kernel waits for what nothing writes."""
    graph = products(1, 512, 256, BF16)
    x, *weights = graph.inputs
    constants = {w: Constant.of(np.zeros(w.type.shape, w.type.dtype.numpy), w.name) for w in weights}
    graph = dataclasses.replace(graph, inputs=(x,), constants=constants)
    (dispatch,) = lower_graph(graph, CompileOptions(targets=("vulkan:h200",))).dispatches
    assert dispatch.constants == set(weights)
    again = dispatch_from_data(dispatch_to_data(dispatch), "again")
    assert dispatch_key(again) == dispatch_key(dispatch)
    shared = dataclasses.replace(dispatch, packable=frozenset())
    buffers = (*dispatch.inputs, *dispatch.outputs)
    bindings = schedule(shared, H200, "k").kernel.exchange.bindings
    assert {buffers[n] for n in bindings} == {x, *dispatch.outputs}
    unknown = dataclasses.replace(shared, constants=frozenset())
    assert dispatch_key(unknown) != dispatch_key(shared)
    others = lower_graph(graph, CompileOptions(targets=("vulkan:1.3",))).dispatches
    assert not any(other.constants for other in others), "equal dispatches share one kernel there"


def test_large_vectors_are_not_exchanged():
    def found(elements):
        b = GraphBuilder()
        x = b.input("x", (1, elements), BF16)
        y = b.generic(
            [x], [maps(0, 1)], (1, elements), Cast(Apply("exp", (Cast(Arg(0, BF16), F32),), F32), BF16)
        )
        (dispatch,) = lower_graph(b.build([y]), CompileOptions(targets=("vulkan:h200",))).dispatches
        return schedule(dispatch, H200, "k").kernel.exchange.bindings

    assert found(1 << 19) == {0, 1}
    assert found((1 << 19) + 8) == set()


def test_tables_of_which_rows_are_read():
    """By maps alone: a sum over gathered elements may read them all."""
    b = GraphBuilder()
    numbers, table = b.input("numbers", (2,), DType.I64), b.input("table", (100, 64), BF16)
    row = Gather(1, (Arg(0, DType.I64), Index(1)), BF16)
    rows = b.generic([numbers, table], [maps(0), None], (2, 64), row)
    scaled = b.generic([rows], [maps(0, 1)], (2, 64), Cast(Apply("neg", (Arg(0, BF16),), BF16), F32))
    sums = b.generic([numbers, table], [maps(0), None], (2, 64), Cast(row, F32), reduced=1, combiner="add")
    found = {}
    for result in (scaled, sums):
        (dispatch,) = lower_graph(b.build([result]), CompileOptions(targets=("vulkan:h200",))).dispatches
        buffers = (*dispatch.inputs, *dispatch.outputs)
        lookups = body(schedule(dispatch, H200, "k").kernel).lookups
        found[result] = [buffers[n].name for n in lookups]
    assert found == {scaled: ["table"], sums: []}
