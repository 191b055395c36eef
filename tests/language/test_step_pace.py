"""How many decode steps are submitted together."""

from __future__ import annotations

import pytest

from mansard.language import step_pace
from mansard.language.step_pace import MAX_TOGETHER, TOGETHER_S, Flight, StepPace


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets."""
    now = [100.0]
    monkeypatch.setattr(step_pace.time, "perf_counter", lambda: now[0])
    return now


def test_short_steps_are_submitted_together(clock):
    pace = StepPace(sequences=True)
    assert (pace.limit, pace.count(0), pace.count(8)) == (1, 1, 1)
    pace.read(Flight([None] * 1, behind=False))  # how long it took is not known
    assert pace.limit == 1
    clock[0] += TOGETHER_S / 3.5
    pace.read(Flight([None] * 1, behind=True))
    assert pace.limit == 3
    assert [pace.count(before) for before in (0, 1, 2, 3)] == [1, 2, 3, 3]
    clock[0] += 2 * TOGETHER_S / 100
    pace.read(Flight([None] * 2, behind=True))
    assert pace.limit == MAX_TOGETHER
    clock[0] += 50
    pace.read(Flight([None] * 1, behind=False))
    assert pace.limit == MAX_TOGETHER
    clock[0] += 3 * 2 * TOGETHER_S
    pace.read(Flight([None] * 3, behind=True))
    assert pace.limit == 1


def test_a_device_that_gains_nothing_gets_one_step_at_a_time(clock):
    pace = StepPace(sequences=False)
    pace.read(Flight([None] * 1, behind=False))
    clock[0] += TOGETHER_S / 100
    pace.read(Flight([None] * 1, behind=True))
    assert pace.limit == pace.count(5) == 1
