"""The devices of units against all assignments there are."""

import itertools

import numpy as np
import pytest
from support.placements import profile

from mansard.placement.cost import transfer_seconds
from mansard.placement.methods.assign import HANDED_OVER, assign
from mansard.placement.methods.method import Resident
from mansard.placement.methods.units import Chain, Unit


def random_chain(seed, roles, devices, count=5):
    """Units that hold some bytes and states; the first and the last share a table and, in some, a state."""
    rng = np.random.default_rng(seed)
    units = []
    for _ in range(count):
        seconds = rng.uniform(0.1, 1.0, (roles, devices))
        if rng.uniform() < 0.2:
            seconds[0, int(rng.integers(devices))] = np.inf
        units.append(Unit({}, {}, seconds, int(rng.integers(1, 9)), int(rng.integers(0, 3))))
    wide = [Resident(5, False)] + [Resident(1, True)] * int(rng.integers(2))
    for unit in (units[0], units[-1]):
        for role in range(roles):
            unit.wide[role] = set(range(len(wide)))
    profiles = [
        profile(f"d{i}", float(rng.uniform(0, 0.2)), 20.0, bool(rng.integers(2))) for i in range(devices)
    ]
    return Chain(tuple(units), rng.integers(0, 4, (count, roles)).astype(float), tuple(wide)), profiles


def all_assignments(chain, profiles, limits, calls):
    """The least seconds of any assignment within the limits, or None."""
    devices, best = range(len(profiles)), None
    per_unit = list(itertools.product(devices, repeat=len(calls)))
    for options in itertools.product(per_unit, repeat=len(chain.units)):
        held = [0] * len(profiles)
        wide = [set() for _ in chain.wide]
        cost, splits = 0.0, False
        for number, (unit, option) in enumerate(zip(chain.units, options, strict=True)):
            cost += sum(c * unit.seconds[r, d] for r, (c, d) in enumerate(zip(calls, option, strict=True)))
            for other in set(option[1:]) - {option[0]} if unit.states else ():
                cost += HANDED_OVER * transfer_seconds(unit.states, profiles[option[0]], profiles[other])
            for device in set(option):
                held[device] += unit.constants + unit.states
            for r, (source, target) in enumerate(zip(options[number - 1], option, strict=True)):
                if number and source != target:
                    size = int(chain.live[number - 1, r])
                    cost += calls[r] * transfer_seconds(size, profiles[source], profiles[target])
            for r, residents in unit.wide.items():
                for resident in residents:
                    wide[resident].add(option[r])
        for resident, on in zip(chain.wide, wide, strict=True):
            splits |= resident.is_state and len(on) > 1
            for device in on:
                held[device] += resident.bytes
        within = all(limit is None or size <= limit for size, limit in zip(held, limits, strict=True))
        if within and not splits and np.isfinite(cost) and (best is None or cost < best):
            best = cost
    return best


@pytest.mark.parametrize(
    ("roles", "devices", "count"),
    [(1, 2, 6), (2, 2, 4), (1, 3, 5)],
    ids=["one role", "two roles", "three devices"],
)
def test_no_assignment_within_the_limits_is_faster(roles, devices, count):
    outcomes = set()
    for seed in range(12):
        chain, profiles = random_chain(seed, roles, devices, count)
        rng = np.random.default_rng(seed)
        limits = [int(rng.integers(4, 26)) if d == 0 or rng.uniform() < 0.4 else None for d in range(devices)]
        calls = [float(rng.integers(1, 5)) for _ in range(roles)]
        expected = all_assignments(chain, profiles, limits, calls)
        outcomes.add(expected is None)
        if expected is None:
            assert assign(chain, profiles, limits, calls, [None] * roles) is None
            continue
        result = assign(chain, profiles, limits, calls, [None] * roles)
        assert result.seconds == pytest.approx(expected)
        assert all(limit is None or h <= limit for h, limit in zip(result.held, limits, strict=True))
    assert False in outcomes


def test_roles_run_where_they_are_wanted_as_far_as_that_is_able_to():
    chain, profiles = random_chain(3, 2, 2, 6)
    chain.units[2].seconds[0, 1] = np.inf
    for unit in chain.units:
        unit.wide.clear()
    result = assign(Chain(chain.units, chain.live, ()), profiles, [None, None], [1.0, 1.0], [1, 0])
    assert [option[0] for option in result.options] == [
        1 if np.isfinite(unit.seconds[0, 1]) else 0 for unit in chain.units
    ]
    assert [option[1] for option in result.options] == [0] * 6


def test_sixty_layers_are_placed_in_no_time_within_a_percent_of_the_best_division():
    unit = Unit({}, {}, np.array([[0.1, 1.0]]), 7, 2)
    small = Unit({}, {}, np.array([[0.02, 0.1]]), 1, 0)
    chain = Chain((unit, small) * 60, np.zeros((120, 1)), ())
    profiles = [profile("fast", 0.01, 1e9, True), profile("slow", 0.01, 1e9, True)]
    result = assign(chain, profiles, [200, None], [1.0], [None])
    assert result.held[0] <= 200
    assert len(result.options) == 120
    # 22 large units gain 0.1 a byte, the rest goes to small ones, which gain 0.08.
    least = 60 * 1.1 - 22 * 0.9 - 2 * 0.08
    assert result.seconds <= least * 1.01


def test_a_wanted_device_takes_as_much_as_it_has_memory_for():
    sizes = (5, 4, 3)
    units = tuple(Unit({}, {}, np.array([[0.1, 9.0], [0.1, 9.0]]), size, 0) for size in sizes)
    chain = Chain(units, np.zeros((3, 2)), ())
    profiles = [profile("cpu", 0.01, 1e9, True), profile("npu", 0.01, 1e9, False)]
    result = assign(chain, profiles, [None, 8], [1.0, 1.0], [1, 0])
    assert [option[0] for option in result.options] == [1, 0, 1]
    assert [option[1] for option in result.options] == [0, 0, 0]
    assert result.held == (12, 8)
