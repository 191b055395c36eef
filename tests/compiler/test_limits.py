"""Bounds on the loops of GPU kernels: lines that many invocations share count as such."""

import pytest
from support.graphs import A0, F32, maps, matmul

from mansard.compiler.limits import gpu_loop_iterations
from mansard.compiler.targets import backend
from mansard.ir import GraphBuilder, IndexMap
from mansard.passes.fusion.fuse import fuse

TARGET = "vulkan:1.3+subgroup_arithmetic"


def bound(b: GraphBuilder, *outputs) -> int:
    (dispatch,) = fuse(b.build(list(outputs))).dispatches
    return gpu_loop_iterations(dispatch, backend("vulkan").parse_target(TARGET))


@pytest.mark.parametrize("combiner", ["add", "argmax"])
@pytest.mark.parametrize("across", [False, True])
def test_long_rows_are_shared(combiner, across):
    b = GraphBuilder()
    shape = (300, 1 << 20)
    x = b.input("x", shape[::-1] if across else shape, F32)
    index = maps(1, 0) if across else IndexMap.identity(2)
    y = b.generic([x], [index], shape, A0, reduced=1, combiner=combiner)
    # Sixteen invocations at least share a row.
    assert (1 << 20) // 16 <= bound(b, y) <= (1 << 20) // 16 + 2


def test_products_are_summed_by_one_invocation():
    b = GraphBuilder()
    y = matmul(b, b.input("x", (8, 70000), F32), b.input("w", (70000, 8), F32))
    assert bound(b, y) >= 70000


def test_sorting_networks_and_blocks_of_running_sums_are_short():
    b = GraphBuilder()
    assert bound(b, *b.sort(b.input("x", (9, 2048), F32), 1)) < 8192
    b = GraphBuilder()
    # A line too long for shared memory: every element is compared with all of it.
    assert bound(b, *b.sort(b.input("x", (9, 100000), F32), 1)) >= 100000
    b = GraphBuilder()
    assert bound(b, b.scan(b.input("x", (9, 100000), F32), 1)) < 100000
    b = GraphBuilder()
    assert bound(b, b.scan(b.input("x", (100000, 9), F32), 0)) >= 100000
