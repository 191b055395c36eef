"""Several requests in flight, and plans in lockstep: order of batches, rows of requests, bounds, failures."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time

import numpy as np
import pytest
from support.fake_device import gpu_options
from support.plans.artifact import diamond
from support.plans.builder import PlanBuilder, X, bound, scaled, there_and_back

from mansard.errors import ArtifactError, ExecutionError, InputError
from mansard.hal import ProfileRow
from mansard.hal.device import CommandBuffer
from mansard.plan.dataflow import dataflow, expected_times
from mansard.runtime.execution.lockstep import in_lockstep, serial_order
from mansard.runtime.execution.recorded import RecordedSubmission
from mansard.runtime.profiling.device_timeline import DeviceTimeline
from mansard.runtime.profiling.profile import Profile


class NoCommands(CommandBuffer):
    def profile(self):
        return ()

    def close(self):
        pass


def batch(*wait: tuple[int, int]) -> RecordedSubmission:
    return RecordedSubmission(NoCommands(), wait, ())


def two_branches() -> PlanBuilder:
    """Two devices with three steps each, and no word between them before the end."""
    b = PlanBuilder("cpu", "gpu")
    for slot in (0, 1):
        last = b.input(slot)
        for step in range(3):
            value = b.output(slot) if step == 2 else b.value(slot)
            before = ((slot, step - 1),) if step else ()
            b.segment(slot, b.step("scale", last, value, params=(2,), label=f"{slot}.{step}"), wait=before)
            last = value
    return b


def overlapping(rows) -> list[tuple[str, str]]:
    """Pairs of commands of different devices that ran at the same time."""
    return [
        (a.label, b.label)
        for a, b in itertools.combinations(rows, 2)
        if a.slot != b.slot and a.start_ns < b.end_ns and b.start_ns < a.end_ns
    ]


# Lockstep -----------------------------------------------------------------------------------------


def test_serial_order_goes_behind_waits_and_stays_on_a_device() -> None:
    cpu = [batch(), batch((0, 0)), batch((0, 1), (1, 1))]
    gpu = [batch((0, 0)), batch((1, 0))]
    assert serial_order([cpu, gpu]) == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2)]


def test_serial_order_takes_batches_of_a_device_in_any_order() -> None:
    late_first = [batch((1, 0)), batch()]
    assert serial_order([late_first, [batch((0, 1))]]) == [(0, 1), (1, 0), (0, 0)]


def test_serial_order_refuses_circles() -> None:
    with pytest.raises(ArtifactError, match="in a circle"):
        serial_order([[batch((1, 0))], [batch((0, 0))]])


def test_in_lockstep_every_batch_waits_for_the_one_before() -> None:
    chained = in_lockstep([[batch(), batch((0, 0))], [batch(), batch((1, 0), (0, 1))]])
    assert [[set(b.wait) for b in local] for local in chained] == [
        [set(), {(0, 0)}],
        [{(0, 1)}, {(1, 0), (0, 1)}],
    ]
    assert [b.wait for b in in_lockstep([[batch()], []])[0]] == [()]


def test_no_two_devices_work_at_once_in_lockstep(make) -> None:
    model = bound(two_branches(), make("cpu"), make("gpu", **gpu_options("unified")))
    profile = model.profile(X, X + 1, requests=5, in_flight=3, lockstep=True)
    assert overlapping(profile.rows) == []
    assert profile.lockstep and len(profile.rows) == 5 * 6
    # Requests follow one another, too.
    order = [row.request for row in profile.rows]
    assert [k for k, _ in itertools.groupby(order)] == sorted(set(order))


# Requests -----------------------------------------------------------------------------------------


def test_rows_have_the_number_of_their_request(make) -> None:
    model = bound(there_and_back(), make("cpu"), make("gpu", **gpu_options("discrete")), max_in_flight=3)
    profile = model.profile(X, requests=7, in_flight=3)
    assert (profile.requests, profile.in_flight) == (7, 3)
    each = [sorted(row.label for row in profile.rows if row.request == n) for n in range(7)]
    assert all(labels == each[0] for labels in each) and len(each[0]) == 7
    assert len(profile.request_ms) == 7 and max(profile.request_ms) <= profile.latency_ms
    single = model.profile(X)
    assert profile.copies.device == 7 * single.copies.device
    assert profile.copies.device_bytes == 7 * single.copies.device_bytes
    line = profile.timeline()
    assert {row["request"] for row in line["rows"]} == set(range(7))
    assert len({row["request"] for row in line["rows"] if row["critical"]}) == 1
    assert model.stats.calls == 8


def test_requests_are_counted_and_bounded(make) -> None:
    model = bound(scaled("cpu"), make("cpu"), max_in_flight=2)
    assert model.profile(X, requests=3).in_flight == 2
    with pytest.raises(InputError, match="3 requests in flight: the model takes 1 to 2"):
        model.profile(X, requests=3, in_flight=3)
    with pytest.raises(InputError, match="0 requests"):
        model.profile(X, requests=0)


def test_states_change_once_a_request(make) -> None:
    b = PlanBuilder("cpu")
    x, y = b.input(), b.output()
    state = b.value(kind="state")
    b.states = [(state, state)]
    b.segment(0, b.step("add", x, state, state), b.step("scale", state, y, params=(1,)))
    model = bound(b, make("cpu"))
    model.profile(X, requests=3)
    np.testing.assert_array_equal(model(X), 4 * X)


def test_a_failed_request_raises_its_error_and_frees_everything(make) -> None:
    b = PlanBuilder("cpu")
    x, y = b.input(), b.output()
    b.segment(0, b.step("scale", x, y, params=(1,)), b.step("explode", y, params=()))
    model = bound(b, make("cpu"))
    for lockstep in (False, True):
        with pytest.raises(ExecutionError):
            model.profile(X, requests=4, lockstep=lockstep)
    model.close()  # waits for every permit


# Submission ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["cpu", "gpu"])
def test_submission_waits_for_no_device(make, held: str) -> None:
    devices = {"cpu": make("cpu"), "gpu": make("gpu", **gpu_options("unified"))}
    other = next(device for name, device in devices.items() if name != held)
    model = bound(two_branches(), devices["cpu"], devices["gpu"])
    model(X, X)
    devices[held].gate.clear()
    other.log.clear()
    caller = threading.Thread(target=model, args=(X, X))
    caller.start()
    try:
        _until(lambda: len(other.log) == 3)  # all of its work, while the other has not begun
    finally:
        devices[held].gate.set()
        caller.join()


def test_devices_on_the_hosts_cores_are_given_work_last(make) -> None:
    """Their threads may take the core of the thread that has yet to give the others theirs."""
    cpu, gpu = make("cpu"), make("gpu", **gpu_options("unified"))
    cpu.capabilities = dataclasses.replace(cpu.capabilities, host_threads=True)
    order = []
    for device in (cpu, gpu):
        submit = device.submit
        device.submit = lambda submissions, d=device, s=submit: (order.append(d), s(submissions))
    model = bound(two_branches(), cpu, gpu)
    model(X, X)
    assert order == [gpu, cpu]
    gpu.refuse_submissions = ExecutionError("full")
    with pytest.raises(ExecutionError, match="full"):
        model(X, X)


def _until(condition, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.001)


# Figures ------------------------------------------------------------------------------------------


def many(rows: dict[str, list[tuple[str, int, int, int]]], latency_us: float, **fields) -> Profile:
    """A profile of the plan `diamond` with rows (label, start, end, request) in microseconds."""
    parts = tuple(
        DeviceTimeline(
            slot,
            slot,
            tuple(ProfileRow(label, 1000 * a, 1000 * b) for label, a, b, _ in spans),
            requests=tuple(request for *_, request in spans),
        )
        for slot, spans in rows.items()
    )
    return Profile(parts, latency_us / 1e3, nodes=dataflow(diamond()), requests=2, **fields)


TWO = {
    "cpu": [("a", 0, 10, 0), ("b", 10, 20, 0), ("a", 20, 30, 1), ("b", 30, 40, 1), ("d", 50, 55, 0),
            ("d", 70, 76, 1)],
    "gpu": [("c", 15, 50, 0), ("c", 50, 70, 1)],
}  # fmt: skip


def test_the_bound_of_requests_is_the_busiest_device_or_one_chain() -> None:
    profile = many(TWO, 80)
    assert profile.bound_ms == pytest.approx(0.055) and profile.bound_by == "gpu"
    assert [link.ms for link in profile.critical_path] == pytest.approx([0.01, 0.035, 0.005])
    assert profile.efficiency == pytest.approx(55 / 80)
    quick = {"cpu": TWO["cpu"], "gpu": [("c", 15, 50, 0), ("c", 50, 51, 1)]}
    assert many(quick, 80).bound_by == "cpu"


def test_overlapped_copies_and_kernels_are_bound_by_the_busier_queue() -> None:
    rows = (ProfileRow("transfer v1", 0, 30_000), ProfileRow("c", 30_000, 80_000))
    part = DeviceTimeline("gpu", "gpu", rows)
    cpu = DeviceTimeline("cpu", "cpu", ())
    nodes = tuple(dataclasses.replace(node, parents=()) for node in dataflow(diamond()))
    one = Profile((cpu, part), 0.08, nodes=nodes)
    assert (one.bound_ms, one.bound_by) == (pytest.approx(0.08), "gpu")
    apart = Profile((cpu, dataclasses.replace(part, transfer_queue=True)), 0.08, nodes=nodes)
    assert (apart.bound_ms, apart.bound_by) == (pytest.approx(0.05), "gpu")
    assert apart.devices["gpu"]["busy_ms"] == pytest.approx(0.08)


def test_all_busy_is_what_every_device_covers() -> None:
    profile = many(TWO, 80)
    assert profile.all_busy == [(15_000, 40_000), (50_000, 55_000)]
    assert profile.all_busy_ms == pytest.approx(0.03)
    assert Profile((), 0.0).all_busy_ms == 0.0


def test_the_expected_bound_goes_by_the_cost_model() -> None:
    nodes = dataflow(diamond())
    times = {"a": 0.01, "b": 0.01, "c": 0.02, "d": 0.005}
    profile = many(TWO, 80, expected_ms=tuple(times.get(node.label, 0.0) for node in nodes))
    assert profile.expected_bound_ms == pytest.approx(2 * 0.025)  # the CPU's a, b and d of two requests
    assert profile.expected_efficiency == pytest.approx(50 / 80)
    assert many(TWO, 80).expected_bound_ms is None


def test_expected_times_are_those_of_the_decisions() -> None:
    plan = diamond()
    assert expected_times(plan, dataflow(plan), {}) == ()  # it has no decisions
