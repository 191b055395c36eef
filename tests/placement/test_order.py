"""The order of dispatches on devices that branches share: valid, shorter where it can be, kept otherwise."""

from __future__ import annotations

from collections import Counter

import pytest
from support.graphs import F32, matmul, softmax
from support.placements import chain, device, profile, random_problem
from support.plans.compiled import plan_of

from mansard.ir import Graph, GraphBuilder, Location
from mansard.ir.dispatch import DispatchGraph
from mansard.passes.fusion.fuse import fuse
from mansard.placement import (
    DeviceSlot,
    ModelPlacement,
    PlacementOptions,
    PlacementResult,
    model_placement,
    place,
    place_model,
)
from mansard.placement.order import list_schedule, reorder
from mansard.placement.problem import HOST, DataEdge, PlacementProblem, reordered
from mansard.placement.search.choose import choose
from mansard.placement.simulate import simulate
from mansard.placement.workload import state_users
from mansard.plan.plan import DispatchStep


def alternating(steps: int) -> PlacementProblem:
    """Branches 0 and 1, one after the other in the model: steps on device 0 and on a device of their own."""
    edges, times, allowed = [], [], []
    for branch in (0, 1):
        for step in range(2 * steps):
            n = len(times)
            edges.append(DataEdge(n - 1 if step else HOST, (n,), 0.0))
            times.append((1.0,) * 3 if step % 2 == 0 else (4.0,) * 3)
            allowed.append((0,) if step % 2 == 0 else (1 + branch,))
        edges.append(DataEdge(len(times) - 1, (HOST,), 0.0))
    profiles = tuple(profile(name, 0.0, 1.0, True) for name in ("cpu", "npu", "npu:1"))
    return PlacementProblem(tuple(times), tuple(allowed), tuple(edges), profiles)


def test_branches_that_share_a_device_run_at_once() -> None:
    problem = alternating(3)
    labels = [devices[0] for devices in problem.allowed]
    assert simulate(problem, labels).seconds == pytest.approx(
        11 + 15
    )  # the second behind the first's last step
    order = list_schedule(problem, labels)
    prediction = simulate(reordered(problem, order), [labels[n] for n in order])
    assert prediction.seconds == pytest.approx(16)  # one step behind


# More seeds repeat the orders of the first.
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 8))])
def test_orders_are_whole_and_behind_what_is_read(seed: int) -> None:
    problem = random_problem(seed, count=12, devices=3)
    labels = choose(problem, "latency", 1.0).labels
    order = list_schedule(problem, labels)
    assert sorted(order) == list(range(12))
    place_of = {n: at for at, n in enumerate(order)}
    for edge in problem.edges:
        for consumer in edge.consumers:
            if HOST not in (edge.producer, consumer):
                assert place_of[edge.producer] < place_of[consumer]
    changed = reordered(problem, order)
    assert [changed.times[at] for at in range(12)] == [problem.times[n] for n in order]
    back = reordered(changed, [place_of[n] for n in range(12)])
    assert simulate(back, labels) == simulate(problem, labels)


def test_dispatches_can_be_held_in_order() -> None:
    problem = alternating(2)
    labels = [devices[0] for devices in problem.allowed]
    free, constrained = (list_schedule(problem, labels, groups) for groups in ((), ((2, 4),)))
    assert free.index(4) < free.index(2) and constrained.index(2) < constrained.index(4)


def test_users_of_a_state_stay_in_the_models_order() -> None:
    b = GraphBuilder()
    b.location = Location("first")
    state, x = b.state("s", (64, 64), F32), b.input("x", (64, 64), F32)
    read = softmax(b, state)
    for _ in range(4):
        read = softmax(b, read)
    b.location = Location("second")
    product = x
    for _ in range(3):
        product = matmul(b, product, x)
    b.update_state(state, product)
    graph = fuse(b.build([read]))
    slots = [device("cpu", 1e8), device("a", 1e8)]
    result = place(
        graph, slots, PlacementOptions(pins=(("rows", "cpu"), ("contraction_2", "cpu"), ("*", "a")))
    )
    order = list_schedule(result.problem, result.search_result.labels, state_users(graph))
    names = [graph.dispatches[n].name for n in order]
    assert names.index("rows") < names.index("contraction_2")


def branches(count: int = 2) -> Graph:
    """Chains of products with a softmax behind each, one chain after the other."""
    b = GraphBuilder()
    ends = []
    for branch in range(count):
        x, w = (b.input(f"{name}{branch}", (64, 64), F32) for name in "xw")
        for _ in range(3):
            b.location = Location(f"branch {branch}")
            x = matmul(b, x, w)
            b.location = Location("between")
            x = softmax(b, x)
        ends.append(x)
    return b.build(ends)


