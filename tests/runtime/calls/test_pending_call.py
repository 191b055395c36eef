"""Calls that are begun before the result of the one before is fetched."""

from __future__ import annotations

import time

import numpy as np
import pytest
from support import fake_device
from support.fake_device import gpu_options
from support.plans.builder import PlanBuilder, X, bound

from mansard.errors import CallCancelledError, DeviceError, ExecutionError
from mansard.runtime.calls.cancellation import Cancellation

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


@pytest.mark.parametrize("options", OPTIONS)
def test_calls_that_are_begun_together_update_states_in_order(make, options):
    model = bound(counting(), make("dev", **options))
    session = model.bind()
    inputs = [session.signature.prepare((number * X,), {}) for number in (1, 2, 3)]
    for before in (0, 6):
        results = [int(call.result()[0][0]) for call in session.begin_all(inputs)]
        assert results == [before + 1, before + 3, before + 6]
    assert session.begin_all([]) == []


def test_calls_without_states_may_be_begun_together(make):
    b = PlanBuilder("dev")
    x, y = b.input(), b.output()
    b.segment(0, b.step("scale", x, y, params=(2,)))
    session = bound(b, make("dev")).bind()
    inputs = [session.signature.prepare((number * X,), {}) for number in (1, 2, 3)]
    assert [int(call.result()[0][0]) for call in session.begin_all(inputs)] == [2, 4, 6]


@pytest.mark.parametrize("sequences", [False, True])
def test_calls_that_are_begun_together_and_refused_end(make, sequences):
    device = make("dev", sequences=sequences, **gpu_options("discrete"))
    session = bound(counting(), device).bind()
    inputs = [session.signature.prepare((X,), {})] * 3
    device.refuse_submissions = DeviceError("refused")
    with pytest.raises(DeviceError, match="refused"):
        session.begin_all(inputs)
    device.refuse_submissions = None
    assert [int(call.result()[0][0]) for call in session.begin_all(inputs)] == [1, 2, 3]


def test_calls_that_are_begun_together_and_fail_all_fail(make):
    b = PlanBuilder("dev")
    x, y, state = b.input(), b.output(), b.value(kind="state")
    b.states.append((state, state))
    steps = b.step("add", state, x, state), b.step("scale", state, y, params=(1,))
    b.segment(0, *steps, b.step("explode", y, params=()))
    session = bound(b, make("dev", sequences=True, **gpu_options("discrete"))).bind()
    for call in session.begin_all([session.signature.prepare((X,), {})] * 2):
        with pytest.raises(ExecutionError):
            call.result()


@pytest.mark.parametrize("kind", ["unified", "discrete"])
def test_a_device_that_runs_sequences_gets_calls_begun_together_at_once(make, kind):
    """And calls whose order is known use the same memory, but for what the host reads and writes."""
    device = make("dev", sequences=True, **gpu_options(kind))
    model = bound(counting(), device)
    session = model.bind()
    inputs = [session.signature.prepare((number * X,), {}) for number in (1, 2, 3)]
    before = device.submissions
    calls = session.begin_all(inputs)
    assert device.submissions == before + 1 and device.variants == 2
    assert [int(call.result()[0][0]) for call in calls] == [1, 3, 6]
    first, second, third = session._calls.contexts()
    assert first.family is second.family is third.family
    live = device.live
    device.gate.clear()
    calls = [*session.begin_all(inputs), begin(model, 4 * X)]
    assert not any(call.done for call in calls)
    assert device.live > live, "the fourth context has buffers for its input and output"
    device.gate.set()
    assert [int(call.result()[0][0]) for call in calls] == [7, 9, 12, 16]
    calls = session.begin_all(inputs)
    calls[1].cancel()
    del calls[1]
    assert [int(call.result()[0][0]) for call in calls] == [17, 22]
    session._calls.lifecycle.free_idle_contexts()  # the one whose memory the others use among them
    assert np.array_equal(model(X), 23 * X)
    model.close()
    assert device.live == 0


def test_closing_waits_for_the_contexts_of_cancelled_calls(make, monkeypatch):
    device = make("dev")
    model = bound(counting(), device)
    discard = Cancellation.discard

    def late(*arguments, **options):
        time.sleep(0.05)
        discard(*arguments, **options)

    monkeypatch.setattr(Cancellation, "discard", late)
    first, second = begin(model), begin(model)
    second.cancel()
    assert int(first.result()[0][0]) == 1
    model.close()
    assert device.live == 0


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
