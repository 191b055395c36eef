"""Workspaces: contexts of many shapes take turns in one, and calls at the same time have one each."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from support.fake_device import gpu_options
from support.plans.builder import PlanBuilder, bound

from mansard import dims
from mansard.dims import Dim
from mansard.errors import DeviceError, OutOfMemoryError

N = Dim("n", 0, 1 << 16)


def chain(slot: str = "cpu") -> PlanBuilder:
    """y = 8x through two transients that are alive together."""
    b = PlanBuilder(slot, count=dims.symbol(N), symbols=(N,))
    x, y = b.input(), b.output()
    t, u = b.value(), b.value()
    b.segment(
        0,
        b.step("scale", x, t, params=(2,)),
        b.step("scale", t, u, params=(2,)),
        b.step("scale", u, y, params=(2,)),
    )
    return b


def workspaces(model) -> list[int]:
    return [row.bytes for row in model.memory() if row.what == "activations"]


def ones(count: int) -> np.ndarray:
    return np.ones(count, np.float32)


def test_shapes_take_turns_in_the_largest(make):
    device = make()
    model = bound(chain(), device)
    allocate, labels = device.allocate, []
    device.allocate = lambda *args: labels.append(args[2]) or allocate(*args)
    for count in (64, 1024, 128, 1, 512, 1024):
        assert np.array_equal(model(ones(count)), 8 * ones(count))
    assert model.stats.contexts == 5
    (size,) = workspaces(model)
    assert size == 2 * 4096
    assert model.memory().lower_bound == size
    assert labels == ["activations"] * 2  # for 64 and for 1024


def test_calls_at_the_same_time_have_a_workspace_each(make):
    device = make()
    model = bound(chain(), device)
    results = {}

    def call(factor: int) -> None:
        results[factor] = model(factor * ones(100))

    device.gate.clear()
    threads = [threading.Thread(target=call, args=(factor,)) for factor in (1, 2, 3)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while len(workspaces(model)) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    device.gate.set()
    for thread in threads:
        thread.join(20)
    assert all(np.array_equal(results[k], 8 * k * ones(100)) for k in (1, 2, 3))
    assert len(workspaces(model)) == 3
    model(ones(200))
    assert len(workspaces(model)) == 1  # larger than the others, which it replaces


def test_a_failed_call_gives_its_workspace_back(make):
    b = PlanBuilder("cpu", count=dims.symbol(N), symbols=(N,))
    x, y, t = b.input(), b.output(), b.value()
    b.segment(0, b.step("scale", x, t, params=(2,)), b.step("scale", t, y, params=(2,)))
    device = make()
    model = bound(b, device)
    assert np.array_equal(model(ones(64)), 4 * ones(64))
    submit, failures = device.submit, [DeviceError("refused")]

    def refuse(submissions):
        if failures:
            raise failures.pop()
        submit(submissions)

    device.submit = refuse
    with pytest.raises(DeviceError, match="refused"):
        model(ones(64))
    with model.bind()._calls.admission.exclusive():  # the failed call is cleared away in the background
        pass
    for _ in range(3):
        assert np.array_equal(model(ones(64)), 4 * ones(64))
    assert len(workspaces(model)) == 1


def test_no_memory_for_a_workspace_is_said_and_does_no_harm(make):
    device = make()
    model = bound(chain(), device)
    model(ones(64))
    allocate = device.allocate

    def full(size, *args):
        if size > 1024:
            raise OutOfMemoryError(f"no room for {size} bytes")
        return allocate(size, *args)

    device.allocate = full
    with pytest.raises(OutOfMemoryError, match="no room for 8192 bytes"):
        model(ones(1024))
    assert np.array_equal(model(ones(64)), 8 * ones(64))
    device.allocate = allocate
    assert np.array_equal(model(ones(1024)), 8 * ones(1024))


def test_closing_frees_everything(make):
    device = make()
    with bound(chain(), device) as model:
        model(ones(64))
        assert device.live > 0
    assert device.live == 0


def test_devices_with_fixed_bindings_have_arenas_of_their_own(make):
    model = bound(chain("gpu"), make("gpu", **gpu_options("unified")))
    for count in (64, 128):
        assert np.array_equal(model(ones(count)), 8 * ones(count))
    assert len(workspaces(model)) == 2
