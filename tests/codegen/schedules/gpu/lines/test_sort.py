"""Sorts of few elements for persistent kernels, run by an emulator."""

import numpy as np
import pytest
from support.graphs import F32
from support.kernels.emulator import run

from mansard.codegen.nvptx.persistent import body
from mansard.codegen.schedules import schedule
from mansard.compiler import CompileOptions
from mansard.compiler.compile import lower_graph
from mansard.drivers.vulkan.compiler import BACKEND
from mansard.ir import GraphBuilder
from mansard.ir.interpreter.graph import interpret

H200 = BACKEND.parse_target("vulkan:h200")


@pytest.mark.parametrize(("length", "kept"), [(3, 1), (8, 2), (32, 4), (100, 8)])
def test_few_elements_have_a_whole_subgroup(length, kept):
    b = GraphBuilder()
    graph = b.build([*b.sort(b.input("x", (2, length), F32), 1, True, kept)])
    (dispatch,) = lower_graph(graph, CompileOptions(targets=("vulkan:h200",))).dispatches
    kernel = schedule(dispatch, H200, "k").kernel
    assert body(kernel).threads % 32 == 0
    x = np.round(np.random.default_rng(length).standard_normal((2, length)), 1).astype(np.float32)
    expected = interpret(graph, [x])
    results = [np.zeros(v.type.shape, v.type.dtype.numpy) for v in dispatch.outputs]
    run(kernel, [x, *results], (), (2, 1, 1), 32)
    for actual, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)
