"""Cases of a throughput problem: together they hold every placement, and each has a better bound."""

import itertools
import math

import pytest
from support.placements import LATER, UNLIMITED, best_allowed, constrained, profile

from mansard.placement.problem import HOST, DataEdge, PlacementProblem
from mansard.placement.search.beam import BeamSearch
from mansard.placement.search.branching import Subproblem, branch
from mansard.placement.search.choose import choose


def all_cases(problem, most=20):
    """Divided again and again, whatever the weight."""
    open_cases, closed = [Subproblem(problem)], []
    while open_cases and len(open_cases) + len(closed) < most:
        parts = branch(open_cases[0], 1e-9)
        closed += [] if parts else [open_cases[0]]
        open_cases = [*open_cases[1:], *parts]
    return open_cases + closed


@pytest.mark.parametrize("seed", range(15))
def test_the_best_of_the_cases_is_the_best(seed):
    problem = constrained(seed)
    best = best_allowed(problem, "throughput")
    cases = all_cases(problem)
    assert len(cases) > 1
    found = [BeamSearch(case, "throughput").run(UNLIMITED, math.inf, LATER) for case in cases]
    if best is None:
        assert all(own.labels is None for own in found)
        return
    assert best * (1 - 1e-9) <= min(own.cost for own in found) <= best * 1.005
    assert best * 0.995 <= min(own.bound for own in found) <= best * (1 + 1e-9)


def test_a_case_is_bounded_by_its_placements_alone():
    """What a case says is copied is load there, whether anything reads it or not."""
    near, far = profile("near", 0.1, 1.0, True), profile("far", 0.1, 1.0, False)
    edges = (DataEdge(HOST, (0, 1), 3.0), DataEdge(0, (1,), 0.01), DataEdge(1, (HOST,), 0.01))
    problem = PlacementProblem(((1.0, 0.5),) * 2, ((0, 1),) * 2, edges, (near, far))
    copied = Subproblem(problem, frozenset({(0, 1)}))
    assert copied.copy_load == (0.0, 3.0)
    without, with_copy = branch(Subproblem(problem), 2.0)
    assert [case.problem.allowed for case in (without, with_copy)] == [((0,), (0,)), ((0, 1), (0, 1))]
    assert with_copy.fixed_copies == {(0, 1)}
    assert BeamSearch(without, "throughput").bound == pytest.approx(2.0)
    assert BeamSearch(with_copy, "throughput").bound == pytest.approx(3.0)


def test_a_value_that_many_read_is_copied_in_whole_or_not_at_all():
    """Each reader would pay a small part of the copy, and a few alone would make it worthwhile."""
    near, far = profile("near", 0.01, 1.0, True), profile("far", 0.01, 1.0, False)
    count = 30
    edges = [DataEdge(HOST, tuple(range(count)), 12.0)]
    edges += [DataEdge(n, (n + 1 if n + 1 < count else HOST,), 1e-3) for n in range(count)]
    problem = PlacementProblem(((1.0, 0.5),) * count, ((0, 1),) * count, tuple(edges), (near, far))
    # k on the far device: the greater of 30 - k and 12 + k / 2.
    assert BeamSearch(problem, "throughput").bound < 0.95 * 18
    choice = choose(problem, "throughput", 5.0)
    assert choice.cost == pytest.approx(18, abs=0.2)
    assert choice.bound >= 0.99 * choice.cost


def test_alike_values_are_copied_together():
    near, far = profile("near", 0.0, 1.0, True), profile("far", 0.0, 1.0, False)
    edges = (
        DataEdge(HOST, (0, 1), 2.0),
        DataEdge(HOST, (0, 1), 1.0),
        DataEdge(0, (1,), 0.01),
        DataEdge(1, (HOST,), 0.01),
    )
    problem = PlacementProblem(((1.0, 0.5),) * 2, ((0, 1),) * 2, edges, (near, far))
    assert [case.copy_load for case in branch(Subproblem(problem), 2.5)] == [(0.0, 0.0), (0.0, 3.0)]
    assert branch(Subproblem(problem), 3.5) == []


def test_a_value_is_made_on_the_device_or_elsewhere():
    near, far = profile("near", 0.0, 1.0, True), profile("far", 0.0, 1.0, False)
    edges = (DataEdge(0, (1, 2), 5.0), DataEdge(1, (HOST,), 0.01), DataEdge(2, (HOST,), 0.01))
    problem = PlacementProblem(((1.0, 1.0),) * 3, ((0, 1),) * 3, edges, (near, far))
    cases = branch(Subproblem(problem), 4.0)
    assert len(cases) == 3
    for labels in itertools.product((0, 1), repeat=3):
        inside = [
            case
            for case in cases
            if all(d in able for d, able in zip(labels, case.problem.allowed, strict=True))
            # A copy that a case counts is one that the placement makes.
            and all(labels[0] != d and d in labels[1:] for _, d in case.fixed_copies)
        ]
        assert len(inside) == 1
