"""The arena planner: nothing alive overlaps, and memory is shared where lifetimes allow."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mansard.runtime.arena import ALIGNMENT, Lease, plan_arena

leases = st.lists(
    st.builds(
        lambda size, first, length: Lease(size, first, first + length),
        st.integers(0, 5000),
        st.integers(0, 30),
        st.integers(0, 10),
    ),
    max_size=40,
)


def peak(items: list[Lease]) -> int:
    """The most bytes alive in one epoch, rounded up to the alignment: no plan can need less."""

    def rounded(lease: Lease) -> int:
        return -(-lease.size // ALIGNMENT) * ALIGNMENT

    epochs = {lease.first for lease in items}
    return max((sum(rounded(x) for x in items if x.first <= e <= x.last) for e in epochs), default=0)


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
    assert plan.size >= peak(items)


def test_a_chain_needs_room_for_two():
    chain = [Lease(1000, i, i + 1) for i in range(50)]
    assert plan_arena(chain).size == 2 * 1024


def test_the_tightest_gap_is_used():
    large = Lease(4096, 0, 9)
    early, late = Lease(2048, 0, 3), Lease(1024, 5, 9)
    fits = Lease(1024, 5, 9)
    plan = plan_arena([large, early, late, fits])
    assert plan.size == 4096 + 2048


def test_nothing_needs_nothing():
    assert plan_arena([]).size == 0
    assert plan_arena([Lease(0), Lease(0)]).size == 0
