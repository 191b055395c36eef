"""Sessions on devices of every kind: results, copies, shapes, weights, profiles, closing."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest
from support.fake_device import gpu_options
from support.plans.builder import PlanBuilder, X, bound, scaled, there_and_back

from mansard import dims
from mansard.api import Model
from mansard.dims import Dim
from mansard.errors import (
    DeviceError,
    DeviceUnavailableError,
    MansardError,
    ShapeContractError,
    TargetMismatchError,
)

# One device ---------------------------------------------------------------------------------------


def test_a_late_binding_device_copies_nothing(make):
    cpu = make()
    model = bound(scaled("cpu"), cpu)
    assert np.array_equal(model(X), 6 * X + 0.5)
    assert np.array_equal(model(X + 1), 6 * (X + 1) + 0.5)
    stats = model.stats
    assert (stats.calls, stats.contexts) == (2, 1)
    assert (stats.device_copies, stats.host_copies, stats.uploaded_bytes) == (0, 0, 0)
    assert cpu.submissions == 2  # one per call
    assert [row.kind for row in model.memory() if row.what == "weights"] == ["mapped"]


@pytest.mark.parametrize("kind", ["unified", "discrete"])
def test_a_gpu_alone(make, kind):
    gpu = make("gpu", **gpu_options(kind))
    model = bound(scaled("gpu"), gpu)
    assert np.array_equal(model(X), 6 * X + 0.5)
    assert np.array_equal(model(2 * X), 12 * X + 0.5)
    assert model.stats.device_copies == (0 if kind == "unified" else 4)  # input and output, two calls
    assert model.stats.host_copies == 4
    assert (model.stats.uploaded_bytes > 0) == (kind == "discrete")


def test_large_inputs_and_outputs_go_over_the_transfer_queue(make):
    for count, apart in ((64, False), (1 << 20, True)):
        b = PlanBuilder("gpu", count=count)
        x, y = b.input(), b.output()
        t = b.value()
        b.segment(0, b.step("scale", x, t, params=(2,)))
        b.segment(0, b.step("scale", t, y, params=(3,)), wait=((0, 0),))
        gpu = make("gpu", transfer_queue=True, **gpu_options("discrete"))
        model = bound(b, gpu)
        array = np.linspace(0, 1, count, dtype=np.float32)
        for _ in range(2):
            assert np.allclose(model(array), 6 * array)
        assert gpu.log_of_transfers == (["upload x0", "download v1"] if apart else [])
        # A profile has the copies too, and the queue that takes times runs them.
        assert [row[1] for row in model.profile(array).rows] == ["upload x0", "scale", "scale", "download v1"]


def test_small_allocation_limits_split_arenas_and_weights(make):
    b = PlanBuilder("gpu", count=256)
    x, y = b.input(), b.output()
    rows = [np.full(256, float(i)) for i in range(3)]
    weights = [b.constant(row) for row in rows]
    t, u = b.value(), b.value()
    b.segment(
        0, b.step("add", x, weights[0], t), b.step("add", t, weights[1], u), b.step("add", u, weights[2], y)
    )
    gpu = make("gpu", max_allocation=4096, **gpu_options("discrete"))
    array = np.linspace(0, 1, 256, dtype=np.float32)
    assert np.allclose(bound(b, gpu)(array), array + 3)


def test_results_are_new_arrays(make):
    for options in ({}, gpu_options("unified")):
        model = bound(scaled("cpu"), make("cpu", **options))
        first = model(X)
        kept = first.copy()
        model(X * 7)
        assert np.array_equal(first, kept)


def test_an_input_or_constant_may_be_an_output(make):
    for options in ({}, gpu_options("unified"), gpu_options("discrete")):
        b = PlanBuilder("dev")
        x = b.input()
        w = b.constant(np.arange(6))
        y = b.output()
        b.output(value=x)
        b.output(value=w)
        b.output(value=y)
        b.segment(0, b.step("add", x, w, y))
        y1, x1, w1, y2 = bound(b, make("dev", **options))(X)
        assert np.array_equal(x1, X)
        assert np.array_equal(w1, np.arange(6))
        assert np.array_equal(y1, X + w1)
        assert np.array_equal(y2, y1)
        x1[:] = 0
        w1[:] = 9
        y1[:] = 5
        assert X[0] == 1
        assert b.arrays["w0"][0] == 0
        assert y2[0] == 1


def test_misaligned_inputs_are_copied_where_a_device_wants_alignment(make):
    model = bound(scaled("cpu"), make(alignment=64))
    raw = np.zeros(100, dtype=np.uint8)
    start = -raw.ctypes.data % 64 + 4
    odd = raw[start : start + 24].view(np.float32)
    odd[:] = X
    assert np.array_equal(model(odd), 6 * X + 0.5)
    assert model.stats.host_copies == 1


# Shapes -------------------------------------------------------------------------------------------


def dynamic() -> PlanBuilder:
    n = Dim("n", 0, 64, 2)
    b = PlanBuilder("dev", count=dims.symbol(n), symbols=(n,))
    x, y = b.input(), b.output()
    t = b.value()
    b.segment(0, b.step("scale", x, t, params=(2,)), b.step("add", t, x, y))
    return b


@pytest.mark.parametrize("options", [{}, gpu_options("unified"), gpu_options("discrete")])
def test_every_shape_is_recorded_once(make, options):
    model = bound(dynamic(), make("dev", **options))
    for _ in range(2):
        for n in (2, 8, 0, 64):
            array = np.arange(n, dtype=np.float32)
            assert np.array_equal(model(array), 3 * array)
    assert model.stats.contexts == 4
    with pytest.raises(ShapeContractError, match=r"'n' is 66.*0 to 64"):
        model(np.zeros(66, np.float32))


def test_old_shapes_are_dropped_and_come_back(make):
    device = make("dev")
    model = bound(dynamic(), device)
    for n in range(2, 60, 2):
        model(np.ones(n, np.float32))
    many = device.live
    model(np.ones(2, np.float32))
    assert device.live == many
    assert model.stats.contexts == 30
    uses = [row.what for row in model.memory()]
    assert (uses.count("scratch"), uses.count("activations")) == (16, 1)  # one workspace for all shapes


def test_large_idle_contexts_are_few(make, monkeypatch):
    monkeypatch.setattr("mansard.runtime.calls.idle_contexts.MAX_IDLE_BYTES", 0)
    model = bound(dynamic(), make("dev", **gpu_options("unified")))
    for n in (64, 62, 60, 58, 56, 54, 64):
        model(np.ones(n, np.float32))
    assert model.stats.contexts == 7  # the first was dropped: four times the largest is the limit
    model(np.ones(54, np.float32))
    assert model.stats.contexts == 7


def test_idle_contexts_make_room_when_memory_is_short(make):
    device = make("dev", **gpu_options("unified"))
    model = bound(dynamic(), device)
    model(np.ones(2, np.float32))
    original, failed = device.allocate, []

    def allocate(*args):
        if not failed:
            failed.append(True)
            from mansard.errors import OutOfMemoryError

            raise OutOfMemoryError("full")
        return original(*args)

    device.allocate = allocate
    assert np.array_equal(model(np.ones(4, np.float32)), np.full(4, 3))
    assert model.stats.contexts == 2


# Several devices ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "copies"),
    [
        (gpu_options("unified"), 0),
        (gpu_options("discrete"), 3),  # x and t up, u down
        (
            {**gpu_options("discrete"), "reaches": ["gpu"]},
            3,
        ),  # cannot use the cpu's buffers; the cpu can use its
        ({**gpu_options("unified"), "reaches": ["gpu"]}, 0),
    ],
)
def test_two_devices_exchange_values(make, options, copies):
    cpu, gpu = make("cpu"), make("gpu", **options)
    model = bound(there_and_back(), cpu, gpu)
    for factor in (1, 4):
        assert np.array_equal(model(X * factor), 11 * X * factor)
    assert model.stats.device_copies == 2 * copies
    assert (cpu.submissions, gpu.submissions) == (2, 2)


def test_two_gpus_exchange_values_through_memory_both_can_use(make):
    b = PlanBuilder("a", "b")
    x, y = b.input(0), b.output(1)
    t, t_b = b.value(0), b.value(1)
    b.segment(0, b.step("scale", x, t, params=(2,)))
    b.segment(1, b.move(t, t_b), b.step("scale", t_b, y, params=(5,)), wait=[(0, 0)])
    discrete = gpu_options("discrete")
    model = bound(b, make("a", **discrete), make("b", **discrete))
    assert np.array_equal(model(X), 10 * X)
    assert model.stats.device_copies == 4  # up, out of a, into b, down
    apart = bound(b, make("a", reaches=[], **discrete), make("b", reaches=[], **discrete))
    with pytest.raises(DeviceError, match="a and b can use no common memory"):
        apart(X)


def test_a_value_may_travel_on(make):
    b = PlanBuilder("cpu", "gpu", "npu")
    x, y = b.input(0), b.output(2)
    t, t1, t2 = b.value(0), b.value(1), b.value(2)
    b.segment(0, b.step("scale", x, t, params=(2,)))
    b.segment(1, b.move(t, t1), b.step("scale", t1, b.value(1), params=(1,)), wait=[(0, 0)])
    b.segment(2, b.move(t1, t2), b.step("scale", t2, y, params=(5,)), wait=[(1, 0)])
    for first in ("unified", "discrete"):
        for second in ("unified", "discrete"):
            model = bound(
                b, make("cpu"), make("gpu", **gpu_options(first)), make("npu", **gpu_options(second))
            )
            assert np.array_equal(model(X), 10 * X), (first, second)


def test_an_output_may_be_moved_as_well(make):
    for kind in ("unified", "discrete"):
        b = PlanBuilder("cpu", "gpu")
        x, y0, y1 = b.input(0), b.output(0), b.output(1)
        moved = b.value(1)
        b.segment(0, b.step("scale", x, y0, params=(2,)))
        b.segment(1, b.move(y0, moved), b.step("scale", moved, y1, params=(2,)), wait=[(0, 0)])
        first, second = bound(b, make("cpu"), make("gpu", **gpu_options(kind)))(X)
        assert np.array_equal(first, 2 * X)
        assert np.array_equal(second, 4 * X)


def test_weights_exist_once_in_one_memory(make):
    b = PlanBuilder("cpu", "gpu")
    x, y0, y1 = b.input(0), b.output(0), b.output(1)
    x_gpu = b.value(1)
    w = b.constant(np.arange(6), 0)
    w_gpu = b.constant(np.arange(6), 1, weight=0)
    assert w != w_gpu
    b.segment(0, b.step("add", x, w, y0))
    b.segment(1, b.move(x, x_gpu), b.step("add", x_gpu, w_gpu, y1))
    unified = {**gpu_options("unified"), "import_host": False}
    for options, kinds in ((gpu_options("unified"), ["mapped", "shared"]), (unified, ["shared", "uploaded"])):
        model = bound(b, make("cpu"), make("gpu", **options))
        for y in model(X):
            assert np.array_equal(y, X + np.arange(6))
        assert sorted(row.kind for row in model.memory() if row.what == "weights") == kinds


# Profiles, devices, closing -----------------------------------------------------------------------


def test_profiles_have_a_row_per_command(make):
    model = bound(there_and_back(), make("cpu"), make("gpu", **gpu_options("discrete")))
    profile = model.profile(X)
    assert [row[1] for row in profile.rows if row[0] == "cpu"] == ["scale", "scale", "add"]
    assert [row[1] for row in profile.rows if row[0] == "gpu"] == [
        "upload x0",
        "transfer v2",
        "add",
        "transfer v7",
    ]
    assert profile.devices["cpu"]["dispatches"] == 3
    assert profile.devices["gpu"]["dispatches"] == 1
    assert 0 < profile.busy_ms <= profile.latency_ms
    assert profile.overlap_ms >= 0
    assert all(start <= end for _, _, start, end, _ in profile.rows)


def test_devices_are_chosen_and_refused_by_name(make):
    b = scaled("cpu")
    device = make("cpu:1")
    assert np.array_equal(Model(b.plan(), b.resources(), [device])(X), 6 * X + 0.5)
    with pytest.raises(DeviceUnavailableError, match=r"not compiled for 'npu:0'.*slots: cpu"):
        Model(b.plan(), b.resources(), ["npu:0"]).bind()
    with pytest.raises(DeviceUnavailableError, match="no device slot 'gpu'; its slots: cpu"):
        Model(b.plan(), b.resources(), {"gpu": device}).bind()
    missing = scaled("tpu")
    with pytest.raises(
        TargetMismatchError, match=r"'tpu' \(target tpu:fake\).*no device of driver 'tpu'; present"
    ):
        Model(missing.plan(), missing.resources()).bind()


def test_closing_waits_and_frees_everything(make):
    device = make("dev", **gpu_options("discrete"))
    model = bound(scaled("dev"), device)
    model(X)
    assert device.live > 0
    device.gate.clear()
    results: list[np.ndarray] = []
    before = device.submissions
    caller = threading.Thread(target=lambda: results.append(model(X)))
    caller.start()
    while device.submissions == before:
        time.sleep(0.001)
    threading.Timer(0.02, device.gate.set).start()
    model.close()
    caller.join()
    assert np.array_equal(results[0], 6 * X + 0.5)
    assert device.live == 0
    model.close()
    with pytest.raises(MansardError, match="closed"):
        model(X)
    with pytest.raises(MansardError, match="closed"):
        asyncio.run(model.run_async(X))


def test_what_a_closed_model_answers(make):
    model = bound(scaled("cpu"), make())
    model(X)
    assert model.memory().total > 0
    model.close()
    assert len(model.memory()) == 0 and "total 0 B" in str(model.memory())
    with pytest.raises(MansardError, match="the model is closed"):
        model.reset_states()
    assert model.stats.calls == 1
    unused = bound(scaled("cpu"), make())
    unused.close()
    with pytest.raises(MansardError, match="the model is closed"):
        unused(X)
