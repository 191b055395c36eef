"""Branching of throughput problems: the subproblems contain every placement, and each has a tighter bound."""

import itertools
import math

import pytest
from support.placements import LATER, UNLIMITED, best_allowed, constrained, profile

from mansard.placement.problem import HOST, DataEdge, PlacementProblem
from mansard.placement.search.beam import BeamSearch
from mansard.placement.search.branching import Subproblem, branch
from mansard.placement.search.choose import choose


def branched(problem, max_count=20):
    """The problem branched again and again, however short its dispatches and copies are."""
    pending, leaves = [Subproblem(problem)], []
    while pending and len(pending) + len(leaves) < max_count:
        parts = branch(pending[0], 1e-9)
        leaves += [] if parts else [pending[0]]
        pending = [*pending[1:], *parts]
    return pending + leaves


# More seeds repeat the searches of the first.
@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 15))]
)
def test_the_best_of_all_subproblems_is_the_optimum(seed):
    problem = constrained(seed)
    best = best_allowed(problem, "throughput")
    subproblems = branched(problem)
    assert len(subproblems) > 1
    results = [
        BeamSearch(subproblem, "throughput").run(UNLIMITED, math.inf, LATER) for subproblem in subproblems
    ]
    if best is None:
        assert all(result.labels is None for result in results)
        return
    assert best * (1 - 1e-9) <= min(result.cost for result in results) <= best * 1.005
    assert best * 0.995 <= min(result.bound for result in results) <= best * (1 + 1e-9)


def test_a_subproblem_is_bounded_by_its_own_placements():
    """A fixed copy is load of its device, whether anything reads it there or not."""
    near, far = profile("near", 0.1, 1.0, True), profile("far", 0.1, 1.0, False)
    edges = (DataEdge(HOST, (0, 1), 3.0), DataEdge(0, (1,), 0.01), DataEdge(1, (HOST,), 0.01))
    problem = PlacementProblem(((1.0, 0.5),) * 2, ((0, 1),) * 2, edges, (near, far))
    copied = Subproblem(problem, frozenset({(0, 1)}))
    assert copied.copy_load == (0.0, 3.0)
    without, with_copy = branch(Subproblem(problem), 2.0)
    assert [subproblem.problem.allowed for subproblem in (without, with_copy)] == [
        ((0,), (0,)),
        ((0, 1), (0, 1)),
    ]
    assert with_copy.fixed_copies == {(0, 1)}
    assert BeamSearch(without, "throughput").bound == pytest.approx(2.0)
    assert BeamSearch(with_copy, "throughput").bound == pytest.approx(3.0)


def test_a_value_of_many_readers_is_copied_in_whole_or_not_at_all():
    """The relaxation divides the copy among its readers, so that a few of them seem to be worth it."""
    near, far = profile("near", 0.01, 1.0, True), profile("far", 0.01, 1.0, False)
    count = 30
    edges = [DataEdge(HOST, tuple(range(count)), 12.0)]
    edges += [DataEdge(n, (n + 1 if n + 1 < count else HOST,), 1e-3) for n in range(count)]
    problem = PlacementProblem(((1.0, 0.5),) * count, ((0, 1),) * count, tuple(edges), (near, far))
    # k on the far device: the greater of 30 - k and 12 + k / 2.
    assert BeamSearch(problem, "throughput").bound < 0.95 * 18
    result = choose(problem, "throughput", 5.0)
    assert result.cost == pytest.approx(18, abs=0.2)
    assert result.bound >= 0.99 * result.cost


def test_values_of_the_same_readers_are_one_branch():
    near, far = profile("near", 0.0, 1.0, True), profile("far", 0.0, 1.0, False)
    edges = (
        DataEdge(HOST, (0, 1), 2.0),
        DataEdge(HOST, (0, 1), 1.0),
        DataEdge(0, (1,), 0.01),
        DataEdge(1, (HOST,), 0.01),
    )
    problem = PlacementProblem(((1.0, 0.5),) * 2, ((0, 1),) * 2, edges, (near, far))
    assert [subproblem.copy_load for subproblem in branch(Subproblem(problem), 2.5)] == [
        (0.0, 0.0),
        (0.0, 3.0),
    ]
    assert branch(Subproblem(problem), 3.5) == []


def test_a_value_is_produced_on_the_device_or_elsewhere():
    near, far = profile("near", 0.0, 1.0, True), profile("far", 0.0, 1.0, False)
    edges = (DataEdge(0, (1, 2), 5.0), DataEdge(1, (HOST,), 0.01), DataEdge(2, (HOST,), 0.01))
    problem = PlacementProblem(((1.0, 1.0),) * 3, ((0, 1),) * 3, edges, (near, far))
    subproblems = branch(Subproblem(problem), 4.0)
    assert len(subproblems) == 3
    for labels in itertools.product((0, 1), repeat=3):
        inside = [
            subproblem
            for subproblem in subproblems
            if all(d in able for d, able in zip(labels, subproblem.problem.allowed, strict=True))
            # A fixed copy is one that the placement makes.
            and all(labels[0] != d and d in labels[1:] for _, d in subproblem.fixed_copies)
        ]
        assert len(inside) == 1
