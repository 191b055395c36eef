"""Placement: costs, pins, refusals, reasons, objectives."""

import dataclasses
import itertools
import warnings

import numpy as np
import pytest
from support.graphs import F32, binary, matmul, unary
from support.placements import chain, device

from mansard.dtypes import DType
from mansard.errors import PlacementError
from mansard.ir import Constant, GraphBuilder, IndexMap
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.passes.fusion.fuse import fuse
from mansard.placement import PlacementOptions, estimate_work, place
from mansard.placement.cost import seconds
from mansard.placement.problem import merge_overlapping
from mansard.targets.profile import DeviceProfile, LinkProfile, default_profile


def devices_of(result, graph):
    return [result.decisions[i].device for i in range(len(graph.dispatches))]


def test_work_counts_bytes_once_and_operations_of_the_whole_space():
    (dispatch,) = chain(1).dispatches
    work = estimate_work(dispatch)
    assert work.bytes == 3 * 64 * 64 * 4
    # A multiply and an add per point of the product, and one exp per output.
    assert work.operations == 2 * 64**3 + 12 * 64 * 64


def test_what_is_fused_to_products_may_have_a_unit_of_its_own():
    (dispatch,) = chain(1).dispatches
    work = estimate_work(dispatch)
    assert work.other_operations == 12 * 64 * 64
    usual = DeviceProfile("d", 1e15, 1e15, 0, {"f32": 1e9}, 0, LinkProfile(1, 0), True)
    apart = dataclasses.replace(usual, vector=1e6)
    assert seconds(work, apart) == pytest.approx(2 * 64**3 / 1e9 + 12 * 64 * 64 / 1e6)
    assert seconds(work, usual) == pytest.approx(work.operations / 1e9)
    b = GraphBuilder()
    (alone,) = fuse(b.build([unary(b, "exp", b.input("x", (8, 8), F32))])).dispatches
    assert estimate_work(alone).other_operations == 0


def test_a_product_of_bytes_has_a_multiply_and_an_add_for_each():
    b = GraphBuilder()
    x, w = b.input("x", (8, 32), DType.U8), b.input("w", (32, 16), DType.I8)
    factors = tuple(Cast(Arg(i, v.type.dtype), DType.I32) for i, v in enumerate((x, w)))
    body = Apply("mul", factors, DType.I32)
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1))]
    graph = b.build([b.generic([x, w], maps, (8, 16, 32), body, reduced=1, combiner="add")])
    (dispatch,) = fuse(graph).dispatches
    work = estimate_work(dispatch)
    assert work.operations == 2 * 8 * 16 * 32
    profile = DeviceProfile("d", 1e15, 1e15, 0, {"f32": 1.0, "i8": 1e9}, 0, LinkProfile(1, 0), True)
    assert seconds(work, profile) == pytest.approx(work.operations / 1e9)


@pytest.mark.parametrize(("kept", "lower", "upper"), [(16, 4, 50), (None, 4 * 4096, 4 * 4096)])
def test_the_first_of_a_line_cost_less_than_all_in_order(kept, lower, upper):
    b = GraphBuilder()
    values, _ = b.sort(b.input("x", (2, 4096), F32), 1, descending=True, limit=kept)
    (dispatch,) = fuse(b.build([values])).dispatches
    assert lower * 2 * 4096 <= estimate_work(dispatch).operations <= upper * 2 * 4096


def test_cost_is_the_larger_of_memory_and_arithmetic():
    (dispatch,) = chain(1).dispatches
    work = estimate_work(dispatch)
    slow_memory = DeviceProfile("m", 1e6, 1e6, 0, {"f32": 1e15}, 1e-6, LinkProfile(1, 0), True)
    slow_units = DeviceProfile("u", 1e15, 1e15, 0, {"f32": 1e6}, 1e-6, LinkProfile(1, 0), True)
    assert seconds(work, slow_memory) == pytest.approx(work.bytes / 1e6 + 1e-6)
    assert seconds(work, slow_units) == pytest.approx(work.operations / 1e6 + 1e-6)


