"""Regions in placement: together on their device, one dispatch there, and in an order that works."""

import dataclasses

import numpy as np
import pytest
from support.placements import device

from mansard.dtypes import DType
from mansard.errors import PlacementError
from mansard.ir import Constant, GraphBuilder
from mansard.ir.region import Partition, Region
from mansard.passes.fusion.fuse import fuse
from mansard.passes.fusion.in_place import mark_in_place
from mansard.placement import PlacementOptions
from mansard.placement.place import place
from mansard.placement.regions import merge_regions, region_slots
from mansard.testing.graphs import F32, binary, matmul


def weight(b, name="w"):
    return b.constant(name, Constant.of(np.ones((16, 16), np.float32), name), (16, 16), F32)


def fused(graph, *regions, slot="npu", seconds=2e-6, embeds=True):
    """Dispatches with regions of the ops that produce values of these names."""
    producers = {v.name: op for op in graph.ops for v in op.outputs}
    partition = Partition(
        tuple(Region(frozenset(producers[n] for n in names), seconds) for names in regions),
        embeds_constants=embeds,
    )
    return mark_in_place(fuse(graph, partition=lambda graph: {slot: partition}))


def placed(graph, options=None, slots=None):
    slots = region_slots(graph, slots or [device("cpu"), npu()])
    result = place(graph, slots, options or PlacementOptions())
    return merge_regions(graph, result, slots)


def npu(name="npu"):
    return device(name, 1e3, refuses=lambda dispatch: "no dispatches")


def products(count=3):
    b = GraphBuilder()
    x, values = b.input("x", (16, 16), F32), []
    for number in range(count):
        x = matmul(b, x, weight(b, f"w{number}"))
        values.append(x.name)
    return b.build([x]), values


def test_a_region_is_one_dispatch_that_reads_and_makes_what_others_see():
    graph, (first, second, third) = products()
    merged, result = placed(fused(graph, {first, second}))
    region, rest = merged.dispatches
    assert region.is_region and [v.name for v in region.inputs] == ["x"]
    assert [v.name for v in region.outputs] == [second] and [v.name for v in rest.outputs] == [third]
    assert [result.device[d] for d in merged.dispatches] == [1, 0]
    assert [d.device for d in result.decisions] == ["npu", "cpu"]
    assert result.decisions[0].costs["npu"] == pytest.approx(2e-3)
    assert result.prediction.starts_ms[0] <= result.prediction.starts_ms[1]


def test_constants_that_are_not_embedded_are_inputs():
    graph, (first, second, _) = products()
    merged, _ = placed(fused(graph, {first, second}, embeds=False))
    assert [v.name for v in merged.dispatches[0].inputs] == ["x", "w0", "w1"]


def test_a_region_elsewhere_is_its_dispatches():
    graph, names = products()
    dispatches = fused(graph, set(names), seconds=1.0)
    merged, result = placed(dispatches)
    assert merged is dispatches and set(result.device.values()) == {0}
    assert sum(d.costs["npu"] for d in result.decisions) == pytest.approx(1e3)


def test_a_region_goes_with_its_pins():
    graph, names = products()
    pinned = PlacementOptions(pins=(("contraction_1", "npu"),))
    merged, _ = placed(fused(graph, set(names), seconds=1.0), pinned)
    assert [d.is_region for d in merged.dispatches] == [True]
    _, result = placed(fused(graph, set(names)), PlacementOptions(pins=(("contraction_1", "cpu"),)))
    assert {d.costs["npu"] for d in result.decisions} == {
        "a part of its region is pinned to 'cpu' by 'contraction_1'"
    }


def test_a_dispatch_outside_is_refused_with_the_partitions_reason():
    graph, (first, second, third) = products()
    dispatches = fused(graph, {first, second})
    (op,) = (op for op in graph.ops if op.output.name == third)
    partition = dataclasses.replace(dispatches.partitions["npu"], reasons={op: "too wide"})
    dispatches = dataclasses.replace(dispatches, partitions={"npu": partition})
    with pytest.raises(PlacementError, match=r"pinned to 'npu'.*which cannot run it: too wide"):
        placed(dispatches, PlacementOptions(pins=(("contraction_2", "npu"),)))


def test_members_apart_in_the_models_order_become_one_step_at_a_place_that_works():
    """The region's second product stands behind a dispatch that the first one's reader needs not wait for."""
    b = GraphBuilder()
    x, y = b.input("x", (16, 16), F32), b.input("y", (16, 16), F32)
    first = matmul(b, x, weight(b, "w0"))
    other = matmul(b, y, weight(b, "w1"))
    last = matmul(b, other, first)
    reader = matmul(b, first, weight(b, "w2"))
    graph = b.build([last, reader])
    merged, _ = placed(fused(graph, {first.name, last.name}))
    names = [[v.name for v in d.outputs] for d in merged.dispatches]
    assert names == [[other.name], [first.name, last.name], [reader.name]]


def updated_state():
    """A product of a state before one of its rows is replaced, and one after, and their sum."""
    b = GraphBuilder()
    before = b.state("memory", (16, 16), F32)
    row, where = b.input("row", (1, 16), F32), b.input("where", (1, 1), DType.I64)
    old = matmul(b, before, weight(b, "w0"))
    after = b.scatter(before, where, row)
    b.update_state(before, after)
    new = matmul(b, after, weight(b, "w1"))
    total = binary(b, "add", old, new)
    return fused(b.build([total]), {old.name, new.name, total.name})


def test_what_a_region_still_reads_is_not_overwritten():
    """The region reads a state before and after its update, so that the update needs a buffer of its own."""
    graph = updated_state()
    assert any(d.in_place for d in graph.dispatches)
    slots = region_slots(graph, [device("cpu"), npu()])
    result = place(graph, slots, PlacementOptions())
    # As if users of a state could be on several devices.
    region = graph.partitions["npu"].regions[0]
    label = {d: int(region.holds(d.ops)) for d in graph.dispatches}
    search_result = dataclasses.replace(result.search_result, labels=list(label.values()))
    result = dataclasses.replace(result, device=label, search_result=search_result)
    merged, _ = merge_regions(graph, result, slots)
    update, step = merged.dispatches
    assert step.is_region and update.name == "scatter" and not update.in_place


def test_a_region_goes_where_the_other_users_of_its_state_are():
    _, result = placed(updated_state())
    assert set(result.device.values()) == {0}
    reasons = {d.dispatch: d.costs["npu"] for d in result.decisions}
    assert reasons.pop("scatter") == "no dispatches"
    assert set(reasons.values()) == {"its region shares a state with 'scatter', which cannot run there"}
