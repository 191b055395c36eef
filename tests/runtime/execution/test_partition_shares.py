"""Shares of partitioned dispatches follow the rates that calls measure, and nothing else."""

import numpy as np
import pytest

from mansard import dims
from mansard.dims import Dim
from mansard.hal import ProfileRow
from mansard.plan.plan import SplitPiece, SplitSpec
from mansard.runtime.execution.partition_shares import STEPS, WINDOW, PartitionShares, balanced
from mansard.runtime.memory.signature import PreparedInputs

TOTAL, UNIT = 512, 4
NAMES = ("fast", "slow", "other")


def shares_of(count, initial=None, total=TOTAL, unit=UNIT, dispatches=1):
    symbols = [Dim(f"s{i}", unit, total - unit * (count - 1), unit) for i in range(count - 1)]
    first = [dims.symbol(dim) for dim in symbols]
    sizes = (*first, dims.add(total, *(dims.mul(size, -1) for size in first)))
    even = total // count // unit * unit
    initial = initial or (*[even] * (count - 1), total - even * (count - 1))
    pieces = tuple(
        tuple(SplitPiece(i, f"d{n}.{i}", (f"transfer d{n}.{i}",)) for i in range(count))
        for n in range(dispatches)
    )
    return PartitionShares([SplitSpec("rows", total, sizes, initial, pieces)], NAMES)


def row(label, seconds):
    return ProfileRow(label, 0, round(seconds * 1e9))


def call(shares, rates, disturbed=1.0):
    """One call on devices that do so many rows a second; the first takes longer by a factor."""
    sizes = shares.applied(PreparedInputs((), {"n": 3}, False)).dims
    assert sizes["n"] == 3
    (share,) = shares.now()
    rows = []
    for i, (extent, rate) in enumerate(zip(share.extents, rates, strict=True)):
        seconds = extent / rate * (disturbed if i == 0 else 1.0)
        rows.append(
            [row(f"d{n}.{i}", seconds) for n in range(share.dispatches)] + [row("something else", 1.0)]
        )
    shares.observe(sizes, rows)
    return share


@pytest.mark.parametrize("rates", [(1.0, 1.0), (3.0, 1.0), (1.0, 20.0), (1.0, 2.0, 5.0), (1e6, 1e3)])
def test_shares_settle_at_the_ratio_of_rates(rates):
    shares = shares_of(len(rates))
    for _ in range(4):
        call(shares, rates)
    (share,) = shares.now()
    assert sum(share.extents) == TOTAL
    ends = max(e / r for e, r in zip(share.extents, rates, strict=True))
    best = TOTAL / sum(rates)
    # Within the hysteresis and a step of the slowest, which has a unit at least.
    assert ends <= max(best * 1.05 + TOTAL / STEPS / min(rates), UNIT / min(rates))
    settled = share
    for _ in range(5):
        call(shares, rates)
    assert shares.now() == [settled]


def test_a_device_that_slows_down_gets_less_within_a_few_calls_and_more_again():
    shares = shares_of(2)
    for _ in range(3):
        call(shares, (2.0, 2.0))
    for _ in range(WINDOW):
        call(shares, (1.0, 2.0))
    (share,) = shares.now()
    assert share.fractions["fast"] == pytest.approx(1 / 3, abs=2 / STEPS)
    for _ in range(WINDOW):
        call(shares, (2.0, 2.0))
    (share,) = shares.now()
    assert share.fractions["fast"] == pytest.approx(1 / 2, abs=2 / STEPS)


def test_one_disturbed_call_changes_nothing():
    shares = shares_of(2)
    for _ in range(3):
        call(shares, (1.0, 1.0))
    before = shares.now()
    call(shares, (1.0, 1.0), disturbed=10.0)
    call(shares, (1.0, 1.0))
    assert shares.now() == before


def test_noise_makes_few_recordings():
    shares, rng = shares_of(2), np.random.default_rng(0)
    seen = set()
    for _ in range(300):
        noise = rng.normal(1.0, 0.05, 2)
        seen.add(call(shares, (2.0 * noise[0], 1.0 * noise[1])).extents)
    assert len(seen) <= 8
    (share,) = shares.now()
    assert share.fractions["fast"] == pytest.approx(2 / 3, abs=0.08)


