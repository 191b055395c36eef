"""The arena planner: nothing alive overlaps, and memory is shared where lifetimes allow."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.plan.arena import ALIGNMENT, LiveRange, plan_arena

leases = st.lists(
    st.builds(
        lambda size, first, length: LiveRange(size, first, first + length),
        st.integers(0, 5000),
        st.integers(0, 30),
        st.integers(0, 10),
    ),
    max_size=40,
)


def peak(items: list[LiveRange]) -> int:
    """The most bytes alive in one epoch, rounded up to the alignment: no plan can need less."""

    def rounded(lease: LiveRange) -> int:
        return -(-lease.size // ALIGNMENT) * ALIGNMENT

    epochs = {lease.first for lease in items}
    return max((sum(rounded(x) for x in items if x.first <= e <= x.last) for e in epochs), default=0)


def by_size(items: list[LiveRange]) -> int:
    """The arena of the plain greedy placement, largest first, each at the lowest place that is free."""
    placed: list[tuple[int, int, LiveRange]] = []
    for lease in sorted(items, key=lambda x: (-x.size, x.first)):
        size, start = -(-lease.size // ALIGNMENT) * ALIGNMENT, 0
        for low, high, other in sorted(placed, key=lambda p: p[0]):
            if other.overlaps(lease) and low < start + size and start < high:
                start = high
        placed.append((start, start + size, lease))
    return max((high for _, high, lease in placed if lease.size), default=0)


@settings(max_examples=300, deadline=None)
@given(leases)
def test_live_ranges_never_overlap(items):
    plan = plan_arena(items)
    assert len(plan.offsets) == len(items)
    for i, a in enumerate(items):
        assert plan.offsets[i] % ALIGNMENT == 0
        assert plan.offsets[i] + a.size <= plan.size or a.size == 0
        for j, b in enumerate(items[:i]):
            if a.size and b.size and a.overlaps(b):
                apart = (
                    plan.offsets[i] + a.size <= plan.offsets[j] or plan.offsets[j] + b.size <= plan.offsets[i]
                )
                assert apart
    assert plan.lower_bound == peak(items)
    assert plan.size >= plan.lower_bound
    assert plan == plan_arena(items)


@settings(max_examples=100, deadline=None)
@given(leases)
def test_arenas_stay_close_to_the_lower_bound(items):
    plan = plan_arena(items)
    assert plan.size <= 1.25 * plan.lower_bound
    assert plan.size <= by_size(items) or plan.size == plan.lower_bound


def test_another_order_is_found_where_the_largest_first_wastes_memory():
    claims = [(6144, 6, 9), (4096, 4, 5), (7168, 7, 11), (5120, 2, 6), (7168, 3, 3)]
    items = [LiveRange(*claim) for claim in claims]
    assert by_size(items) > peak(items)
    assert plan_arena(items).size == peak(items)


def test_values_that_live_forever_go_with_others():
    items = [LiveRange(1000), LiveRange(5000, 0, 3), LiveRange(5000, 4, 9), LiveRange(256)]
    assert plan_arena(items).size == 1024 + 256 + 5120


def test_a_chain_needs_room_for_two():
    chain = [LiveRange(1000, i, i + 1) for i in range(50)]
    assert plan_arena(chain).size == 2 * 1024


def test_the_tightest_gap_is_used():
    large = LiveRange(4096, 0, 9)
    early, late = LiveRange(2048, 0, 3), LiveRange(1024, 5, 9)
    fits = LiveRange(1024, 5, 9)
    plan = plan_arena([large, early, late, fits])
    assert plan.size == 4096 + 2048


def test_nothing_needs_nothing():
    assert plan_arena([]).size == 0
    assert plan_arena([LiveRange(0), LiveRange(0)]).size == 0