def placed(objective: str = "latency"):
    graph = fuse(branches())
    pins = (("between", "cpu"), ("branch 0", "a"), ("branch 1", "b"))
    slots = [device("cpu", 2e8), device("a", 1e9), device("b", 1e9)]
    return graph, place(graph, slots, PlacementOptions(pins=pins, objective=objective))


def test_a_placed_graph_and_all_that_goes_with_it_change_together() -> None:
    graph, before = placed()
    changed, after = reorder(graph, before)
    assert after.prediction.latency_ms < 0.8 * before.prediction.latency_ms
    assert [d.name for d in changed.dispatches] == [d.dispatch for d in after.decisions]
    assert set(changed.dispatches) == set(graph.dispatches)
    assert {d.dispatch: d.device for d in after.decisions} == {d.dispatch: d.device for d in before.decisions}
    assert after.device == before.device
    assert after.prediction.starts_ms == tuple(sorted(after.prediction.starts_ms))
    assert after.prediction.method.endswith("then list scheduling")
    assert after.prediction.gap >= 0
    again = simulate(after.problem, after.search_result.labels)
    assert after.prediction.latency_ms == pytest.approx(1e3 * again.seconds)
    # In the plan, too, the second branch's work on the CPU comes between the first one's.
    plan = plan_of(changed, [after.device[d] for d in changed.dispatches], 3)
    cpu = [
        s.label for segment in plan.devices[0].segments for s in segment.steps if isinstance(s, DispatchStep)
    ]
    assert cpu == ["rows", "rows_3", "rows_1", "rows_4", "rows_2", "rows_5"]


def test_what_gains_nothing_stays_as_it_is() -> None:
    graph, result = placed("throughput")
    assert reorder(graph, result) == (graph, result)
    one = chain(4)
    alone = place(one, [device("cpu")], PlacementOptions())
    assert reorder(one, alone) == (one, alone)
    spread = place(one, [device("cpu"), device("gpu")], PlacementOptions(pins=(("contraction_2", "gpu"),)))
    assert reorder(one, spread) == (one, spread)


def side_by_side_slots() -> list[DeviceSlot]:
    """A device for what is no product, and three for products alone."""
    products = [device(n, 1e8, refuses=lambda d: None if "contr" in d.name else "no product") for n in "abc"]
    return [device("cpu", 1e9, refuses=lambda d: "a product" if "contr" in d.name else None), *products]


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[PlacementOptions]:
    """The options of every search for devices."""
    options_of: list[PlacementOptions] = []

    def recorded(
        graph: DispatchGraph, slots: list[DeviceSlot], options: PlacementOptions, fixed: object
    ) -> PlacementResult:
        assert fixed is None
        options_of.append(options)
        return place(graph, slots, options)

    monkeypatch.setattr(model_placement, "place", recorded)
    return options_of


def placed_model(graph: DispatchGraph, slots: list[DeviceSlot], options: PlacementOptions) -> ModelPlacement:
    """Without memory limits, for which alone plans are sketched."""
    return place_model(graph, slots, options, fuse, sketch_plan=pytest.fail)


def test_branches_are_spread_once_they_are_side_by_side(searches: list[PlacementOptions]) -> None:
    graph, slots = fuse(branches(3)), side_by_side_slots()
    alone = place(graph, slots, PlacementOptions())
    placed = placed_model(graph, slots, PlacementOptions(search_seconds=4.0))
    assert [options.search_seconds for options in searches] == [4.0, 2.0]
    assert set(placed.graph.dispatches) == set(graph.dispatches)
    # Each chain has a device for its products; in the model's order they had run one after another.
    counts = Counter(d.device for d in placed.result.decisions)
    assert [counts[name] for name in "abc"] == [3, 3, 3]
    assert placed.result.prediction.latency_ms < 0.5 * alone.prediction.latency_ms
    assert placed.result.prediction.method.endswith("branches interleaved")
    assert [d.dispatch for d in placed.result.decisions] == [d.name for d in placed.graph.dispatches]


def test_a_chain_is_placed_once(searches: list[PlacementOptions]) -> None:
    graph, slots = chain(4), [device("cpu"), device("gpu", 2e9)]
    assert placed_model(graph, slots, PlacementOptions()).graph.dispatches == graph.dispatches
    placed_model(fuse(branches()), slots, PlacementOptions(objective="throughput"))
    assert len(searches) == 2
