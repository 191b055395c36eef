"""The plan builder: segments, waits, barriers, transfers and lifetimes, checked as properties.

The checks replay a plan: every value is written before it is read, in an order the plan enforces, and
two values whose lifetimes allow one memory are never alive together.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import F32, binary, matmul, random_graphs, unary
from support.plans.compiled import plan_of

from mansard import dims
from mansard.compiler.planning.activations import activation_arenas, describe
from mansard.dims import Dim
from mansard.ir import GraphBuilder
from mansard.passes.fusion.fuse import fuse
from mansard.plan.arena import ALIGNMENT
from mansard.plan.plan import BarrierStep, DispatchStep, TransferStep, ValueSpec

N = dims.symbol(Dim("n", 1, 64))


def segments(plan):
    return {(d, n): s for d, device in enumerate(plan.devices) for n, s in enumerate(device.segments)}


def ancestors(plan):
    """Every segment with the segments certain to have ended before it starts."""
    before = {}

    def visit(key):
        if key not in before:
            before[key] = set()
            for other in segments(plan)[key].wait:
                before[key] |= {other} | visit(other)
        return before[key]

    for key in segments(plan):
        visit(key)
    return before


def accesses(plan):
    """(segment key, epoch on its device, value, writes) in step order."""
    inputs_of = {}
    rows = []
    for d, device in enumerate(plan.devices):
        epoch = 0
        for n, segment in enumerate(device.segments):
            for step in segment.steps:
                if isinstance(step, BarrierStep):
                    epoch += 1
                elif isinstance(step, TransferStep):
                    rows.append(((d, n), epoch, step.target, True, step.source))
                elif isinstance(step, DispatchStep):
                    inputs_of.setdefault(step.label, step)
                    rows.extend(((d, n), epoch, b.value, None, step.label) for b in step.bindings)
            epoch += 1
    return rows


@settings(max_examples=30, deadline=None)
@given(random_graphs(), st.data())
def test_plans_order_every_read_after_its_write(graph, data):
    fused = fuse(graph)
    labels = [data.draw(st.integers(0, 1)) for _ in fused.dispatches]
    plan = plan_of(fused, labels)
    before = ancestors(plan)
    values = {v.id: v for v in plan.values}
    by_name = {d.name: d for d in fused.dispatches}
    written = {v.id: ((0, -1), -1) for v in plan.values if v.kind in ("input", "constant")}
    place_of = {}
    for key, segment in sorted(segments(plan).items(), key=lambda item: (len(before[item[0]]), item[0])):
        epoch = 0
        for step in segment.steps:
            if isinstance(step, BarrierStep):
                epoch += 1
                continue
            if isinstance(step, TransferStep):
                source, _ = written[step.source]
                assert source[1] < 0 or source in before[key], "a transfer waits for its source"
                written[step.target] = (key, epoch)
                continue
            dispatch = by_name[step.label]
            place_of[step.label] = key
            count = len(dispatch.inputs)
            for binding in step.bindings[:count]:
                made_in, made_at = written[binding.value]
                later = made_in[1] < 0 or made_in in before[key] or (made_in == key and made_at < epoch)
                assert later, f"{step.label} reads {values[binding.value].name} too early"
                assert values[binding.value].device == key[0]
            for binding in step.bindings[count:]:
                written[binding.value] = (key, epoch)
    assert set(place_of) == set(by_name)
    for spec in plan.outputs:
        assert spec.value in written


@settings(max_examples=30, deadline=None)
@given(random_graphs(), st.data())
def test_lifetimes_cover_every_use_also_on_other_devices(graph, data):
    fused = fuse(graph)
    labels = [data.draw(st.integers(0, 1)) for _ in fused.dispatches]
    plan = plan_of(fused, labels)
    before = ancestors(plan)
    values = {v.id: v for v in plan.values}
    first_epoch = {}
    for d, device in enumerate(plan.devices):
        epoch = 0
        for n, segment in enumerate(device.segments):
            first_epoch[d, n] = epoch
            epoch += 1 + sum(isinstance(s, BarrierStep) for s in segment.steps)
    copies = {}
    for row in accesses(plan):
        key, epoch, value, _, source = row
        assert values[value].first <= epoch <= values[value].last or values[value].kind == "constant"
        if isinstance(source, int):
            copies[value] = source
    # A value that shares memory with its copy lives until the copy's last reader has surely ended.
    for key, _, value, _, _ in accesses(plan):
        if value in copies and values[copies[value]].kind == "transient":
            origin = values[copies[value]]
            for (d, n), start in first_epoch.items():
                if d == origin.device and start > origin.last:
                    assert key in before[d, n]


def test_one_device_is_one_segment_with_barriers_only_where_needed():
    b = GraphBuilder()
    x, w = b.input("x", (8, 8), F32), b.input("w", (8, 8), F32)
    left, right = matmul(b, x, w), matmul(b, w, x)
    fused = fuse(b.build([matmul(b, left, right)]))
    plan = plan_of(fused, [0, 0, 0], devices=1)
    (segment,) = plan.devices[0].segments
    kinds = [type(s).__name__ for s in segment.steps]
    assert kinds == ["DispatchStep", "DispatchStep", "BarrierStep", "DispatchStep"]
    assert segment.wait == ()


def test_async_boundaries_are_waits_between_segments():
    b = GraphBuilder()
    x, w = b.input("x", (8, 8), F32), b.input("w", (8, 8), F32)
    a = matmul(b, x, w)
    c = matmul(b, a, w)
    d = matmul(b, unary(b, "exp", x), w)
    fused = fuse(b.build([binary(b, "add", c, d)]))
    labels = [0 if a in g.outputs else 1 if c in g.outputs else 0 for g in fused.dispatches]
    plan = plan_of(fused, labels)
    assert plan.devices[1].segments[0].wait == ((0, 0),)
    assert any((1, 0) in s.wait for s in plan.devices[0].segments) or len(plan.devices[0].segments) == 2
    crossing = [s for s in plan.devices[1].segments[0].steps if isinstance(s, TransferStep)]
    moved = {plan.values[s.target].name for s in crossing}
    assert a.name in moved
    shared = {v.name for v in plan.values if v.shared}
    assert a.name in shared


def test_unused_inputs_keep_their_place_in_the_call():
    b = GraphBuilder()
    x, unused = b.input("x", (4,), F32), b.input("unused", (2,), F32)
    plan = plan_of(fuse(b.build([unary(b, "neg", x)])), [0], devices=1)
    assert [i.name for i in plan.inputs] == ["x", "unused"]
    ids = {v.id: v.name for v in plan.values}
    assert ids[plan.inputs[1].value] == unused.name


def test_states_stay_on_one_device():
    from mansard.errors import CompileError

    b = GraphBuilder()
    x = b.input("x", (4, 4), F32)
    s = b.state("s", (4, 4), F32)
    a, c = matmul(b, x, s), matmul(b, s, x)
    b.update_state(s, a)
    fused = fuse(b.build([c]))
    plan = plan_of(fused, [0, 0])
    ((entry, exit_),) = plan.states
    assert plan.values[entry].kind == plan.values[exit_].kind == "state"
    with pytest.raises(CompileError, match="pin its users to one device"):
        plan_of(fused, [0, 1])


# Memory -------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(random_graphs())
def test_the_plan_tells_its_activations(graph):
    plan = plan_of(fuse(graph), [0] * len(fuse(graph).dispatches), devices=1)
    (arena,) = activation_arenas(plan.values, 1)
    transients = [v for v in plan.values if v.kind == "transient"]
    epochs = {v.first for v in transients}
    rounded = {v.id: -(-v.bytes // ALIGNMENT) * ALIGNMENT for v in transients}
    peak = max((sum(rounded[v.id] for v in transients if v.first <= e <= v.last) for e in epochs), default=0)
    assert arena.lower_bound == peak
    assert plan.info == {"activations on d0": f"{arena.size} bytes planned, lower bound {peak}"}


def test_activations_of_unknown_sizes_are_planned_by_the_runtime():
    fixed, varying = ValueSpec(0, "a", "transient", 0, 512), ValueSpec(1, "b", "transient", 1, N)
    first, second = activation_arenas([fixed, varying], 2)
    assert (first.size, first.lower_bound) == (512, 512)
    assert second is None
    assert describe(second) == "by shape"
