"""Kinds of work: told apart by structure, predicted by figures of their own, kept in plans and chips."""

import dataclasses
import json

import pytest
from support.graphs import A0, A1, F32, maps, op, unary
from support.heavy_graphs import GRAPHS
from support.placements import CHIP

from mansard.calibration import mixed_graphs as mixed
from mansard.compiler import CompileOptions, compile_graph
from mansard.errors import PlacementError
from mansard.ir import GraphBuilder, IndexMap
from mansard.ir.types import Linear
from mansard.placement.cost import WorkEstimate, seconds
from mansard.placement.kinds import SHALLOW
from mansard.placement.plan_workload import replay
from mansard.plan.serialise import plan_from_json, plan_to_json
from mansard.targets.profile import KINDS, DeviceProfile, LinkProfile
from mansard.targets.socs import parse_soc


def profile(**figures):
    base = DeviceProfile("gpu", 1e12, 1e12, 1 << 20, {"f32": 1e11}, 1e-6, LinkProfile(1e9, 0), True)
    return dataclasses.replace(base, **figures)


def kinds(graph):
    return [decision.kind for decision in compile_graph(graph, CompileOptions(("cpu",))).plan.decisions]


def window(channels, taps=3):
    """A convolution over so many channels."""
    b = GraphBuilder()
    x, w = b.input("x", (1, 8, 8, channels), F32), b.input("w", (taps, taps, channels, 8), F32)
    rows, columns = (Linear(((d, 1), (d + 3, 1))) for d in (1, 2))
    read = IndexMap((Linear.dim(0), rows, columns, Linear.dim(6)))
    extents = (1, 9 - taps, 9 - taps, 8, taps, taps, channels)
    y = b.generic([x, w], [read, maps(4, 5, 6, 3)], extents, op("mul", A0, A1), reduced=3, combiner="add")
    return b.build([y])


@pytest.mark.parametrize("channels, kind", [(1, "depthwise"), (SHALLOW - 1, "shallow"), (SHALLOW, "")])
def test_windows_are_told_by_what_is_summed_at_each_place(channels, kind):
    assert kinds(window(channels)) == [kind]


def test_a_window_of_one_place_is_a_product():
    assert kinds(window(3, taps=1)) == [""]


@pytest.mark.parametrize(
    "name, expected", [("product", [""]), ("attention", ["attention"]), ("convolution", ["shallow"])]
)
def test_kinds_of_graphs(name, expected):
    assert kinds(GRAPHS[name]()) == expected


def test_rows_and_maps():
    b = GraphBuilder()
    x = b.input("x", (8, 16), F32)
    total = b.generic([x], [IndexMap.identity(2)], (8, 16), A0, reduced=1, combiner="add")
    assert kinds(b.build([total])) == ["rows"]
    b = GraphBuilder()
    assert kinds(b.build([unary(b, "exp", b.input("x", (8, 16), F32))])) == [""]


def test_a_kind_takes_what_was_measured_but_no_less_than_its_bytes():
    device = profile(kinds={"rows": ((1e6, 1e9), (1e8, 1e10))})
    rows = WorkEstimate(0, 10**6, "f32", kind="rows")
    assert seconds(rows, device) == pytest.approx(1e-3)  # with the launch
    assert seconds(dataclasses.replace(rows, operations=10**7), device) == pytest.approx(1e7 / 10**9.5)
    assert seconds(dataclasses.replace(rows, operations=10**8), device) == pytest.approx(0.01)
    # Beyond what was measured rates go on to rise, up to that of products.
    assert seconds(dataclasses.replace(rows, operations=10**9), device) == pytest.approx(1 / 10**1.5)
    assert seconds(dataclasses.replace(rows, operations=10**13), device) == pytest.approx(100)
    falling = profile(kinds={"rows": ((1e6, 1e10), (1e8, 1e9))})
    assert seconds(dataclasses.replace(rows, operations=10**9), falling) == pytest.approx(1)
    assert seconds(dataclasses.replace(rows, bytes=10**11), device) == pytest.approx(0.1 + 1e-6)
    # Too small to matter: a launch at least.
    assert seconds(dataclasses.replace(rows, operations=1), device) == pytest.approx(1e-6, rel=1e-2)
    # What was not measured goes by the rates.
    assert seconds(dataclasses.replace(rows, kind="attention"), device) == pytest.approx(1e-5 + 1e-6)


