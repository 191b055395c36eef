"""Beam search beside all placements there are, and beside other methods."""

import dataclasses
import itertools
import math
import time

import numpy as np
import pytest
from support.placements import (
    LATER,
    UNLIMITED,
    best_allowed,
    best_of_all,
    constrained,
    profile,
    random_problem,
)

from mansard.errors import PlacementError
from mansard.placement.problem import HOST, DataEdge, PlacementProblem, ResidentConstant
from mansard.placement.search.beam import BeamSearch
from mansard.placement.search.choose import choose
from mansard.placement.search.milp import solve_milp
from mansard.placement.search.objective import cost_function
from mansard.placement.simulate import simulate

SEEDS = range(12)
# They repeat the searches of the first.
MORE_SEEDS = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 40)]


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("seed", [*SEEDS, *MORE_SEEDS])
def test_an_unlimited_beam_finds_the_optimum(seed, objective):
    problem = constrained(seed)
    best = best_allowed(problem, objective)
    result = BeamSearch(problem, objective).run(UNLIMITED, math.inf, LATER)
    if best is None:
        assert result.labels is None
        assert result.bound == math.inf
        return
    assert problem.is_feasible(result.labels)
    # Copies that take nothing worth mentioning are left out of the search, not out of the cost.
    assert result.cost == cost_function(problem, objective)(result.labels)
    assert best * (1 - 1e-9) <= result.cost <= best * 1.005
    assert result.bound <= best * (1 + 1e-9)
    assert result.bound >= best * 0.995


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize(
    "seed", [*SEEDS, *MORE_SEEDS, 303]
)  # 303: nothing more comes to a queue that a value could reach
def test_the_bound_holds_where_states_are_dropped(seed, objective):
    problem = constrained(seed)
    best = best_allowed(problem, objective)
    for width in (1, 2, 4):
        result = BeamSearch(problem, objective).run(width, math.inf, LATER)
        if best is not None:
            assert result.bound <= best * (1 + 1e-9)
        if result.labels is not None:
            assert problem.is_feasible(result.labels)
            assert result.cost >= best * (1 - 1e-9)


@pytest.mark.parametrize("joins", [(1,), (0, 1)])
# More seeds repeat the searches of the first.
@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 4))])
def test_copies_to_a_dispatch_of_many_inputs_are_bounded_early(seed, joins):
    """Without handoffs the bounds of many values that one dispatch reads include the copies to its device."""
    rng = np.random.default_rng(seed)
    near, far = profile("near", 0.0, 1.0, True), profile("far", 0.0, 1.0, False)
    count = 9
    edges = [DataEdge(HOST, (0, count), 0.3), DataEdge(count, (HOST,), 0.1)]
    edges += [DataEdge(n, (count,), float(rng.uniform(0.1, 0.6))) for n in range(count)]
    times = (*((1.0, float(rng.uniform(0.7, 1.2))) for _ in range(count)), (0.2, 0.2))
    problem = PlacementProblem(times, (*((0, 1),) * count, joins), tuple(edges), (near, far))
    best = best_of_all(problem, "throughput")
    result = BeamSearch(problem, "throughput").run(UNLIMITED, math.inf, LATER)
    assert best * (1 - 1e-9) <= result.cost <= best * 1.005
    assert best * 0.995 <= result.bound <= best * (1 + 1e-9)
    chosen = choose(dataclasses.replace(problem, times=(*times[:-1], (0.2, 0.201))), "throughput", 5.0)
    assert chosen.cost - chosen.given_up <= best * 1.011
    if len(joins) == 1:
        assert BeamSearch(problem, "throughput").bound >= 0.9 * best


