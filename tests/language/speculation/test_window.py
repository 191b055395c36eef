"""Lengths of windows, and proposals from the text."""

import pytest

from mansard.language.generation import Sampling
from mansard.language.speculation.lookup import TextLookup
from mansard.language.speculation.window import Timings, WindowLength

SETTINGS = Sampling().rows(1)


def lengths(acceptance, verification, draft=0.0, ahead=False):
    """A policy that has seen windows of that acceptance, with times for 1 to 8 rows."""
    chosen = WindowLength(7, ahead=ahead, free=not draft)
    for _ in range(2):
        chosen.timings.add("single", verification[0])
        chosen.timings.add("draft", draft)
        for rows in range(2, 9):
            chosen.timings.add(rows, verification[rows - 1])
    for number in range(60):
        chosen.observe(1, number % 10 < 10 * acceptance)
    return chosen


def test_the_median_of_the_last_calls_counts():
    timings = Timings()
    assert timings.get("single") is None
    for seconds in (9.0, 8.0, 1.0):  # the first call records
        timings.add("single", seconds)
    assert timings.get("single") == 4.5
    for seconds in (2.0, 3.0, 4.0, 5.0):
        timings.add("single", seconds)
    assert timings.get("single") == 3.0


FLAT, STEEP = [1.0] * 8, [float(rows) for rows in range(1, 9)]


def test_long_windows_where_proposals_are_right_and_rows_cost_little():
    chosen = lengths(0.9, FLAT)
    assert chosen.best(7) == 7 and chosen.best(3) == 3 and chosen.pays(7)
    assert chosen.acceptance == pytest.approx(0.9, abs=0.1)


def test_no_windows_where_every_row_costs_a_step():
    chosen = lengths(0.5, STEEP)
    assert not chosen.pays(chosen.best(7))


def test_slow_drafts_make_windows_short():
    assert lengths(0.8, FLAT, draft=0.01).best(7) == 7
    assert lengths(0.8, FLAT, draft=0.3).best(7) <= 3
    slow = lengths(0.8, FLAT, draft=1.5)
    assert not slow.pays(slow.best(7))


def test_drafting_beside_the_model_costs_less():
    alone, beside = lengths(0.9, FLAT, draft=0.2), lengths(0.9, FLAT, draft=0.2, ahead=True)
    assert beside._rate(4) > 1.2 * alone._rate(4)


def test_rows_that_were_not_measured_are_between_their_neighbours():
    chosen = WindowLength(7, ahead=False, free=True)
    for kind, seconds in (("single", 1.0), (4, 1.6)):
        chosen.timings.add(kind, 9.0)  # the first call records
        chosen.timings.add(kind, seconds)
    assert [chosen._verification(rows) for rows in (1, 2, 3, 4)] == pytest.approx([1.0, 1.2, 1.4, 1.6])
    assert chosen._verification(8) == pytest.approx(1.6 * 1.2)


def proposals(text, count):
    lookup = TextLookup()
    lookup.begin(text[:3], SETTINGS, None)
    lookup.prepare(text, count)
    assert lookup.ready()
    return lookup.take()


def test_what_followed_the_longest_end_is_proposed():
    assert proposals([1, 2, 3, 9, 2, 3, 7, 1, 2, 3], 3) == [9, 2, 3]
    assert proposals([1, 2, 3, 9, 2, 3, 7, 5, 2, 3], 2) == [7, 5]
    assert proposals([1, 2, 3, 4, 5], 3) == []


def test_a_repetition_goes_on():
    assert proposals([1, 2, 3, 1, 2, 3, 1], 5) == [2, 3, 1, 2, 3]
    assert proposals([4, 4, 4], 4) == [4, 4, 4, 4]
