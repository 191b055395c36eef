"""The search along the model's order, beside all placements there are and beside independent ways."""

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
from mansard.placement.search.loads import LoadEvaluator
from mansard.placement.search.milp import solve_milp
from mansard.placement.search.objective import cost_function
from mansard.placement.search.queue_weights import dual_weights
from mansard.placement.simulate import simulate


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("seed", range(40))
def test_the_best_is_found_where_nothing_is_dropped(seed, objective):
    problem = constrained(seed)
    best = best_allowed(problem, objective)
    found = BeamSearch(problem, objective).run(UNLIMITED, math.inf, LATER)
    if best is None:
        assert found.labels is None
        assert found.bound == math.inf
        return
    assert problem.is_feasible(found.labels)
    # Copies that take nothing worth mentioning are left out of the search, not out of the cost.
    assert found.cost == cost_function(problem, objective)(found.labels)
    assert best * (1 - 1e-9) <= found.cost <= best * 1.005
    assert found.bound <= best * (1 + 1e-9)
    assert found.bound >= best * 0.995


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize(
    "seed", [*range(40), 303]
)  # 303: nothing more comes to a queue that a value could reach
def test_the_bound_holds_where_states_were_dropped(seed, objective):
    problem = constrained(seed)
    best = best_allowed(problem, objective)
    for width in (1, 2, 4):
        found = BeamSearch(problem, objective).run(width, math.inf, LATER)
        if best is not None:
            assert found.bound <= best * (1 + 1e-9)
        if found.labels is not None:
            assert problem.is_feasible(found.labels)
            assert found.cost >= best * (1 - 1e-9)


@pytest.mark.parametrize("joins", [(1,), (0, 1)])
@pytest.mark.parametrize("seed", range(4))
def test_copies_to_where_values_are_joined_are_known_when_they_are_made(seed, joins):
    """Many values of which one dispatch reads all, without handoffs: bounds know the copies to its device."""
    rng = np.random.default_rng(seed)
    near, far = profile("near", 0.0, 1.0, True), profile("far", 0.0, 1.0, False)
    count = 9
    edges = [DataEdge(HOST, (0, count), 0.3), DataEdge(count, (HOST,), 0.1)]
    edges += [DataEdge(n, (count,), float(rng.uniform(0.1, 0.6))) for n in range(count)]
    times = (*((1.0, float(rng.uniform(0.7, 1.2))) for _ in range(count)), (0.2, 0.2))
    problem = PlacementProblem(times, (*((0, 1),) * count, joins), tuple(edges), (near, far))
    best = best_of_all(problem, "throughput")
    found = BeamSearch(problem, "throughput").run(UNLIMITED, math.inf, LATER)
    assert best * (1 - 1e-9) <= found.cost <= best * 1.005
    assert best * 0.995 <= found.bound <= best * (1 + 1e-9)
    choice = choose(dataclasses.replace(problem, times=(*times[:-1], (0.2, 0.201))), "throughput", 5.0)
    assert choice.cost - choice.given_up <= best * 1.011
    if len(joins) == 1:
        assert BeamSearch(problem, "throughput").bound >= 0.9 * best