def inputs_at_different_times(seed):
    """Inputs of very different sizes, which the host copies first, for devices with separate memory."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, 6)
    small, some = ((int(rng.integers(1, 6)),) for _ in range(2))
    edges = [DataEdge(HOST, (0,), 3.0), *(edge for edge in problem.edges if edge.producer != HOST)]
    edges += [DataEdge(HOST, small, 0.1), DataEdge(HOST, some, float(rng.uniform(0, 0.5)))]
    profiles = []
    for device_profile in problem.profiles:
        start, copy = float(rng.uniform(0, 0.2)), float(rng.uniform(0.5, 2))
        link = dataclasses.replace(device_profile.link, host_copies=((0.1, 0.05), (1.0, copy)))
        profiles.append(dataclasses.replace(device_profile, unified=False, start=start, link=link))
    return dataclasses.replace(problem, edges=tuple(edges), profiles=tuple(profiles))


@pytest.mark.parametrize("seed", [*range(12), 90])  # 90: a small copy that is late keeps a large one waiting
def test_inputs_are_available_at_different_times(seed):
    problem = inputs_at_different_times(seed)
    best = best_of_all(problem, "latency")
    result = BeamSearch(problem, "latency").run(UNLIMITED, math.inf, LATER)
    assert best * (1 - 1e-9) <= result.cost <= best * 1.005
    assert best * 0.995 <= result.bound <= best * (1 + 1e-9)
    assert BeamSearch(problem, "latency").run(2, math.inf, LATER).bound <= best * (1 + 1e-9)


def test_no_placement_where_none_beats_the_incumbent():
    problem = random_problem(1)
    best = best_of_all(problem, "latency")
    result = BeamSearch(problem, "latency").run(UNLIMITED, best, LATER)
    assert result.labels is None
    assert best * 0.995 <= result.bound <= best


def test_running_out_of_time_gives_no_bound():
    result = BeamSearch(random_problem(1), "latency").run(UNLIMITED, math.inf, 0.0)
    assert (result.labels, result.bound) == (None, 0.0)


def diamonds(count, seed=0):
    """Blocks of two branches that join; the value between blocks is the only live one there."""
    rng = np.random.default_rng(seed)
    profiles = (profile("a", 0.05, 4.0, True), profile("b", 0.15, 4.0, False))
    edges, times = [DataEdge(HOST, (0, 1), 0.1)], []
    for block in range(count):
        first = 3 * block
        edges += [DataEdge(first, (first + 2,), float(rng.uniform(0, 0.3)))]
        edges += [DataEdge(first + 1, (first + 2,), float(rng.uniform(0, 0.3)))]
        after = (first + 3, first + 4) if block + 1 < count else (HOST,)
        edges.append(DataEdge(first + 2, after, float(rng.uniform(0, 0.3))))
        times += [tuple(float(t) for t in rng.uniform(0.1, 1.0, 2)) for _ in range(3)]
    return PlacementProblem(tuple(times), ((0, 1),) * (3 * count), tuple(edges), profiles)


def test_the_optimum_is_composed_of_those_between_articulation_points():
    count = 12
    problem = diamonds(count)
    # Shortest path over the device of each block's last dispatch; every queue is idle there.
    reached = {None: 0.0}
    for block in range(count):
        block_dispatches = range(3 * block, 3 * block + 3)
        following = {}
        for before, passed in reached.items():
            for labels in itertools.product((0, 1), repeat=3):
                value = passed + segment(problem, block_dispatches, before, labels)
                if value < following.get(labels[2], math.inf):
                    following[labels[2]] = value
        reached = following
    last = problem.edges[-1].bytes
    expected = min(value + problem.transfer_delay(last, device, HOST)[1] for device, value in reached.items())
    result = BeamSearch(problem, "latency").run(256, math.inf, LATER)
    assert expected * (1 - 1e-9) <= result.cost <= expected * 1.005
    assert result.bound == pytest.approx(expected, rel=5e-3)


def segment(problem, block_dispatches, before, labels):
    """Seconds from the end of the dispatch before a block to the end of its last one."""
    names = {n: n - block_dispatches[0] for n in block_dispatches}
    edges = []
    for edge in problem.edges:
        consumers = tuple(names[c] for c in edge.consumers if c in names)
        if not consumers:
            continue
        producer = edge.producer
        if before is not None:
            producer = names.get(producer, -2) + 1
            consumers = tuple(c + 1 for c in consumers)
        else:
            producer = names.get(producer, HOST)
        edges.append(DataEdge(producer, consumers, edge.bytes))
    times = tuple(problem.times[n] for n in block_dispatches)
    if before is None:
        part = PlacementProblem(times, ((0, 1),) * 3, tuple(edges), problem.profiles)
        return simulate(part, labels).seconds
    edges = [dataclasses.replace(m, producer=max(m.producer, 0)) for m in edges]
    part = PlacementProblem(((0.0, 0.0), *times), ((0, 1),) * 4, tuple(edges), problem.profiles)
    return simulate(part, [before, *labels]).seconds


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_beam_search_and_milp_agree(objective):
    problem = diamonds(6, seed=1)
    beam = BeamSearch(problem, objective).run(4096, math.inf, LATER)
    program = solve_milp(problem, objective, 10.0)
    cost = cost_function(problem, objective)
    assert beam.bound <= cost(program.labels) * (1 + 1e-9)
    assert program.bound <= beam.cost * (1 + 1e-9)
    assert beam.cost <= cost(program.labels) * 1.005


def test_a_large_copy_that_pays_off_over_many_layers_is_found():
    """Every layer reads one large input: copying it pays off for all of them, for none alone."""
    near, far = profile("near", 0.02, 1.0, True), profile("far", 0.02, 1.0, False)
    count = 30
    edges = [DataEdge(HOST, tuple(range(count)), 4.0)]
    edges += [DataEdge(n, (n + 1 if n + 1 < count else HOST,), 1e-3) for n in range(count)]
    problem = PlacementProblem(((1.0, 0.5),) * count, ((0, 1),) * count, tuple(edges), (near, far))
    result = BeamSearch(problem, "latency").run(8, math.inf, LATER)
    # Four on the near device while the far one copies, the rest there.
    assert result.cost == pytest.approx(4 + 0.02 + 26 * 0.5, abs=0.02)
    assert result.bound >= result.cost * 0.995


def test_limited_memory_has_a_price_from_the_start():
    """What fits on the faster device is a choice of runs, as every change of device is a handoff."""
    near, far = profile("near", 0.3, 1.0, True), profile("far", 0.3, 1.0, True)
    count = 12
    edges = [DataEdge(n, (n + 1 if n + 1 < count else HOST,), 0.01) for n in range(count)]
    times = tuple((2.0, 1.0) if n % 4 else (2.5, 1.0) for n in range(count))
    constants = (
        *(ResidentConstant(10, (n,)) for n in range(count - 1)),
        ResidentConstant(25, (0, count - 1)),
    )
    problem = PlacementProblem(times, ((0, 1),) * count, tuple(edges), (near, far), (), constants, (None, 60))
    best = best_of_all(problem, "latency", problem.is_feasible)
    narrow = BeamSearch(problem, "latency")
    assert 0.95 * best <= narrow.run(1, math.inf, LATER).bound <= best * (1 + 1e-9)
    assert narrow.tables.paths.tails[:, 0].min(axis=1).max() < 0.8 * best  # without a price


def test_large_dispatches_at_the_end_are_balanced_from_the_start():
    """Without handoffs the order is free for throughput: small dispatches balance what large ones leave."""
    rng = np.random.default_rng(0)
    sizes = [*rng.uniform(0.01, 0.03, 60), 1.0, 0.9]
    devices = tuple(profile(name, 0.0, 1e9, True) for name in "abc")
    edges = [DataEdge(n, (n + 1 if n + 1 < len(sizes) else HOST,), 1) for n in range(len(sizes))]
    problem = PlacementProblem(
        tuple((s, 1.5 * s, 2.5 * s) for s in sizes), ((0, 1, 2),) * len(sizes), tuple(edges), devices
    )
    result = BeamSearch(problem, "throughput").run(32, math.inf, LATER)
    assert result.cost <= result.bound * 1.02
    assert result.cost == max(simulate(problem, result.labels).load)


def test_infeasible_limits_are_reported():
    problem = diamonds(6)
    constants = tuple(ResidentConstant(10, (n,)) for n in range(18))
    with pytest.raises(PlacementError, match="memory limits"):
        choose(dataclasses.replace(problem, constants=constants, limits=(60, 60)), "latency", 5.0)


def test_the_search_ends_within_the_gap_tolerance():
    begin = time.perf_counter()
    result = choose(diamonds(40), "latency", 600.0)
    assert result.gap <= 0.01
    assert time.perf_counter() - begin < 300
