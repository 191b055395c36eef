"""Trip counts of kernels: of loops made by hand, and of schedules, where invocations share lines."""

import pytest
from support.graphs import A0, F32, maps, matmul

from mansard.codegen.kernel import KernelBuilder
from mansard.codegen.kernel.trip_counts import loop_iterations
from mansard.codegen.schedules import schedule
from mansard.compiler.targets import backend
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap
from mansard.passes.fusion.fuse import fuse

TARGET = "vulkan:1.3+subgroup_arithmetic"


def kernel() -> KernelBuilder:
    return KernelBuilder("k", [(F32, True)], 1, workgroup=(64, 1, 1), index=DType.I32)


def iterations(b: KernelBuilder, *params: int, grid: tuple[int, int, int] = (1, 1, 1)) -> int:
    return loop_iterations(b.build(), params, grid)


def test_invocations_and_workgroups_share_a_loop():
    b = kernel()
    start = b.add(b.mul(b.workgroup_id(0), b.idx(64)), b.local_id(0))
    with b.for_(start, b.param(0), b.idx(64 * 5)):
        pass
    assert iterations(b, 64 * 5 * 7 + 1, grid=(5, 1, 1)) == 8


def test_a_copy_says_as_much_as_what_it_is_made_from():
    b = kernel()
    start = b.early(b.add(b.mul(b.workgroup_id(0), b.idx(64)), b.early(b.local_id(0))))
    with b.for_(start, b.early(b.param(0)), b.idx(64 * 5)):
        pass
    assert iterations(b, 64 * 5 * 7 + 1, grid=(5, 1, 1)) == 8


def test_a_tile_is_as_long_as_a_tile_wherever_it_begins():
    b = kernel()
    elements = b.mul(b.param(0), b.idx(16))
    with b.for_(b.workgroup_id(0), b.param(0), b.idx(3)) as tile:
        first = b.mul(tile.index, b.idx(16))
        with b.for_(first, b.binary("min", b.add(first, b.idx(16)), elements)):
            pass
    assert iterations(b, 9, grid=(3, 1, 1)) == 3 * (1 + 16)
    assert iterations(b, 12, grid=(3, 1, 1)) == 4 * (1 + 16)


def test_one_of_two_branches_is_taken_and_what_memory_says_is_unknown():
    b = kernel()
    condition = b.compare("lt", b.local_id(0), b.idx(3))
    with b.if_(condition), b.for_(b.idx(0), b.idx(10)):
        pass
    with b.for_(b.idx(0), b.binary("rem", b.param(0), b.idx(8))):
        pass
    assert iterations(b, 1000) == 10 + 7
    count = b.cast(b.load(b.bindings[0], b.idx(0)), DType.I32)
    with b.for_(b.idx(0), count):
        pass
    assert iterations(b, 1000) > 1 << 31


def test_quotients_and_remainders_of_what_may_be_negative_are_bounded():
    b = kernel()
    place = b.sub(b.workgroup_id(0), b.idx(4))  # -4 … 5: a part of a kernel that begins at workgroup 4
    with b.for_(b.binary("div", place, b.idx(2)), b.idx(5)):
        pass
    with b.for_(b.binary("rem", place, b.idx(3)), b.idx(1)):
        pass
    assert iterations(b, 0, grid=(10, 1, 1)) == (5 + 2) + (1 + 2)


def test_the_largest_of_a_vectors_lanes_is_bounded_as_they_are():
    b = kernel()
    lanes = b.add(b.splat(b.local_id(0), 4), b.iota(4, DType.I32))
    rest = b.binary("rem", lanes, b.splat(b.idx(2), 4))
    with b.for_(b.idx(0), b.reduce("max", rest)):
        pass
    assert iterations(b) == 1


def bound(b: GraphBuilder, *outputs) -> int:
    (dispatch,) = fuse(b.build(list(outputs))).dispatches
    return schedule(dispatch, backend("vulkan").parse_target(TARGET), "k").loop_iterations()


@pytest.mark.parametrize("combiner", ["add", "argmax"])
@pytest.mark.parametrize("across", [False, True])
def test_long_rows_are_shared(combiner, across):
    b = GraphBuilder()
    shape = (300, 1 << 20)
    x = b.input("x", shape[::-1] if across else shape, F32)
    index = maps(1, 0) if across else IndexMap.identity(2)
    y = b.generic([x], [index], shape, A0, reduced=1, combiner=combiner)
    # A workgroup of 128 shares a row, or sixteen invocations of it; each reads up to four elements at a time.
    assert (1 << 20) // (128 * 4) <= bound(b, y) <= (1 << 20) // 16 + 2


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


def test_a_target_refuses_what_its_driver_would_cut_short():
    vulkan = backend("vulkan")
    b = GraphBuilder()
    product = matmul(b, b.input("x", (8, 70000), F32), b.input("w", (70000, 8), F32))
    (dispatch,) = fuse(b.build([product])).dispatches
    assert vulkan.refuses(dispatch, vulkan.parse_target(TARGET)) is None
    reason = vulkan.refuses(dispatch, vulkan.parse_target(f"{TARGET}+loops=65535"))
    assert reason is not None and reason.endswith("the driver stops after 65535")
    assert vulkan.refuses(dispatch, vulkan.parse_target(f"{TARGET}+loops=10000000")) is None
