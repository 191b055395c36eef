"""Programs for HiGHS: a knapsack, a linear program, limits."""

import itertools

import numpy as np
import pytest

from mansard.placement.search.highs import LinearProgram

SIZES, GAINS, ROOM = (5, 4, 3, 2, 2), (9, 7, 6, 3, 3.5), 8


def knapsack():
    program = LinearProgram()
    items = [program.add_column(cost=-gain, upper=1.0, integer=True) for gain in GAINS]
    program.add_row([(item, float(size)) for item, size in zip(items, SIZES, strict=True)], upper=ROOM)
    return program


def best():
    choices = itertools.product((0, 1), repeat=len(SIZES))
    return max(np.dot(c, GAINS) for c in choices if np.dot(c, SIZES) <= ROOM)


@pytest.mark.parametrize("start", [None, {0: 0.0, 1: 1.0, 2: 0.0, 3: 1.0, 4: 1.0}])
def test_the_optimum_is_found_from_any_start(start):
    solved = knapsack().solve(10.0, start=start)
    assert solved.feasible
    assert np.dot(solved.values, GAINS) == pytest.approx(best())
    assert solved.bound == pytest.approx(-best())


def test_terms_of_one_column_add_up():
    program = LinearProgram()
    x = program.add_column(cost=1.0)
    program.add_row([(x, 1.0), (x, 2.0)], lower=6.0)
    assert program.solve().values == pytest.approx([2.0])


def test_an_infeasible_program_is_reported():
    program = knapsack()
    program.add_row([(0, 1.0), (1, 1.0)], lower=2.0)
    solved = program.solve(10.0)
    assert not solved.feasible
    assert solved.values is None


def test_a_stopped_program_has_a_bound():
    rng = np.random.default_rng(0)
    program = LinearProgram()
    total = program.add_column(cost=1.0)
    chosen = [[program.add_column(upper=1.0, integer=True) for _ in range(6)] for _ in range(60)]
    times = rng.uniform(1, 2, (60, 6))
    for columns in chosen:
        program.add_row([(c, 1.0) for c in columns], 1.0, 1.0)
    for d in range(6):
        program.add_row(
            [(total, 1.0), *((columns[d], -times[n, d]) for n, columns in enumerate(chosen))], 0.0
        )
    solved = program.solve(0.2)
    assert solved.feasible
    bound = times.min(axis=1).sum() / 6
    assert 0.9 * bound <= solved.bound <= 2 * bound
    if solved.values is not None:
        assert solved.values[total] >= solved.bound * (1 - 1e-6)
