"""Several requests in flight, simulated: pipelines fill, queues take what is ready, and a bound holds."""

import dataclasses
import itertools

import numpy as np
import pytest
from support.placements import profile

from mansard.placement.problem import HOST, DataEdge, PlacementProblem
from mansard.placement.simulate import simulate
from mansard.placement.simulate_requests import simulate_requests
from mansard.placement.swapping import ProgramLoad


def chain(times, devices, handoff=0.0, cores=("", "", "")):
    """A problem whose dispatches follow one another; ``times`` by dispatch, the same on every device."""
    edges = [DataEdge(HOST, (0,), 4)]
    edges += [DataEdge(n, (n + 1,), 4) for n in range(len(times) - 1)]
    edges.append(DataEdge(len(times) - 1, (HOST,), 4))
    profiles = [
        dataclasses.replace(profile(f"device {d}", handoff, 1.0, True), cores=cores[d])
        for d in range(devices)
    ]
    allowed = (tuple(range(devices)),) * len(times)
    return PlacementProblem(tuple((t,) * devices for t in times), allowed, tuple(edges), tuple(profiles))


def test_stages_of_a_pipeline_work_at_once():
    run = simulate_requests(chain([2.0, 3.0, 1.0], 3), [0, 1, 2], 16, 16)
    assert run.seconds == pytest.approx(2 + 16 * 3 + 1)  # the slowest stage, the others before and after it
    assert run.busy == pytest.approx((32, 48, 16)) and run.bound == pytest.approx(48) and run.bound_by == 1
    assert run.efficiency == pytest.approx(48 / 51)
    assert run.request_seconds[0] == pytest.approx(6) and run.request_seconds[15] == pytest.approx(51)


def test_one_request_takes_what_a_call_takes_and_is_bound_by_its_chain():
    problem = chain([2.0, 3.0, 1.0, 1.0], 3, handoff=0.5)
    run = simulate_requests(problem, [0, 1, 2, 0], 1, 4)
    assert run.seconds == simulate(problem, [0, 1, 2, 0]).seconds == pytest.approx(7 + 3 * 0.5)
    assert run.bound == pytest.approx(7) and run.bound_by is None


def test_one_at_a_time_takes_as_long_as_calls_in_turn():
    problem = chain([2.0, 3.0, 1.0], 3, handoff=0.25)
    alone = simulate(problem, [0, 1, 2]).seconds
    run = simulate_requests(problem, [0, 1, 2], 5, 1)
    assert run.seconds == pytest.approx(5 * alone)
    assert run.request_seconds == pytest.approx((alone,) * 5)


def test_no_more_requests_are_in_flight_than_allowed():
    two, three = (simulate_requests(chain([1.0] * 3, 3), [0, 1, 2], 9, k) for k in (2, 3))
    assert three.seconds == pytest.approx(9 + 2)
    # With two for three devices one of them always waits for a request.
    assert two.seconds == pytest.approx(3 * 4 + 2 + 1)
    for run, most in ((two, 2), (three, 3)):
        begins = {r: min(s.start for s in run.spans if s.request == r) for r in range(9)}
        ends = {r: max(s.end for s in run.spans if s.request == r) for r in range(9)}
        assert max(sum(begins[r] <= at < ends[r] for r in range(9)) for at in begins.values()) == most


def test_a_request_that_waits_holds_back_no_other():
    # The first device has the first and the last part: it begins the second request before it ends the first.
    run = simulate_requests(chain([1.0, 3.0, 1.0], 2), [0, 1, 0], 2, 2)
    order = [(s.request, s.dispatch) for s in run.spans if s.device == 0]
    assert order == [(0, 0), (1, 0), (0, 2), (1, 2)]
    assert run.seconds == pytest.approx(1 + 3 + 3 + 1)


def test_a_handoff_keeps_its_reader_from_other_work_and_is_none():
    run = simulate_requests(chain([1.0, 1.0], 2, handoff=0.5), [0, 1], 8, 8)
    assert run.seconds == pytest.approx(1 + 8 * 1.5)
    assert run.busy == pytest.approx((8, 8)) and run.efficiency == pytest.approx(8 / 13)


def test_devices_on_the_same_cores_take_turns():
    problem = chain([2.0, 3.0, 1.0], 3, cores=("host", "", "host"))
    run = simulate_requests(problem, [0, 1, 2], 16, 16)
    assert run.queue_busy == pytest.approx((48, 48, 0)) and run.busy == pytest.approx((32, 48, 16))
    first = sorted((s.start, s.end) for s in run.spans if s.device != 1)
    assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(first))


def test_copies_to_memory_of_a_devices_own_are_work():
    edges = (DataEdge(HOST, (0,), 20), DataEdge(0, (1,), 10), DataEdge(1, (HOST,), 10))
    profiles = (profile("near", 0.0, 10.0, True), profile("far", 0.0, 10.0, False))
    problem = PlacementProblem(((1.0, 1.0),) * 2, ((0,), (1,)), edges, profiles)
    run = simulate_requests(problem, [0, 1], 4, 4)
    assert run.busy == pytest.approx((4, 4 * (1 + 1 + 1)))  # to the device, the dispatch, to the host
    assert run.seconds == pytest.approx(1 + 4 * 3)


@pytest.mark.parametrize("seed", range(20))
def test_any_graph_keeps_its_order_and_its_bound(seed):
    rng = np.random.default_rng(seed)
    count = 14
    times = tuple(tuple(row) for row in rng.uniform(0.1, 2.0, (count, 3)).tolist())
    edges = [DataEdge(HOST, (0,), 1)]
    for n in range(count - 1):
        readers = sorted({int(r) for r in rng.integers(n + 1, count, 2)})
        edges.append(DataEdge(n, (*readers, HOST) if rng.random() < 0.2 else tuple(readers), 1))
    edges.append(DataEdge(count - 1, (HOST,), 1))
    profiles = tuple(profile(f"device {d}", float(rng.uniform(0, 0.5)), 5.0, d != 2) for d in range(3))
    problem = PlacementProblem(times, ((0, 1, 2),) * count, tuple(edges), profiles)
    labels = [int(d) for d in rng.integers(0, 3, count)]
    run = simulate_requests(problem, labels, 7, 3)
    end = {(s.request, s.dispatch): s.end for s in run.spans if s.dispatch is not None}
    assert len(end) == 7 * count
    for span in run.spans:
        if span.dispatch is not None:
            for producer in problem.producers[span.dispatch]:
                assert end[span.request, producer] <= span.start + 1e-9
    for device in range(3):
        spans = sorted((s.start, s.end) for s in run.spans if s.device == device and s.dispatch is not None)
        assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(spans))
    assert run.bound <= run.seconds + 1e-9
    assert run.seconds <= 7 * simulate_requests(problem, labels, 1, 1).seconds + 1e-9


def test_requests_load_their_programs_one_after_another():
    """Two programs of 3 s that take turns in the memory of one: the link is what all requests wait for."""
    problem = chain([1.0, 1.0], 1)
    loads = (ProgramLoad(0, 3.0, 30), ProgramLoad(1, 3.0, 30, 0))
    problem = dataclasses.replace(problem, program_loads=loads)
    one = simulate_requests(problem, [0, 0], 1, 1)
    assert one.seconds == simulate(problem, [0, 0]).seconds == pytest.approx(2 * (3 + 1))
    many = simulate_requests(problem, [0, 0], 4, 4)
    assert many.seconds >= 8 * 3.0 + 1.0 and many.busy == pytest.approx((8.0,))
