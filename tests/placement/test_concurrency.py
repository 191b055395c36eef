"""Devices that run dispatches of several calls side by side: what that changes, and only for throughput."""

import dataclasses

import pytest
from support.placements import CHIP

from mansard.errors import PlacementError
from mansard.placement.cost import WorkEstimate, load_seconds, seconds
from mansard.placement.problem import DataEdge, PlacementProblem, reordered
from mansard.placement.search.choose import choose
from mansard.placement.simulate import simulate
from mansard.targets.profile import DeviceProfile, LinkProfile
from mansard.targets.socs import parse_soc

GPU = DeviceProfile(
    "gpu", 1e12, 4e12, 1 << 20, {"f32": 1e12}, 1e-6, LinkProfile(1e9, 0), True,
    small={"f32": ((1e5, 1e10), (1e9, 1e12))}, concurrency=3.0,
)  # fmt: skip


def load(work, profile):
    return load_seconds(work, profile, seconds(work, profile))


def test_small_dispatches_share_a_device():
    small = WorkEstimate(1000, 10**5, "f32")
    assert seconds(small, GPU) == pytest.approx(1e-5)
    assert load(small, GPU) == pytest.approx(1e-5 / 3)


def test_large_dispatches_take_what_they_take_at_full_rate():
    large = WorkEstimate(1000, 10**10, "f32")
    assert load(large, GPU) == seconds(large, GPU)
    middle = WorkEstimate(1000, 4 * 10**8, "f32")
    assert seconds(middle, GPU) / 3 < load(middle, GPU) == pytest.approx(4e-4)
    assert load(middle, GPU) < seconds(middle, GPU)
    moving = WorkEstimate(10**9, 10**5, "f32")
    assert load(moving, GPU) == pytest.approx(1e-3)


def test_a_device_with_one_queue_has_loads_that_are_times():
    alone = dataclasses.replace(GPU, concurrency=1.0)
    for operations in (10**5, 10**8, 10**10):
        work = WorkEstimate(1000, operations, "f32")
        assert load(work, alone) == seconds(work, alone)


def chain(loads=()):
    """Two devices as fast as each other, the second of which does three things at a time."""
    profiles = (dataclasses.replace(GPU, name="one"), dataclasses.replace(GPU, name="three"))
    edges = tuple(DataEdge(n, (n + 1,), 0) for n in range(3))
    return PlacementProblem(((1.0, 1.0),) * 4, ((0, 1),) * 4, edges, profiles, loads=loads)


@pytest.mark.parametrize("seconds", [0.2])
def test_throughput_counts_loads_and_latency_does_not(seconds):
    problem = chain(((1.0, 1 / 3),) * 4)
    result = choose(problem, "throughput", seconds)
    assert sorted(result.labels) == [0, 1, 1, 1]
    assert result.cost == pytest.approx(1.0)
    assert choose(problem, "latency", seconds).cost == pytest.approx(4.0)
    run = simulate(problem, result.labels)
    assert run.seconds == pytest.approx(4.0)
    assert run.load == pytest.approx((1.0, 1.0))
    assert run.busy == pytest.approx((1.0, 3.0))


def test_loads_follow_another_order():
    problem = chain(tuple((1.0, n / 10) for n in range(4)))
    problem = dataclasses.replace(problem, edges=())
    assert reordered(problem, [3, 1, 2, 0]).loads == tuple((1.0, n / 10) for n in (3, 1, 2, 0))
    assert reordered(problem, [3, 1, 2, 0]).for_throughput.times == tuple((1.0, n / 10) for n in (3, 1, 2, 0))
    assert chain().for_throughput == chain()


def test_a_chip_says_it():
    soc = parse_soc(CHIP.replace("[vulkan]", "[vulkan]\nconcurrency = 2.5"), "a chip")
    assert soc.devices["vulkan"].concurrency == 2.5
    assert soc.devices["cpu"].concurrency == 1.0
    with pytest.raises(PlacementError, match="concurrency"):
        parse_soc(CHIP.replace("[vulkan]", "[vulkan]\nconcurrency = 'many'"), "a chip")
