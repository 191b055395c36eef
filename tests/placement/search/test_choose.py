"""Chosen placements beside all there are: the optimum is found, and no bound is above it."""

import dataclasses
import itertools

import numpy as np
import pytest
from support.placements import best_of_all, profile, random_problem

from mansard.errors import PlacementError
from mansard.placement.problem import HOST, DataEdge, PlacementProblem, ResidentConstant
from mansard.placement.search.choose import choose
from mansard.placement.search.construction import pipeline_stages
from mansard.placement.simulate import simulate


# More seeds repeat the searches of the first.
@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 12))]
)
def test_the_optimum_is_found_and_bounded(seed, objective):
    problem = random_problem(seed, devices=2 + seed % 2)
    best = best_of_all(problem, objective)
    result = choose(problem, objective, 5.0)
    assert result.bound <= best * (1 + 1e-9)
    assert result.cost <= best * 1.01
    predicted = simulate(problem, result.labels)
    cost = predicted.seconds if objective == "latency" else max(problem.queue_loads(predicted.load))
    assert result.cost == pytest.approx(cost, rel=1e-12)


def test_constants_stay_within_a_memory_limit():
    fast, slow = profile("fast", 0.0, 1e9, True), profile("slow", 0.0, 1e9, True)
    edges = tuple(DataEdge(n - 1, (n,), 1) for n in range(6))
    constants = tuple(ResidentConstant(10, (n,)) for n in range(6))
    problem = PlacementProblem(
        ((1.0, 2.0),) * 6, ((0, 1),) * 6, edges, (fast, slow), (), constants, (35, None)
    )
    result = choose(problem, "latency", 5.0)
    assert result.labels.count(0) == 3
    assert result.cost == pytest.approx(9.0)
    shared = PlacementProblem(
        problem.times, problem.allowed, edges, problem.profiles, (), (ResidentConstant(40, (0, 5)),), (35, 35)
    )
    with pytest.raises(PlacementError, match="memory limits"):
        choose(shared, "latency", 5.0)


def test_dispatches_of_one_state_are_colocated():
    a, b = profile("a", 0.0, 1e9, True), profile("b", 0.0, 1e9, True)
    times = ((1.0, 5.0), (5.0, 1.0), (1.0, 5.0), (1.0, 1.0))
    edges = tuple(DataEdge(n - 1, (n,), 1) for n in range(4))
    problem = PlacementProblem(times, ((0, 1),) * 4, edges, (a, b), colocated=((0, 1),))
    labels = choose(problem, "latency", 5.0).labels
    assert labels[0] == labels[1]
    assert labels[2] == 0


def test_independent_branches_run_at_once():
    a, b = profile("a", 0.01, 1e9, True), profile("b", 0.01, 1e9, True)
    edges = (DataEdge(HOST, (0, 1), 1), DataEdge(0, (2,), 1), DataEdge(1, (2,), 1), DataEdge(2, (HOST,), 1))
    problem = PlacementProblem(((1.0, 1.0), (1.0, 1.0), (0.1, 0.1)), ((0, 1),) * 3, edges, (a, b))
    result = choose(problem, "latency", 5.0)
    assert result.labels[0] != result.labels[1]
    predicted = simulate(problem, result.labels)
    assert predicted.seconds == pytest.approx(1.11)
    assert simulate(problem, result.labels, lockstep=True).seconds == pytest.approx(2.1)


def test_a_value_is_copied_once_to_each_device_that_reads_it():
    near, far = profile("near", 0.5, 1.0, True), profile("far", 0.5, 2.0, False)
    edges = (DataEdge(HOST, (0,), 4), DataEdge(0, (1, 2), 6), DataEdge(2, (HOST,), 2))
    problem = PlacementProblem(((1.0, 1.0),) * 3, ((0,), (1,), (1,)), edges, (near, far))
    predicted = simulate(problem, [0, 1, 1])
    # One second of work, half of handoff, three of copy, two of work, one of copy back.
    assert predicted.seconds == pytest.approx(1 + 0.5 + 3 + 2 + 1)
    assert predicted.copied_bytes == 6 + 2
    assert predicted.busy == pytest.approx((1.0, 6.0))


def test_handoffs_load_the_reader_and_are_no_work():
    near, far = profile("near", 0.5, 1.0, True), profile("far", 0.25, 2.0, False)
    edges = (
        DataEdge(HOST, (0,), 4),
        DataEdge(0, (1, 2, 3), 6),
        DataEdge(1, (3,), 0),
        DataEdge(3, (HOST,), 2),
    )
    problem = PlacementProblem(((1.0, 1.0),) * 4, ((0,), (1,), (1,), (0,)), edges, (near, far))
    predicted = simulate(problem, [0, 1, 1, 0])
    # To the far device one handoff and a copy of 3 s, for two readers; from it a handoff of an empty value.
    assert predicted.busy == pytest.approx((2.0, 5.0))
    assert predicted.load == pytest.approx((2.25, 5.5))
    assert choose(problem, "throughput", 5.0).cost == pytest.approx(5.5)


