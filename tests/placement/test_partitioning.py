"""Which dispatches are partitioned, over which devices, and in which ratio to begin."""

import dataclasses

import numpy as np
import pytest
from support.graphs import F32, matmul, softmax, unary
from support.plans.compiled import plan_of

from mansard.compiler.variants import SharedFiles
from mansard.errors import PlacementError
from mansard.ir import Constant, GraphBuilder, TensorType, Value
from mansard.ir.panels import Panels
from mansard.passes.fusion.fuse import fuse
from mansard.passes.fusion.packable import mark_packable
from mansard.placement import DeviceSlot, PlacementOptions, place_model
from mansard.placement.partition_graph import renumber_devices
from mansard.placement.partitioning import balance, round_to_units
from mansard.plan.plan import WeightSpec
from mansard.targets.profile import DeviceProfile, LinkProfile

SIDE = 512


def slot(name, rate, *, handoff=1e-6, refuses=None, fallback=False):
    link = LinkProfile(1e12, handoff)
    profile = DeviceProfile(name, 1e12, 1e12, 0, {"f32": rate}, 1e-7, link, True)
    return DeviceSlot(name, profile, refuses or (lambda dispatch: None), fallback)


def chain(count=3):
    b = GraphBuilder()
    x = b.input("x", (SIDE, SIDE), F32)
    for number in range(count):
        data = np.random.default_rng(number).standard_normal((SIDE, SIDE)).astype(np.float32)
        x = unary(b, "tanh", matmul(b, x, b.constant(f"w{number}", Constant.of(data), (SIDE, SIDE), F32)))
    return b.build([x])


def fused(graph):
    return mark_packable(fuse(graph))


def placed(split, *slots, graph=None, **options):
    def sketch_plan(dispatches, device_of):
        return plan_of(dispatches, [device_of[d] for d in dispatches.dispatches], len(slots))

    options = PlacementOptions(split=split, **options)
    return place_model(fused(graph or chain()), slots, options, fused, sketch_plan)


# The ratio ----------------------------------------------------------------------------------------


def test_equal_devices_share_equally_and_others_by_their_rates():
    seconds, shares = balance({0: 1.0, 1: 1.0}, {0: 0.0, 1: 0.0})
    assert (seconds, shares) == (0.5, {0: 0.5, 1: 0.5})
    seconds, shares = balance({0: 1.0, 1: 3.0}, {0: 0.0, 1: 0.0})
    assert (seconds, shares[0], shares[1]) == pytest.approx((0.75, 0.75, 0.25))


def test_handing_over_takes_from_the_share():
    seconds, shares = balance({0: 1.0, 1: 1.0}, {0: 0.0, 1: 0.5})
    assert (seconds, shares[0], shares[1]) == pytest.approx((0.75, 0.75, 0.25))
    assert balance({0: 1.0, 1: 1.0}, {0: 0.0, 1: 2.0}) == (1.0, {0: 1.0})
    seconds, shares = balance({0: 1.0, 1: 1e3, 2: 1.0}, dict.fromkeys(range(3), 0.0))
    assert (seconds, shares) == (0.5, {0: 0.5, 2: 0.5})


def test_extents_are_whole_units():
    assert round_to_units([0.3, 0.7], 512, 16) == (160, 352)
    assert round_to_units([0.0, 1.0], 512, 16) == (16, 496)
    assert round_to_units([1.0, 0.0], 500, 16) == (480, 20)
    assert round_to_units([0.5, 0.5, 0.0], 48, 16) == (16, 16, 16)


# What is partitioned ----------------------------------------------------------------------------------


def test_heavy_dispatches_are_partitioned_when_the_whole_gains():
    whole, partitioned = (placed(split, slot("a", 1e10), slot("b", 3e10)) for split in ("off", "auto"))
    assert not whole.splits
    before, after = (p.result.prediction.latency_ms for p in (whole, partitioned))
    assert after == pytest.approx(before * 0.75, rel=0.05)
    (split,) = partitioned.splits
    assert (split.dim, split.total, len(split.dispatches)) == ("rows", SIDE, 3)
    assert split.initial == (128, 384)
    assert [piece.device for piece in split.dispatches[0]] == [0, 1]
    reasons = [d.reason for d in partitioned.result.decisions]
    assert reasons == ["split: 25 % of 512 rows", "split: 75 % of 512 rows"] * 3


@pytest.mark.parametrize(
    "slots",
    [
        (slot("a", 1e10), slot("b", 1e13)),  # nothing to gain from a
        (slot("a", 1e10, handoff=1.0), slot("b", 1e10, handoff=1.0)),
        (slot("a", 1e10), slot("b", 1e10, fallback=True)),
        (slot("a", 1e10), slot("b", 1e10, refuses=lambda dispatch: "no")),
        (slot("a", 1e10),),
    ],
)
def test_what_gains_nothing_stays_whole(slots):
    assert not placed("auto", *slots).splits


