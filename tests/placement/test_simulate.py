"""The simulated run of a placement: how calls begin and end, and what copies take beside their bytes."""

import dataclasses

import pytest
from support.placements import profile

from mansard.placement.problem import HOST, DataEdge, PlacementProblem
from mansard.placement.simulate import simulate
from mansard.targets.profile import LinkProfile

IN = LinkProfile(10.0, 0.25, 0.5, ((10.0, 2.0), (30.0, 3.0)))
OUT = LinkProfile(5.0, 0.125, 0.25, ((10.0, 4.0),))


def far(**changes):
    """A device with memory of its own, to which the host copies inputs, and from which outputs."""
    return dataclasses.replace(profile("far", 0.25, 1.0, False), link=IN, links={"host": OUT}, **changes)


def test_the_hosts_copies_take_what_was_measured_and_lines_between():
    assert [IN.host_seconds(size) for size in (0, 5, 10, 20, 30, 50)] == [0.0, 1.0, 2.0, 2.5, 3.0, 4.0]
    assert [OUT.host_seconds(size) for size in (5, 20)] == [2.0, 8.0]
    assert LinkProfile(1.0, 0.0).host_seconds(10) == 0.0


def test_a_call_begins_with_the_host_and_ends_there():
    edges = (DataEdge(HOST, (0,), 20), DataEdge(0, (1,), 4), DataEdge(1, (HOST,), 10))
    problem = PlacementProblem(((1.0,), (1.0,)), ((0,), (0,)), edges, (far(start=0.75),))
    run = simulate(problem, [0, 0])
    copy_in, copy_out = 0.5 + 20 / 10, 0.25 + 10 / 5
    begin = 0.75 + 2.5
    assert [span.start for span in run.spans] == pytest.approx(
        [begin, begin + copy_in, begin + copy_in + 1, begin + copy_in + 2]
    )
    assert run.seconds == pytest.approx(begin + copy_in + 2 + copy_out + 0.125 + 4)
    assert run.busy == pytest.approx((copy_in + 2 + copy_out,))
    # With many calls in flight others fill the waits.
    assert run.load == run.busy


def test_where_memory_is_shared_there_is_only_the_hosts_copy():
    edges = (DataEdge(HOST, (0,), 10), DataEdge(0, (HOST,), 10))
    near = dataclasses.replace(far(start=0.5), unified=True)
    run = simulate(PlacementProblem(((1.0,),), ((0,),), edges, (near,)), [0])
    assert run.seconds == pytest.approx(0.5 + 2 + 1 + 0.125 + 4)
    assert run.busy == (1.0,) and run.copied_bytes == 0


def test_what_is_not_measured_costs_nothing():
    edges = (DataEdge(HOST, (0,), 10), DataEdge(0, (HOST,), 10))
    near = profile("near", 0.25, 1.0, True)
    assert simulate(PlacementProblem(((1.0,),), ((0,),), edges, (near,)), [0]).seconds == 1.0


def test_copies_between_devices_take_their_least_on_each_link():
    near, other = profile("near", 0.5, 1.0, True), far()
    edges = (DataEdge(0, (1,), 20),)
    problem = PlacementProblem(((1.0, 1.0),) * 2, ((0,), (1,)), edges, (near, other))
    assert problem.transfer_delay(20, 0, 1) == pytest.approx((0.5, 0.5 + 2))
    assert problem.transfer_delay(20, 1, 0) == pytest.approx((0.25, 0.5 + 2))
    assert problem.transfer_delay(20, 1, 1) == (0.0, 0.0)
    linked = dataclasses.replace(other, links={"near": LinkProfile(4.0, 0.1, 0.2)})
    problem = dataclasses.replace(problem, profiles=(near, linked))
    assert problem.transfer_delay(20, 1, 0) == pytest.approx((0.1, 0.2 + 5))
    assert simulate(problem, [0, 1]).seconds == pytest.approx(1 + 0.5 + 2.5 + 1)


def test_who_has_memory_of_its_own_copies_to_and_from_it():
    near, other = profile("near", 0.5, 1.0, True), far()
    edges = (DataEdge(0, (1,), 20), DataEdge(1, (2,), 20))
    problem = PlacementProblem(((1.0, 1.0),) * 3, ((0,), (1,), (0,)), edges, (near, other))
    run = simulate(problem, [0, 1, 0])
    assert run.seconds == pytest.approx(1 + 0.5 + 2.5 + 1 + 0.25 + 2.5 + 1)
    assert run.busy == pytest.approx((2, 1 + 2 * 2.5))
    # For the throughput of calls in flight who reads is charged, with what handing over takes.
    assert run.load == pytest.approx((2 + 2.5 + 0.25, 1 + 2.5 + 0.5))
    assert problem.copying_device(HOST, 1) == problem.copying_device(1, HOST) == 1


def test_in_lockstep_a_call_begins_and_ends_no_sooner():
    edges = (DataEdge(HOST, (0, 1), 10), DataEdge(0, (HOST,), 10), DataEdge(1, (HOST,), 10))
    near = dataclasses.replace(profile("near", 0.0, 1.0, True), start=0.25)
    problem = PlacementProblem(((5.0, 5.0),) * 2, ((0,), (1,)), edges, (near, far(start=0.75)))
    alone, colocated = (simulate(problem, [0, 1], lockstep=way) for way in (True, False))
    # The other device's copy would begin after 2.75 s, and waits until 5.25.
    assert alone.seconds == pytest.approx(colocated.seconds + 2.5)
    assert alone.busy == pytest.approx(colocated.busy)
