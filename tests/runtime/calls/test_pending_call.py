"""Calls that are begun before the result of the one before is fetched."""

from __future__ import annotations

import numpy as np
import pytest
from support import fake_device
from support.fake_device import gpu_options
from support.plans.builder import PlanBuilder, X, bound

from mansard.errors import CallCancelledError, ExecutionError

OPTIONS = [{}, gpu_options("unified"), gpu_options("discrete")]


def counting() -> PlanBuilder:
    """A model that adds its input to a state and gives the total."""
    b = PlanBuilder("dev")
    x, y, state = b.input(), b.output(), b.value(kind="state")
    b.states.append((state, state))
    b.segment(0, b.step("add", state, x, state), b.step("scale", state, y, params=(1,)))
    return b


def begin(model, x=X):
    session = model.bind()
    return session.begin(session.signature.prepare((x,), {}))


@pytest.mark.parametrize("options", OPTIONS)
def test_calls_that_are_begun_update_states_in_order(make, options):
    model = bound(counting(), make("dev", **options))
    pending = [begin(model) for _ in range(4)]
    assert [int(call.result()[0][0]) for call in pending] == [1, 2, 3, 4]
    assert np.array_equal(model(X), 5 * X)


def test_a_call_behind_one_that_runs_is_submitted_before_that_ends(make):
    device = make("dev")
    model = bound(counting(), device)
    for call in [begin(model), begin(model)]:  # both contexts are recorded
        call.result()
    device.gate.clear()
    before = device.submissions
    pending = [begin(model), begin(model)]
    assert device.submissions == before + 2
    device.gate.set()
    assert [int(call.result()[0][0]) for call in pending] == [3, 4]


def test_whether_a_call_is_done_is_known_without_waiting(make):
    device = make("dev")
    model = bound(counting(), device)
    begin(model).result()
    device.gate.clear()
    call = begin(model)
    assert not call.done
    device.gate.set()
    call.result()
    assert call.done


def test_a_profiled_call_tells_its_commands(make):
    session = bound(counting(), make("dev")).bind()
    call = session.begin(session.signature.prepare((X,), {}), profile=True)
    assert call.rows == {}
    call.result()
    (rows,) = call.rows.values()
    assert [row.label for row in rows] == ["add", "scale"]
    plain = session.begin(session.signature.prepare((X,), {}))
    assert int(plain.result()[0][0]) == 2 and plain.rows == {}


def test_a_result_is_fetched_once(make):
    call = begin(bound(counting(), make("dev")))
    call.result()
    with pytest.raises(CallCancelledError, match="was fetched before"):
        call.result()


def test_a_call_that_is_cancelled_or_dropped_leaves_the_others_their_turn(make):
    model = bound(counting(), make("dev"))
    first, second = begin(model), begin(model)
    first.cancel()
    del second
    assert np.array_equal(model(X), 3 * X)  # they ran to their end: states cannot be taken back
    assert np.array_equal(model(X), 4 * X)


def test_calls_without_states_hold_a_permit_each(make):
    b = PlanBuilder("dev")
    b.segment(0, b.step("scale", b.input(), b.output(), params=(2,)))
    model = bound(b, make("dev"), max_in_flight=2)
    for _ in range(3):
        first, second = begin(model), begin(model, 2 * X)
        assert np.array_equal(second.result()[0], 4 * X)
        first.cancel()
    assert np.array_equal(model(X), 2 * X)


def test_a_failure_reaches_the_call_submitted_behind_it_and_no_later_one(make, monkeypatch):
    b = PlanBuilder("dev")
    x, y, state = b.input(), b.output(), b.value(kind="state")
    b.states.append((state, state))
    b.segment(
        0,
        b.step("explode", x, params=()),
        b.step("add", state, x, state),
        b.step("scale", state, y, params=(1,)),
    )
    device = make("dev")
    model = bound(b, device)
    device.gate.clear()
    pending = [begin(model), begin(model)]
    device.gate.set()
    for call in pending:
        with pytest.raises(ExecutionError, match="the kernel exploded"):
            call.result()
    monkeypatch.setitem(fake_device.KERNELS, "explode", lambda buffers, params: None)
    assert np.array_equal(model(X), X)


def test_closing_waits_for_calls_that_were_begun(make):
    device = make("dev")
    model = bound(counting(), device)
    call = begin(model)
    model.close()
    assert np.array_equal(call.result()[0], X)