def test_all_partitions_whatever_two_devices_can_run():
    slots = (slot("a", 1e10), slot("b", 1e13, handoff=1.0), slot("c", 1e10, refuses=lambda dispatch: "no"))
    (split,) = placed("all", *slots).splits
    assert [piece.device for piece in split.dispatches[0]] == [0, 1]
    assert split.initial[0] == 16


def layers():
    """Two products with a softmax of the rows between them, and one at the end."""
    b = GraphBuilder()
    x, w = b.input("x", (SIDE, SIDE), F32), b.input("w", (SIDE, SIDE), F32)
    return b.build([softmax(b, matmul(b, softmax(b, matmul(b, x, w)), w))])


def test_what_lies_between_partitioned_dispatches_is_partitioned_like_them():
    partitioned = placed("all", slot("a", 1e10), slot("b", 3e10), graph=layers())
    (split,) = partitioned.splits
    assert len(split.dispatches) == 3
    summaries = [
        [d.summary for d in partitioned.graph.dispatches if d.name == p.label] for p in split.dispatches[2]
    ]
    assert all("reduce_max" in summary for (summary,) in summaries)
    # Every piece reads what pieces of its device have made; the last softmax reads all.
    device = partitioned.result.device
    for dispatch in partitioned.graph.dispatches[:-1]:
        producers = [
            d for d in device for v in dispatch.inputs if set(partitioned.graph.sources(v)) & set(d.outputs)
        ]
        assert all(device[d] == device[dispatch] for d in producers)
    assert not partitioned.result.decisions[-1].reason.startswith("split")


def test_dispatches_of_one_extent_are_partitioned_in_one_ratio():
    """The second device is slow where memory counts: what both take together decides."""
    b = GraphBuilder()
    x, w = b.input("x", (SIDE, SIDE), F32), b.input("w", (SIDE, 64), F32)
    graph = b.build([matmul(b, unary(b, "exp", matmul(b, x, w)), b.input("v", (64, SIDE), F32))])
    slow = slot("b", 3e10)
    slow = dataclasses.replace(slow, profile=dataclasses.replace(slow.profile, bandwidth=1e9, cache_bytes=0))
    (split,) = placed("all", slot("a", 1e10), slow, graph=graph).splits
    assert len(split.dispatches) == 2


def test_pinned_dispatches_are_not_partitioned():
    partitioned = placed("all", slot("a", 1e10), slot("b", 1e10), pins=(("contraction_1", "a"),))
    (split,) = partitioned.splits
    assert len(split.dispatches) == 2


def test_throughput_is_served_by_whole_dispatches():
    assert not placed("auto", slot("a", 1e10), slot("b", 1e10), objective="throughput").splits


def test_memory_limits_hold_with_every_devices_copy():
    limit = (("b", SIDE * SIDE * 4),)
    assert not placed("auto", slot("a", 1e10), slot("b", 1e10), memory=limit).splits
    with pytest.raises(PlacementError, match="no placement keeps"):
        placed("all", slot("a", 1e10), slot("b", 1e10), memory=limit)


def test_a_device_that_refuses_the_parts_is_named():
    refuses = lambda dispatch: "no symbols" if not isinstance(dispatch.domain[0], int) else None  # noqa: E731
    slots = slot("a", 1e10), slot("b", 1e10, refuses=refuses)
    with pytest.raises(PlacementError, match=r"a part of dispatch 'contraction' cannot run on b: no symbols"):
        placed("all", *slots)
    assert not placed("auto", *slots).splits


def test_unknown_options_are_refused():
    with pytest.raises(PlacementError, match="split 'yes' is not one of off, auto, all"):
        PlacementOptions(split="yes")


def test_devices_left_out_are_not_counted():
    (split,) = placed("all", slot("a", 1e10), slot("b", 1e10)).splits
    (moved,) = renumber_devices((split,), {0: 3, 1: 1})
    assert [piece.device for piece in moved.dispatches[0]] == [3, 1]
    assert dataclasses.replace(moved, dispatches=()) == dataclasses.replace(split, dispatches=())


def test_copies_of_a_weight_are_one_entry_in_one_form():
    data = np.zeros((64, 32), np.float32)
    load = Constant.of(data).load
    kind = TensorType((64, 32), F32)
    values = [Value(f"w_{n}", kind) for n in range(3)]
    panels = Panels((32, 1), ((64, 32),), 16)
    files = SharedFiles()
    weights = {v: (WeightSpec(v.name, F32, (64, 32)), load) for v in values[:2]}
    weights[values[2]] = (WeightSpec("w_2", F32, panels.shape), lambda: panels.pack(load()))
    specs = files.add_weights(weights, {values[2]: panels})
    assert specs[values[0]] == specs[values[1]] != specs[values[2]]
    assert sorted(spec.entry for spec, _ in files.weights.values()) == ["w_0", "w_2"]