def test_where_times_are_noise_shares_come_to_rest():
    shares, rng = shares_of(3), np.random.default_rng(1)
    changes, before = 0, shares.now()
    for _ in range(400):
        call(shares, rng.uniform(0.6, 1.0, 3))
        changes, before = changes + (shares.now() != before), shares.now()
    assert 0 < changes < 60


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_shares_stay_where_kernels_fill_their_rounds(noise):
    """Devices do 128 rows a round, the first a little slower: by rates it should give rows to the second, and
    get some back when that costs a whole round. What was measured of the first division is better."""
    shares, rng = shares_of(2), np.random.default_rng(2)
    longest, recorded = [], set()
    for _ in range(60):
        (share,) = shares.now()
        times = [-(-e // 128) * t for e, t in zip(share.extents, (1.15, 1.0), strict=True)]
        sizes = shares.applied(PreparedInputs((), {}, False)).dims
        shares.observe(sizes, [[row(f"d0.{i}", t * (1 + rng.normal(0, noise)))] for i, t in enumerate(times)])
        longest.append(max(times))
        recorded.add(share.extents)
    assert longest.count(2 * 1.15) >= 48
    assert len(recorded) <= 8


@pytest.mark.parametrize("calls", range(1, 9))
def test_what_was_measured_of_a_slower_device_does_not_last(calls):
    """However soon after a change of shares the device recovers."""
    shares = shares_of(2)
    for _ in range(6):
        call(shares, (1.0, 1.0))
    for _ in range(calls):
        call(shares, (0.25, 1.0))
    for _ in range(24):
        share = call(shares, (1.0, 1.0))
    assert share.fractions["fast"] > 0.4


def test_copies_of_a_piece_count_as_its_time():
    shares = shares_of(2)
    sizes = shares.applied(PreparedInputs((), {}, False)).dims
    for _ in range(WINDOW):
        shares.observe(sizes, [[row("d0.0", 1.0), row("transfer d0.0", 1.0)], [row("d0.1", 1.0)]])
    assert shares.now()[0].fractions["fast"] == pytest.approx(1 / 3, abs=2 / STEPS)


def test_dispatches_partitioned_alike_count_together():
    shares = shares_of(2, dispatches=2)
    sizes = shares.applied(PreparedInputs((), {}, False)).dims
    slow, fast = [row("d0.0", 1.0), row("d1.0", 3.0)], [row("d0.1", 1.0), row("d1.1", 1.0)]
    shares.observe(sizes, [slow, fast])
    assert shares.now()[0].fractions["fast"] == pytest.approx(1 / 3, abs=2 / STEPS)


def test_a_call_without_times_teaches_nothing():
    shares = shares_of(2)
    before = shares.now()
    shares.observe(shares.applied(PreparedInputs((), {}, False)).dims, [[row("d0.0", 1.0)], []])
    assert shares.now() == before


def test_a_call_keeps_the_shares_it_began_with():
    shares = shares_of(2)
    begun = shares.applied(PreparedInputs((), {}, False))
    for _ in range(WINDOW):
        call(shares, (1.0, 5.0))
    assert shares.applied(begun) is begun
    assert shares.applied(PreparedInputs((), {}, False)).dims != begun.dims


def test_plans_without_splits_are_left_alone():
    prepared = PreparedInputs((), {"n": 1}, False)
    assert not PartitionShares().active
    assert PartitionShares().applied(prepared) is prepared


@pytest.mark.parametrize("total", [17, 64, 100, 4097])
@pytest.mark.parametrize("unit", [1, 4, 8])
def test_extents_are_multiples_within_limits(total, unit):
    rng = np.random.default_rng(total)
    for count in (2, 3, 4):
        if total < unit * count:
            continue
        limits = [total - unit * (count - 1)] * (count - 1)
        for _ in range(20):
            extents = balanced(list(rng.random(count) ** 4 + 1e-9), total, unit, limits)
            assert sum(extents) == total and min(extents) >= unit
            assert all(extent % unit == 0 for extent in extents[:-1])


def test_a_share_reads_well():
    (share,) = shares_of(3).now()
    assert str(share) == "512 rows of 1 dispatches: 33% fast, 33% slow, 34% other"