def test_waiting_for_a_newer_dispatch_covers_older_ones():
    """What was produced before a dispatch that the other device waited for needs no handoff."""
    a, b = profile("a", 0.5, 1e9, True), profile("b", 0.25, 1e9, True)
    edges = (
        DataEdge(HOST, (0,), 1),
        DataEdge(0, (1, 3, 4), 1),
        DataEdge(1, (4,), 1),
        DataEdge(2, (3,), 1),
        DataEdge(4, (HOST,), 1),
    )
    problem = PlacementProblem(((1.0, 1.0),) * 5, ((0, 1),) * 5, edges, (a, b))
    # The last but one waits for the third, and reads the first; the last waits for the second no more.
    assert simulate(problem, [0, 0, 0, 1, 1]).load == pytest.approx((3.0, 2.5))
    # The fourth waits for the first, and the last for the second.
    assert simulate(problem, [0, 0, 1, 1, 1]).load == pytest.approx((2.0, 4.0))


def test_small_gains_are_not_worth_a_handoff():
    a, b = profile("a", 0.001, 1e9, True), profile("b", 0.001, 1e9, True)
    times = ((1.0, 9.0),) * 10 + ((9.0, 1.0),) * 5 + ((0.01, 1.02),) + ((9.0, 1.0),) * 6
    edges = tuple(DataEdge(n, (n + 1 if n < 21 else HOST,), 1) for n in range(22))
    problem = PlacementProblem(times, ((0, 1),) * 22, edges, (a, b))
    result = choose(problem, "throughput", 5.0)
    assert result.labels == [0] * 10 + [1] * 5 + [0] + [1] * 6  # 9 % of the load
    assert result.given_up == 0
    cheap = dataclasses.replace(problem, times=(*times[:15], (0.01, 0.2), *times[16:]))
    result = choose(cheap, "throughput", 5.0)
    assert result.labels == [0] * 10 + [1] * 12
    assert result.given_up == pytest.approx(
        result.cost - max(simulate(cheap, [0] * 10 + [1] * 5 + [0] + [1] * 6).load)
    )


def test_a_dispatch_too_large_to_balance_is_no_gap():
    a, b = profile("a", 0.0, 1e9, True), profile("b", 0.0, 1e9, True)
    sizes = [0.1] * 30 + [5.0]
    edges = tuple(DataEdge(n, (n + 1 if n < 30 else HOST,), 1) for n in range(31))
    problem = PlacementProblem(tuple((s, s) for s in sizes), ((0, 1),) * 31, edges, (a, b))
    handed = dataclasses.replace(
        problem, profiles=(profile("a", 0.1, 1e9, True), profile("b", 0.1, 1e9, True))
    )
    result = choose(handed, "throughput", 5.0)
    assert result.cost == pytest.approx(5.0, rel=0.025)
    assert result.gap < 0.03


@pytest.mark.parametrize("devices", [2, 3])
def test_throughput_does_not_pay_for_handoffs_with_small_gains(devices):
    """Every dispatch of a chain is somewhat faster on another device than the one before it."""
    count = 60
    profiles = tuple(profile(f"d{i}", 0.5, 1e9, True) for i in range(devices))
    times = tuple(tuple(0.9 if n % devices == d else 1.0 for d in range(devices)) for n in range(count))
    edges = tuple(DataEdge(n, (n + 1 if n < count - 1 else HOST,), 1) for n in range(count))
    problem = PlacementProblem(times, (tuple(range(devices)),) * count, edges, profiles)
    result = choose(problem, "throughput", 1.0)
    assert sum(a != b for a, b in itertools.pairwise(result.labels)) <= devices
    assert result.cost <= count / devices + 0.5
    free = dataclasses.replace(problem, profiles=tuple(profile(p.name, 0.0, 1e9, True) for p in profiles))
    assert choose(free, "throughput", 5.0).cost == pytest.approx(0.9 * count / devices, rel=0.011)


def test_devices_on_the_same_cores_share_a_queue():
    cpu, software = (dataclasses.replace(profile(n, 0.01, 1e9, True), cores="host") for n in ("a", "b"))
    edges = (DataEdge(HOST, (0, 1), 1), DataEdge(0, (2,), 1), DataEdge(1, (2,), 1), DataEdge(2, (HOST,), 1))
    problem = PlacementProblem(((1.0, 1.0), (1.0, 1.0), (0.1, 0.1)), ((0, 1),) * 3, edges, (cpu, software))
    assert simulate(problem, [0, 1, 0]).seconds == pytest.approx(2.11)
    assert choose(problem, "latency", 5.0).cost == pytest.approx(2.1)
    assert choose(problem, "throughput", 5.0).cost == pytest.approx(2.1)
    apart = dataclasses.replace(problem, profiles=(cpu, dataclasses.replace(software, cores="")))
    assert simulate(apart, [0, 1, 0]).seconds == pytest.approx(1.11)


@pytest.mark.parametrize("devices", [2, 3])
def test_stages_have_equal_loads_and_few_handoffs(devices):
    rng = np.random.default_rng(devices)
    profiles = tuple(profile(f"d{i}", 0.1, 1e9, True) for i in range(devices))
    times = tuple((t,) * devices for t in rng.uniform(0.9, 1.1, 60))
    edges = tuple(DataEdge(n, (n + 1 if n < 59 else HOST,), 1) for n in range(60))
    problem = PlacementProblem(times, (tuple(range(devices)),) * 60, edges, profiles)
    result = choose(problem, "throughput", 5.0, gap_tolerance=0.05)
    assert sum(a != b for a, b in itertools.pairwise(result.labels)) == devices - 1
    assert result.gap < 0.05
    only = dataclasses.replace(problem, allowed=((0,), *problem.allowed[1:-1], (0,)))
    assert all(labels[0] == labels[-1] == 0 for labels in pipeline_stages(only))
