"""Windows over bytes, against the interpreter, to the last bit."""

from functools import partial

import numpy as np
import pytest
from support.graph_runner import run
from support.kernels.pairs import pairs
from support.quantised.windows import CHANNELS, DENSE, PICTURES, window_graph

from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules import choose
from mansard.codegen.schedules.cpu import contraction, window, window_depthwise, window_dot
from mansard.codegen.schedules.cpu import map as maps
from mansard.compiler.targets import resolve_targets
from mansard.ir.interpreter.graph import interpret
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.fusion.fuse import fuse
from mansard.passes.fusion.packable import mark_packable
from mansard.passes.layout.padding import read_padding
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps
from mansard.placement import PlacementOptions


def schedules(graph, name="cpu"):
    (target,) = resolve_targets((name,), PlacementOptions())
    canonical = run_passes(graph, canonical_steps())
    stored = eliminate_dead(partial(read_padding, stored_bytes=True)(canonical))
    dispatches = mark_packable(fuse(stored)).dispatches
    nests = [Nest(d) for d in dispatches]
    return [(choose(nest, target.kernel), nest) for nest in nests]


def agrees(window, target):
    graph, inputs = window_graph(window)
    np.testing.assert_array_equal(run(graph, inputs, target)[0], interpret(graph, inputs)[0])


@pairs("name", [*DENSE], "target", ["cpu", "cpu:x86-64-v3"])
def test_windows_of_all_channels_are_dot_products(name, target):
    graph, _ = window_graph(DENSE[name])
    assert [schedule for schedule, _ in schedules(graph)] == [window_dot.schedule]
    agrees(DENSE[name], target)


@pairs("name", [*PICTURES], "target", ["cpu", "cpu:x86-64-v3"])
def test_padding_that_is_no_zero_is_stored_once(name, target):
    graph, _ = window_graph(PICTURES[name])
    (padding, _), (product, nest) = schedules(graph)
    assert padding is maps.schedule
    assert product is window_dot.schedule or contraction.is_dot_gemm(nest)
    agrees(PICTURES[name], target)


@pairs("name", [*CHANNELS], "target", ["cpu", "cpu:x86-64-v3"])
def test_windows_of_single_channels(name, target):
    graph, _ = window_graph(CHANNELS[name])
    assert len(schedules(graph)) == 1
    agrees(CHANNELS[name], target)


@pytest.mark.parametrize("name", CHANNELS)
def test_four_columns_of_unsigned_bytes_are_one_factor_where_a_cpu_has_the_instructions(name):
    graph, _ = window_graph(CHANNELS[name])
    fours = {"3x3", "strided", "without padding", "5x5", "7x7, strided", "strided by 3"}
    ((with_, _),) = schedules(
        graph, "cpu:x86_64+avx,+avx2,+avx512f,+avx512bw,+avx512vl,+avx512vnni,+avx512vbmi"
    )
    assert (with_ is window_depthwise.schedule) == (name in fours)
    ((without, _),) = schedules(graph, "cpu:x86-64-v3")
    assert (without is window.schedule) == (name != "zero point")