def test_other_types_are_in_proportion_to_products():
    points = {"rows": ((1e6, 1e9),), "attention": ((1e6, 1e9),)}
    device = profile(rates={"f32": 1e11, "f16": 4e11}, kinds=points)
    assert device.whole_seconds(1e6, "f16", kind="attention") == pytest.approx(1e-3 / 4)
    assert device.whole_seconds(1e6, "f16", kind="rows") == pytest.approx(1e-3)


def test_products_that_were_measured_take_what_they_took_with_their_launch():
    device = profile(launch=1e-3, rates={"f32": 1e9, "f64": 1e9}, small={"f32": ((1e6, 1e8), (1e8, 1e9))})
    assert seconds(WorkEstimate(0, 10**6, "f32"), device) == pytest.approx(1e-2)
    assert seconds(WorkEstimate(0, 10**4, "f32"), device) == pytest.approx(1e-3)
    assert seconds(WorkEstimate(0, 10**9, "f32"), device) == pytest.approx(1.0)
    assert seconds(WorkEstimate(10**10, 10**6, "f32"), device) == pytest.approx(1e-2 + 1e-3)
    # A type of which none was measured: its rate, and a launch.
    assert seconds(WorkEstimate(0, 10**7, "f64"), device) == pytest.approx(1e-2 + 1e-3)


def test_launches_of_small_dispatches_are_their_own():
    device = profile(launches=((1e3, 1e-7), (1e5, 1e-6)))
    assert device.launch_of(10) == device.launch_of(1e3) == pytest.approx(1e-7)
    assert device.launch_of(1e4) == pytest.approx(10**-6.5)
    assert device.launch_of(1e5) == device.launch_of(1e9) == device.launch == 1e-6
    assert profile().launch_of(10) == 1e-6
    assert seconds(WorkEstimate(0, 1000, "f32"), device) == pytest.approx(1e-7 + 1e-8)


def test_plans_keep_kinds_and_older_ones_have_none():
    compiled = compile_graph(mixed.graph(1), CompileOptions(("cpu",)))
    text = plan_to_json(compiled.plan)
    assert [d.kind for d in plan_from_json(text).decisions] == [d.kind for d in compiled.plan.decisions]
    slow = profile(kinds=dict.fromkeys(KINDS, ((1.0, 1.0),)))
    ((first, *_), *_) = replay(compiled.plan, [slow], {}).problem.times
    assert first == compiled.plan.decisions[0].operations
    older = json.loads(text)
    for decision in older["decisions"]:
        del decision["kind"]
    plan = plan_from_json(json.dumps(older))
    assert {d.kind for d in plan.decisions} == {""}
    ((first, *_), *_) = replay(plan, [slow], {}).problem.times
    assert first < 1


def test_a_chip_has_kinds_and_launches():
    more = "kinds = { rows = [[1e3, 1e6]] }\nlaunches = [[10, 1e-4], [100, 1e-3]]\nmemory = 1000000"
    cpu = parse_soc(CHIP.replace("memory = 1000000", more), "x").devices["cpu"]
    assert cpu.kinds == {"rows": ((1e3, 1e6),)} and cpu.launches == ((10, 1e-4), (100, 1e-3))
    with pytest.raises(PlacementError, match="unknown entry 'row'; did you mean 'rows'"):
        parse_soc(CHIP.replace("memory = 1000000", more.replace("rows", "row")), "x")