def test_the_faster_device_wins_and_says_so():
    graph = chain()
    result = place(graph, [device("slow", 1e9), device("fast", 1e12)], PlacementOptions())
    assert set(devices_of(result, graph)) == {"fast"}
    decision = result.decisions[0]
    assert decision.reason == "fastest"
    assert decision.costs["fast"] < decision.costs["slow"]


def test_handing_over_may_cost_more_than_it_saves():
    graph = chain(3)
    third = graph.dispatches[1]
    other = device("a", 1e9, handoff=1.0, refuses=lambda d: None)
    quick = device("b", 2e9, handoff=1.0, refuses=lambda d: "not here" if d is not third else None)
    result = place(graph, [other, quick], PlacementOptions())
    assert devices_of(result, graph) == ["a", "a", "a"]
    assert "handing over costs more than b saves" in result.decisions[1].reason


def test_pins_by_name_and_pattern():
    graph = chain(4)
    slots = [device("cpu", 1e12), device("gpu", 1e9)]
    result = place(graph, slots, PlacementOptions(pins=(("contraction_2", "gpu"),)))
    assert devices_of(result, graph) == ["cpu", "cpu", "gpu", "cpu"]
    assert result.decisions[2].reason == "pinned by 'contraction_2'"
    result = place(graph, slots, PlacementOptions(pins=(("*contraction*", "gpu"),)))
    assert set(devices_of(result, graph)) == {"gpu"}
    with pytest.raises(PlacementError, match="pinned to 'npu', but the devices are cpu, gpu"):
        place(graph, slots, PlacementOptions(pins=(("*", "npu"),)))
    with pytest.raises(
        PlacementError, match=r"no dispatch matches 'con', to be pinned to 'gpu'; there are contra"
    ):
        place(graph, slots, PlacementOptions(pins=(("con", "gpu"),)))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("pins", "contraction*=gpu", r"it takes \(pattern, device\) pairs"),
        ("pins", ("contraction*", "gpu"), r"pairs.*'contraction\*' is none"),
        ("pins", (("contraction*", 1),), "pinned to 1, which is no device's name"),
        ("memory", ("gpu", 100), r"it takes \(device, bytes\) pairs"),
        ("memory", 5, r"it takes \(device, bytes\) pairs"),
        ("memory", (("gpu", "2 lots"),), "limit of '2 lots' for 'gpu': it is a number of bytes"),
        ("memory", (("gpu", -1),), "limit of -1 for 'gpu'"),
        ("colocate", "contraction*", "it takes a tuple of patterns"),
        ("colocate", (1,), "1 is no pattern"),
        ("min_share", "0.2", "min_share '0.2' is not between 0 and 0.5"),
        ("min_share", 0.6, "not between 0 and 0.5"),
        ("search_seconds", -1, "search_seconds -1 is not a number of 0 or more"),
        ("search_seconds", float("nan"), "not a number of 0 or more"),
        ("objective", "speed", "not one of latency, throughput"),
        ("split", None, "not one of off, auto, all"),
        ("fallback", "gpu", "is not"),
    ],
)
def test_options_that_make_no_sense(field, value, said):
    with pytest.raises(PlacementError, match=said):
        PlacementOptions(**{field: value})


def test_memory_limits_may_have_units():
    assert PlacementOptions(memory={"gpu": "2GB"}).memory == (("gpu", 2_000_000_000),)


def test_mappings_and_lists_are_pairs():
    assert PlacementOptions(
        pins={"*": "gpu"}, memory=[["gpu", np.int64(7)]], colocate=["a", "b"]
    ) == PlacementOptions(pins=(("*", "gpu"),), memory=(("gpu", 7),), colocate=("a", "b"))


