"""The time that a search is charged for."""

import pytest

from mansard.placement.search.clock import MAX_SLOWDOWN, CpuClock


def test_the_clock_charges_a_part_of_wall_time(monkeypatch):
    monkeypatch.setattr("time.thread_time", lambda: 0.0)
    monkeypatch.setattr("time.perf_counter", lambda: 10.0)
    clock = CpuClock()
    assert clock.elapsed() == 0.0
    monkeypatch.setattr("time.perf_counter", lambda: 13.0)
    assert clock.elapsed() == 3.0 / MAX_SLOWDOWN
    assert clock.wall_seconds(2.0) == 2.0 * MAX_SLOWDOWN
    monkeypatch.setattr("time.thread_time", lambda: 2.5)
    assert clock.elapsed() == 2.5
    assert clock.wall_seconds(2.0) == pytest.approx(2.0 * 3.0 / 2.5)