def inputs_at_different_times(seed):
    """Inputs of very different sizes, which the host copies first, for devices with memories of their own."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, 6)
    small, some = ((int(rng.integers(1, 6)),) for _ in range(2))
    edges = [DataEdge(HOST, (0,), 3.0), *(edge for edge in problem.edges if edge.producer != HOST)]
    edges += [DataEdge(HOST, small, 0.1), DataEdge(HOST, some, float(rng.uniform(0, 0.5)))]
    profiles = []
    for own in problem.profiles:
        start, copy = float(rng.uniform(0, 0.2)), float(rng.uniform(0.5, 2))
        link = dataclasses.replace(own.link, host_copies=((0.1, 0.05), (1.0, copy)))
        profiles.append(dataclasses.replace(own, unified=False, start=start, link=link))
    return dataclasses.replace(problem, edges=tuple(edges), profiles=tuple(profiles))


@pytest.mark.parametrize("seed", [*range(12), 90])  # 90: a small copy that is late keeps a large one waiting
def test_inputs_arrive_when_they_do(seed):
    problem = inputs_at_different_times(seed)
    best = best_of_all(problem, "latency")
    found = BeamSearch(problem, "latency").run(UNLIMITED, math.inf, LATER)
    assert best * (1 - 1e-9) <= found.cost <= best * 1.005
    assert best * 0.995 <= found.bound <= best * (1 + 1e-9)
    assert BeamSearch(problem, "latency").run(2, math.inf, LATER).bound <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(30))
def test_loads_are_those_of_the_run(seed):
    problem, rng = constrained(seed), np.random.default_rng(seed)
    loads = LoadEvaluator(problem)
    for _ in range(20):
        labels = [int(rng.choice(able)) for able in problem.allowed]
        expected = max(problem.queue_loads(simulate(problem, labels).load))
        assert loads.bottleneck(labels) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("seed", range(12))
def test_the_program_alone_is_a_bound(seed, objective):
    problem = constrained(seed)
    best = best_allowed(problem, objective)
    if best is None:
        with pytest.raises(PlacementError, match="memory limits"):
            solve_milp(problem, objective, 5.0)
        return
    found = solve_milp(problem, objective, 5.0)
    assert found.bound <= best * (1 + 1e-9)
    assert cost_function(problem, objective)(found.labels) >= best * (1 - 1e-9)


def test_no_answer_when_nothing_is_below_what_is_known():
    problem = random_problem(1)
    best = best_of_all(problem, "latency")
    found = BeamSearch(problem, "latency").run(UNLIMITED, best, LATER)
    assert found.labels is None
    assert best * 0.995 <= found.bound <= best


def test_time_that_is_up_gives_no_bound():
    found = BeamSearch(random_problem(1), "latency").run(UNLIMITED, math.inf, 0.0)
    assert (found.labels, found.bound) == (None, 0.0)


def diamonds(count, seed=0):
    """Blocks of two branches that join; the value between blocks is the only one alive there."""
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


def test_an_answer_is_composed_of_the_answers_between_values_that_all_passes_through():
    count = 12
    problem = diamonds(count)
    # Shortest path over the device of each block's last dispatch; every queue is idle there.
    reached = {None: 0.0}
    for block in range(count):
        own = range(3 * block, 3 * block + 3)
        following = {}
        for before, passed in reached.items():
            for labels in itertools.product((0, 1), repeat=3):
                value = passed + segment(problem, own, before, labels)
                if value < following.get(labels[2], math.inf):
                    following[labels[2]] = value
        reached = following
    last = problem.edges[-1].bytes
    expected = min(value + problem.transfer_delay(last, device, HOST)[1] for device, value in reached.items())
    found = BeamSearch(problem, "latency").run(256, math.inf, LATER)
    assert expected * (1 - 1e-9) <= found.cost <= expected * 1.005
    assert found.bound == pytest.approx(expected, rel=5e-3)


def segment(problem, own, before, labels):
    """Seconds from the end of the dispatch before a block to the end of its last one."""
    names = {n: n - own[0] for n in own}
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
    times = tuple(problem.times[n] for n in own)
    if before is None:
        part = PlacementProblem(times, ((0, 1),) * 3, tuple(edges), problem.profiles)
        return simulate(part, labels).seconds
    edges = [dataclasses.replace(m, producer=max(m.producer, 0)) for m in edges]
    part = PlacementProblem(((0.0, 0.0), *times), ((0, 1),) * 4, tuple(edges), problem.profiles)
    return simulate(part, [before, *labels]).seconds


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_two_ways_to_the_best_agree(objective):
    problem = diamonds(6, seed=1)
    frontier = BeamSearch(problem, objective).run(4096, math.inf, LATER)
    program = solve_milp(problem, objective, 10.0)
    cost = cost_function(problem, objective)
    assert frontier.bound <= cost(program.labels) * (1 + 1e-9)
    assert program.bound <= frontier.cost * (1 + 1e-9)
    assert frontier.cost <= cost(program.labels) * 1.005


def test_a_large_copy_that_pays_over_many_layers_is_found():
    """Every layer reads one large input; it pays to copy it once, though each layer alone would not."""
    near, far = profile("near", 0.02, 1.0, True), profile("far", 0.02, 1.0, False)
    count = 30
    edges = [DataEdge(HOST, tuple(range(count)), 4.0)]
    edges += [DataEdge(n, (n + 1 if n + 1 < count else HOST,), 1e-3) for n in range(count)]
    problem = PlacementProblem(((1.0, 0.5),) * count, ((0, 1),) * count, tuple(edges), (near, far))
    found = BeamSearch(problem, "latency").run(8, math.inf, LATER)
    # Four on the near device while the far one copies, the rest there.
    assert found.cost == pytest.approx(4 + 0.02 + 26 * 0.5, abs=0.02)
    assert found.bound >= found.cost * 0.995


def test_memory_that_is_short_is_known_from_the_beginning():
    """What fits where dispatches are faster is a choice of runs, as every change of device is a handoff."""
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


def test_a_heavy_end_is_known_from_the_beginning():
    """Without handoffs the order is free for throughput: small dispatches fill what large ones leave."""
    rng = np.random.default_rng(0)
    sizes = [*rng.uniform(0.01, 0.03, 60), 1.0, 0.9]
    devices = tuple(profile(name, 0.0, 1e9, True) for name in "abc")
    edges = [DataEdge(n, (n + 1 if n + 1 < len(sizes) else HOST,), 1) for n in range(len(sizes))]
    problem = PlacementProblem(
        tuple((s, 1.5 * s, 2.5 * s) for s in sizes), ((0, 1, 2),) * len(sizes), tuple(edges), devices
    )
    found = BeamSearch(problem, "throughput").run(32, math.inf, LATER)
    assert found.cost <= found.bound * 1.02
    assert found.cost == max(simulate(problem, found.labels).load)


def test_weights_of_devices_bound_the_fullest_queue():
    rng = np.random.default_rng(0)
    times = rng.uniform(0.1, 1.0, (12, 2))
    times[3, 0] = np.inf
    weights = dual_weights(times)
    assert weights.sum() == pytest.approx(1)
    bound = np.where(np.isinf(times), np.inf, weights * np.where(np.isinf(times), 0, times)).min(axis=1).sum()
    fullest = min(
        max(sum(times[n, d] for n, own in enumerate(labels) if own == d) for d in (0, 1))
        for labels in itertools.product((0, 1), repeat=12)
        if labels[3] == 1
    )
    assert 0.8 * fullest < bound <= fullest + 1e-9


def test_choosing_ends_when_the_answer_is_near_enough():
    begin = time.perf_counter()
    choice = choose(diamonds(40), "latency", 600.0)
    assert choice.gap <= 0.01
    assert time.perf_counter() - begin < 300


def test_limits_that_cannot_be_met_are_told():
    problem = diamonds(6)
    constants = tuple(ResidentConstant(10, (n,)) for n in range(18))
    with pytest.raises(PlacementError, match="memory limits"):
        choose(dataclasses.replace(problem, constants=constants, limits=(60, 60)), "latency", 5.0)