def test_the_former_name_of_an_option_warns():
    with pytest.warns(DeprecationWarning, match="together is now colocate"):
        options = PlacementOptions(together=["a", "b"])
    assert options == PlacementOptions(colocate=("a", "b"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dataclasses.replace(options, split="auto").colocate == ("a", "b")
    with (
        pytest.warns(DeprecationWarning, match="together is now colocate"),
        pytest.raises(PlacementError, match="1 is no pattern"),
    ):
        PlacementOptions(together=(1,))


def test_what_is_colocated_is_on_one_device():
    graph = chain(6)
    names = [dispatch.name for dispatch in graph.dispatches]
    only = device("only", 1e6, refuses=lambda d: None if d.name == names[2] else "it is another one")
    fast = device("fast", refuses=lambda d: "not that one" if d.name == names[2] else None)
    slow = device("slow", 1e8)
    apart = place(graph, [fast, slow, only], PlacementOptions())
    assert devices_of(apart, graph).count("fast") == 5
    options = PlacementOptions(colocate=(names[1], "contraction_*"))  # all but the first
    colocated = place(graph, [fast, slow, only], options)
    assert devices_of(colocated, graph) == ["fast", *["slow"] * 5]
    assert colocated.decisions[3].reason.startswith("co-located by")
    pins = ((names[0], "fast"), (names[1], "slow"))
    for pattern, message in (("nothing*", "no dispatch matches"), ("*", "no device may run all of them")):
        with pytest.raises(PlacementError, match=message):
            place(graph, [fast, slow], PlacementOptions(pins=pins, colocate=(pattern,)))


def test_groups_with_a_dispatch_in_common_are_one():
    assert merge_overlapping([(0, 1), (4,), (2, 3), (1, 2), (5, 6)]) == ((0, 1, 2, 3), (5, 6))


def test_unsupported_dispatches_fall_back_with_the_reason_or_refuse():
    graph = chain(2)
    bad = graph.dispatches[1]
    gpu = device("gpu", refuses=lambda d: "f64 needs float64" if d is bad else None)
    cpu = device("cpu", 1e3, fallback=True)
    result = place(graph, [gpu, cpu], PlacementOptions())
    assert devices_of(result, graph) == ["gpu", "cpu"]
    assert result.decisions[1].reason == "fallback: gpu: f64 needs float64"
    with pytest.raises(PlacementError, match=r"'contraction_1'.*forbids the CPU.*gpu: f64 needs float64"):
        place(graph, [gpu, cpu], PlacementOptions(fallback="error"))
    with pytest.raises(PlacementError, match="which cannot run it: f64 needs float64"):
        place(graph, [gpu, cpu], PlacementOptions(pins=(("contraction_1", "gpu"),)))


def test_no_device_at_all():
    graph = chain(1)
    with pytest.raises(PlacementError, match="no device can run it"):
        place(graph, [device("gpu", refuses=lambda d: "too old")], PlacementOptions())


def test_throughput_balances_stages_by_rate():
    graph = chain(9)
    result = place(graph, [device("a", 2e9), device("b", 1e9)], PlacementOptions(objective="throughput"))
    labels = devices_of(result, graph)
    assert labels.count("a") == 6 and labels.count("b") == 3
    assert sum(x != y for x, y in itertools.pairwise(labels)) == 1


def test_least_share_of_every_device():
    graph = chain(9)
    result = place(graph, [device("a", 1e12), device("b", 1e9)], PlacementOptions(min_share=1 / 3))
    assert devices_of(result, graph).count("b") == 3
    stubborn = device("b", 1e9, refuses=lambda d: "no")
    with pytest.raises(PlacementError, match="min_share"):
        place(graph, [device("a"), stubborn], PlacementOptions(min_share=1 / 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "speed"}, "objective 'speed' is not one of latency, throughput"),
        ({"fallback": "maybe"}, "fallback 'maybe'"),
        ({"min_share": 0.9}, "min_share"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(PlacementError, match=message):
        PlacementOptions(**options)


def test_the_prediction_is_the_run_of_the_placement():
    graph = chain(3)
    pins = PlacementOptions(pins=(("contraction_1", "b"), ("*", "a")))
    prediction = place(graph, [device("a", handoff=0.5), device("b", handoff=0.25)], pins).prediction
    took = seconds(estimate_work(graph.dispatches[0]), device("a").profile)
    there, back = (prediction.starts_ms[n + 1] / 1e3 - prediction.starts_ms[n] / 1e3 - took for n in (0, 1))
    assert (prediction.starts_ms[0], there, back) == (0, pytest.approx(0.5), pytest.approx(0.25))
    assert prediction.latency_ms == pytest.approx(prediction.starts_ms[2] + 1e3 * took)
    assert (
        prediction.latency_ms == prediction.cost_ms == prediction.bound_ms and prediction.gap == 0
    )  # nothing to choose
    assert prediction.objective == "latency"
    loaded = place(graph, [device("a"), device("b", 2e9)], PlacementOptions("throughput")).prediction
    assert loaded.objective == "throughput" and loaded.bound_ms <= loaded.cost_ms < loaded.latency_ms


def test_a_shared_producer_is_moved_once():
    b = GraphBuilder()
    x, w = b.input("x", (64, 64), F32), b.input("w", (64, 64), F32)
    a = matmul(b, x, w)
    graph = fuse(b.build([binary(b, "add", matmul(b, a, w), x), binary(b, "sub", matmul(b, a, x), w)]))
    result = place(
        graph, [device("a"), device("b")], PlacementOptions(pins=(("contraction", "a"), ("*", "b")))
    )
    assert devices_of(result, graph) == ["a", "b", "b"]


def test_shipped_profiles_exist_for_every_kind():
    for kind in ("cpu", "software", "discrete", "virtual", "integrated"):
        profile = default_profile(kind)
        assert profile.name == ("discrete" if kind == "virtual" else kind)
        assert profile.rate("f32") > 0 and profile.bandwidth > 0
    assert default_profile("").name == "simulated"


def weights_chain(length=4, size=64):
    """Products with constants of ``4 * size**2`` bytes each."""
    b = GraphBuilder()
    x = b.input("x", (size, size), F32)
    for n in range(length):
        w = b.constant(f"w{n}", Constant.of(np.ones((size, size), np.float32), f"w{n}"), (size, size), F32)
        x = unary(b, "exp", matmul(b, x, w))
    return fuse(b.build([x]))


def test_weights_beyond_a_devices_own_memory_go_elsewhere_with_the_reason():
    graph, each = weights_chain(), 4 * 64 * 64
    fast = dataclasses.replace(device("gpu", 1e12), memory=2 * each)
    for other in (device("cpu"), device("cpu", fallback=True)):
        result = place(graph, [fast, other], PlacementOptions())
        assert devices_of(result, graph).count("gpu") == 2
        why = [row.reason for row in result.decisions if row.device == "cpu"]
        assert all("gpu takes 0.03277 MB of weights, less than there are" in reason for reason in why)
    # What is asked for counts before what there is, and enough room is no limit.
    options = PlacementOptions(memory=(("gpu", each),))
    assert devices_of(place(graph, [fast, device("cpu")], options), graph).count("gpu") == 1
    roomy = dataclasses.replace(fast, memory=4 * each)
    assert (
        devices_of(place(graph, [roomy, device("cpu", fallback=True)], PlacementOptions()), graph)
        == ["gpu"] * 4
    )
    with pytest.raises(PlacementError, match=r"memory limits.*; gpu takes 0.03277 MB of the weights$"):
        place(graph, [fast], PlacementOptions())
    shares = PlacementOptions(min_share=0.5, memory=(("gpu", each),))
    told = r"; gpu takes 0.01638 MB of the weights; of 4 dispatches at least gpu 2, cpu 2$"
    with pytest.raises(PlacementError, match=told):
        place(graph, [fast, device("cpu")], shares)
