"""Which programs stay in a device's memory, which take turns there, and how long a call takes then."""

from __future__ import annotations

import dataclasses
import math

import pytest
from support.placements import profile

from mansard.ir.region import Region
from mansard.placement.problem import HOST, DataEdge, PlacementProblem
from mansard.placement.simulate import simulate
from mansard.placement.swapping import (
    ProgramLoad,
    RegionTimes,
    choose_resident,
    load_points,
    load_seconds,
    program_loads,
)
from mansard.targets.profile import LinkProfile

LINK = LinkProfile(10.0, 0.0, 0.5)


def times(size, run=1.0, load=2.0, elsewhere=math.inf):
    return RegionTimes(Region(frozenset(), bytes=size), run, load, elsewhere)


def test_programs_are_loaded_as_soon_as_those_before_them_leave_room():
    assert load_points([10, 10, 10, 10], 20) == [0, 0, 1, 2]
    assert load_points([10, 10, 10], 10) == [0, 1, 2]
    assert load_points([10, 20, 10, 30], 30) == [0, 0, 1, 3]
    assert load_points([], 10) == []


def test_what_fits_stays():
    chosen = choose_resident([times(10), times(10)], 20)
    assert chosen.swaps.area == 0 and not chosen.swaps.regions and chosen.total == 2.0


def test_two_take_turns_while_the_others_stay():
    regions = [times(10) for _ in range(8)]
    chosen = choose_resident(regions, 40)
    assert chosen.swaps.area == 20 and len(chosen.swaps.regions) == 6
    # One runs while the next is loaded.
    assert chosen.total == 2 * 1.0 + 6 * 2.0


def test_one_takes_the_turn_of_another_where_two_have_no_room():
    chosen = choose_resident([times(10) for _ in range(3)], 15)
    assert chosen.swaps.area == 10 and len(chosen.swaps.regions) == 3
    assert chosen.total == 3 * (1.0 + 2.0)


def test_what_saves_most_for_its_bytes_stays():
    slow, fast = times(10, load=9.0), [times(10, load=1.5) for _ in range(3)]
    chosen = choose_resident([*fast, slow], 30)
    assert slow.region not in chosen.swaps.regions and chosen.seconds[slow.region] == 1.0
    # A program that other devices run as well is not worth its memory.
    idle = times(10, load=9.0, elsewhere=1.0)
    chosen = choose_resident([idle, *fast], 30)
    assert idle.region in chosen.swaps.regions


def test_an_area_is_as_large_as_what_takes_turns_needs():
    """The large program stays, so that two small ones have room."""
    large, small = times(20, load=4.0), [times(5, load=1.0) for _ in range(6)]
    chosen = choose_resident([large, *small], 30)
    assert chosen.swaps.area == 10 and large.region not in chosen.swaps.regions
    assert chosen.total == 7.0


def problem(runs, loads=()):
    npu = dataclasses.replace(profile("npu", 1.0, 1.0, False), link=LINK)
    chain = tuple(DataEdge(n, (n + 1,), 0) for n in range(len(runs) - 1))
    edges = (DataEdge(HOST, (0,), 0), *chain)
    allowed = tuple((0,) for _ in runs)
    return PlacementProblem(tuple((run,) for run in runs), allowed, edges, (npu,), program_loads=tuple(loads))


def test_loads_overlap_with_runs():
    npu = problem([1.0]).profiles[0]
    assert load_seconds(15, npu) == 2.0
    loads = program_loads([(n, 15) for n in range(4)], 30, npu)
    assert loads == [ProgramLoad(n, 2.0, 15, after) for n, after in enumerate((None, None, 0, 1))]
    run = simulate(problem([1.0] * 4, loads), [0] * 4)
    base = simulate(problem([1.0] * 4), [0] * 4)
    # The link is never idle: four loads, and the run of the last program behind them.
    assert run.seconds - base.seconds == pytest.approx(4 * 2.0 + 1.0 - 4 * 1.0, abs=0.6)
    assert [span.end for span in run.program_loads] == [2.0, 4.0, 6.0, 8.0]
    assert run.loaded_bytes == 60 and run.copied_bytes == base.copied_bytes


def test_without_room_for_two_loads_and_runs_alternate():
    npu = problem([1.0]).profiles[0]
    loads = program_loads([(n, 15) for n in range(3)], 15, npu)
    run = simulate(problem([1.0] * 3, loads), [0] * 3)
    assert [span.start for span in run.program_loads] == [0.0, 3.0, 6.0]
