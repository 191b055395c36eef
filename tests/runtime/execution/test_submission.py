"""Batches of kernels and copies, run in any order their waits allow, compute what the plan says."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import F32, matmul
from support.plans.builder import CARD, CARD_BOUND_LATE, CPU, GPU, PlanBuilder, links
from support.plans.compiled import plan_of

from mansard import dims
from mansard.ir import GraphBuilder
from mansard.passes.fusion.fuse import fuse
from mansard.plan.arena import LiveRange, plan_arena
from mansard.plan.layout import lay_out
from mansard.plan.plan import DispatchStep
from mansard.plan.segments import SegmentIndex
from mansard.plan.stores import StoreCopy
from mansard.runtime.execution.submission import COMPUTE, FETCH, SEND, plan_submissions


@st.composite
def products(draw):
    """A graph of up to 24 matrix products, each a dispatch of its own, of values made not long before."""
    b = GraphBuilder("products")
    values = [b.input("x0", (4, 4), F32), b.input("x1", (4, 4), F32)]
    recent = st.integers(1, 4)
    for _ in range(draw(st.integers(3, 24))):
        values.append(matmul(b, *(values[-min(draw(recent), len(values))] for _ in range(2))))
    early = draw(st.integers(2, len(values) - 1))
    return b.build(list(dict.fromkeys((values[early], values[-1]))))


class Memory:
    """What lies where: the arenas of a layout, as `mansard.runtime.memory.stores` makes them."""

    def __init__(self, layout, sizes):
        self.place, groups = {}, {}
        for store in layout.stores:
            key = (store.home, store.allocator, store.use, store.kind, frozenset(store.members))
            groups.setdefault(key if store.role == "arena" else id(store), []).append(store)
        for key, group in groups.items():
            needed = [max(sizes[value.id] for value in store.values) for store in group]
            arena = plan_arena([LiveRange(n, s.first, s.last) for n, s in zip(needed, group, strict=True)])
            for store, size, offset in zip(group, needed, arena.offsets, strict=True):
                self.place[store] = (key, offset, offset + size)
        self.content = {}

    def write(self, store, what):
        arena, start, end = self.place[store]
        for other, (key, first, last) in self.place.items():
            if key == arena and first < end and start < last:
                self.content.pop(other, None)
        self.content[store] = what


def run(plan, layout, order, sizes):
    """Run batches in an order; returns what the host finds in the outputs."""
    memory = Memory(layout, sizes)
    sources = {copy.source for copies in layout.copies_before.values() for copy in copies}
    fed = {store for stores in layout.uploads for store in stores} | sources
    for store in layout.stores:
        if (
            store.role in ("constant", "state")
            or store in fed
            or (store.role == "argument" and not store.output)
        ):
            memory.write(store, f"original of {store.values[0].name}")
    computed = set()
    for work in order:
        for item in work.items:
            if isinstance(item, StoreCopy):
                memory.write(item.target, memory.content.get(item.source, "garbage"))
            elif isinstance(item, DispatchStep):
                *reads, write = [layout.of_value[binding.value] for binding in item.bindings]
                operands = [memory.content.get(store, "garbage") for store in reads]
                computed.add(f"{item.label}({', '.join(operands)})")
                memory.write(write, f"{hash(tuple(operands)):x}.{item.label}")
    return [memory.content[layout.readbacks[spec.value]] for spec in plan.outputs], computed


def an_order(draw, work):
    """The batches in some order that their waits allow."""
    left, order = [each for local in work for each in local], []
    while left:
        ready = [each for each in left if set(each.after) <= set(order)]
        order.append(ready[draw(st.integers(0, len(ready) - 1))])
        left.remove(order[-1])
    return order


@settings(max_examples=25, deadline=None)
@given(products(), st.data())
def test_every_order_that_the_waits_allow_gives_the_same(graph, data):
    fused = fuse(graph)
    kinds = [data.draw(st.sampled_from([CPU, GPU, CARD, CARD_BOUND_LATE])) for _ in range(3)]
    plan = plan_of(fused, [data.draw(st.integers(0, 2)) for _ in fused.dispatches], devices=3)
    sizes = {v.id: dims.evaluate(v.bytes, {d.name: 8 for d in plan.dims}) for v in plan.values}
    shared = lay_out(plan, links(*kinds, transfer_queue=False))
    none_separate = plan_submissions(plan, shared, lambda slot, copy: False)
    assert all(work.lane == COMPUTE for local in none_separate for work in local)
    expected = run(plan, shared, an_order(data.draw, none_separate), sizes)
    assert not any("garbage" in what for what in expected[1])
    layout, chosen = lay_out(plan, links(*kinds)), {}
    work = plan_submissions(
        plan, layout, lambda slot, copy: chosen.setdefault(copy, data.draw(st.booleans(), label=copy.label))
    )
    for _ in range(3):
        assert run(plan, layout, an_order(data.draw, work), sizes) == expected


def by_label(work):
    return {
        item.label: each for local in work for each in local for item in each.items if hasattr(item, "label")
    }


def two_chains():
    """On a card two products of what the CPU makes, independent of each other."""
    b = PlanBuilder("cpu", "card")
    x = b.input(0)
    a, c = b.value(0), b.value(0)
    a_card, c_card = b.value(1, first=0, last=1), b.value(1, first=3, last=4)
    b.segment(0, b.step("scale", x, a, params=(2,), label="a"))
    b.segment(0, b.step("scale", x, c, params=(3,), label="c"))
    y, z = b.output(1), b.output(1)
    b.segment(1, b.move(a, a_card), b.step("scale", a_card, y, params=(2,), label="y"), wait=[(0, 0)])
    b.segment(1, b.move(c, c_card), b.step("scale", c_card, z, params=(2,), label="z"), wait=[(0, 1)])
    return b.plan()


def test_what_the_next_segment_reads_comes_while_one_computes():
    plan = two_chains()
    layout = lay_out(plan, links(CPU, CARD))
    work = plan_submissions(plan, layout, lambda slot, copy: True)
    named = by_label(work)
    first, second = named["transfer v1"], named["transfer v2"]
    assert (first.lane, second.lane) == (FETCH, FETCH)
    assert named["c"] in second.after
    assert named["y"] not in second.after
    assert set(named["z"].after) == {named["c"], named["y"], second}
    # So both targets are alive while the first segment computes.
    assert layout.of_value[4].first <= layout.of_value[3].last


def test_without_a_transfer_queue_targets_are_taken_when_they_are_needed():
    plan = two_chains()
    layout = lay_out(plan, links(CPU, CARD, transfer_queue=False))
    assert layout.of_value[4].first > layout.of_value[3].last


def test_outputs_leave_while_the_rest_computes():
    plan = two_chains()
    layout = lay_out(plan, links(CPU, CARD))
    named = by_label(plan_submissions(plan, layout, lambda slot, copy: True))
    early = named["download v5"]
    assert early.lane == SEND
    assert early.after == [named["y"]]
    assert early not in named["z"].after


def test_an_output_in_the_middle_of_a_segment_cuts_it():
    b = PlanBuilder("card")
    x, y, z = b.input(), b.output(), b.output()
    b.segment(0, b.step("scale", x, y, params=(2,), label="y"), b.step("scale", y, z, params=(2,), label="z"))
    plan = b.plan()
    layout = lay_out(plan, links(CARD))
    apart = by_label(plan_submissions(plan, layout, lambda slot, copy: copy.label == "download v1"))
    assert apart["download v1"].after == [apart["y"]]
    assert apart["y"] in apart["z"].after
    assert apart["download v1"] not in apart["z"].after
    unseparated = by_label(plan_submissions(plan, layout, lambda slot, copy: False))
    assert len(set(unseparated.values())) == 1


def test_kernels_wait_for_what_they_read_alone():
    """Of one segment: what the second kernel reads comes while the first runs, from the host or a device."""
    b = PlanBuilder("cpu", "card")
    x0, x1, cpu_in = b.input(1), b.input(1), b.input(0)
    produced, fetched = b.value(0), b.value(1, first=4, last=6)
    y, z, w = b.output(1), b.output(1), b.output(1)
    b.segment(0, b.step("scale", cpu_in, produced, params=(2,), label="made"))
    b.segment(
        1,
        b.step("scale", x0, y, params=(2,), label="y"),
        b.step("scale", x1, z, params=(2,), label="z"),
        b.move(produced, fetched),
        b.step("scale", fetched, w, params=(2,), label="w"),
        wait=[(0, 0)],
    )
    plan = b.plan()
    layout = lay_out(plan, links(CPU, CARD))
    named = by_label(plan_submissions(plan, layout, lambda slot, copy: True))
    assert set(named["y"].after) == {named["made"], named["upload x0"]}
    assert set(named["z"].after) == {named["y"], named["upload x1"]}
    assert set(named["w"].after) == {named["z"], named["transfer v3"]}
    assert named["y"] not in named["transfer v3"].after
    assert layout.of_value[fetched].first == 0
    small = plan_submissions(plan, layout, lambda slot, copy: False)
    assert [len(local) for local in small] == [1, 1]


def test_contents_change_in_place_when_they_have_left():
    b = PlanBuilder("card")
    x, y, z = b.input(), b.output(), b.output()
    b.segment(0, b.step("scale", x, y, params=(2,), label="y"))
    b.segment(0, b.step("add", y, y, y, label="twice"), b.step("scale", y, z, params=(2,), label="z"))
    plan = b.plan()
    layout = lay_out(plan, links(CARD))
    # The download is of the contents that come last, behind the segment that makes them.
    named = by_label(plan_submissions(plan, layout, lambda slot, copy: True))
    assert named["download v1"].after == [named["twice"]]


def test_segments_know_what_has_ended():
    segments = SegmentIndex(two_chains())
    assert segments.ended(1, 1, 0) == 1
    assert segments.ended(1, 1, 1) == 0
    assert segments.ended(0, 1, 1) == -1
    assert segments.start(1, 1) == 3
    assert segments.earliest_overlap(1, 1, (0, 1)) == 0
    assert segments.earliest_overlap(1, 0, (0, 0)) == 0
    chained = replace(two_chains().devices[0], segments=())
    assert SegmentIndex(replace(two_chains(), devices=(chained,))).writers(3, 0) == []


def test_a_value_made_in_parts_is_written_where_its_parts_are():
    b = PlanBuilder("card")
    x, y = b.input(), b.output()
    part = b.value(part_of=y, part_offset=0)
    b.segment(0, b.step("scale", x, part, params=(2,)))
    b.segment(0, b.step("scale", y, b.output(), params=(2,)))
    assert SegmentIndex(b.plan()).writers(y, 0) == [0]
    assert SegmentIndex(b.plan()).users(y, 0) == [0, 1]


def test_memory_that_devices_fill_for_each_other_is_used_again():
    """However often a chain goes to and fro, what crosses does not stay until the call ends."""
    sizes = []
    for steps in (8, 32):
        b = GraphBuilder("chain")
        x = w = b.input("x", (4, 4), F32)
        for _ in range(steps):
            x = matmul(b, x, w)
        fused = fuse(b.build([x]))
        plan = plan_of(fused, [n % 2 for n in range(steps)])
        for kinds in ((CPU, CARD), (CARD, CARD)):
            layout = lay_out(plan, links(*kinds))
            shared_stores = [s for s in layout.stores if len(s.members) == 2]
            assert len(shared_stores) >= steps - 1
            sizes.append(
                sum(
                    plan_arena([LiveRange(64, s.first, s.last) for s in home_stores]).size
                    for home_stores in ([s for s in shared_stores if s.home == home] for home in (0, 1))
                )
            )
    assert sizes[:2] == sizes[2:]
