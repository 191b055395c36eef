"""The memory ledger: every use on every device, summed, and what is not held is not counted."""

from __future__ import annotations

import json
import math

import numpy as np
from support.fake_device import gpu_options
from support.plans.builder import PlanBuilder, bound

from mansard.runtime.memory.ledger import CALLER, MemoryLedger, MemoryRow

X = np.arange(6, dtype=np.float32)


def by_use(ledger: MemoryLedger) -> dict[tuple[str, str], int]:
    return {(row.what, row.kind): row.bytes for row in ledger}


def chain(*slots: str) -> PlanBuilder:
    """x -> t -> u -> y on one device, with a weight."""
    b = PlanBuilder(*slots)
    x, y = b.input(0), b.output(0)
    t, u, w = b.value(0), b.value(0), b.constant(X, 0)
    b.segment(
        0, b.step("add", x, w, t), b.step("scale", t, u, params=(2,)), b.step("scale", u, y, params=(3,))
    )
    return b


def test_a_cpu_holds_weights_and_activations_only(make):
    model = bound(chain("cpu"), make("cpu"))
    assert {row.what for row in model.memory()} == {"weights", "code"}
    assert np.array_equal(model(X), 12 * X)
    ledger = model.memory()
    uses = by_use(ledger)
    assert uses["weights", "mapped"] == X.nbytes
    assert uses["inputs", CALLER] == uses["outputs", CALLER] == X.nbytes
    (arena,) = [row for row in ledger if row.what == "activations"]
    assert arena.lower_bound == ledger.lower_bound
    assert 0 < arena.lower_bound <= arena.bytes
    assert ledger.totals["inputs"] == ledger.totals["outputs"] == ledger.totals["staging"] == 0
    assert ledger.total == sum(ledger.totals.values()) == sum(ledger.devices["cpu"].values())


def test_a_gpu_with_memory_of_its_own_needs_staging(make):
    model = bound(chain("gpu"), make("gpu", **gpu_options("discrete")))
    assert np.array_equal(model(X), 12 * X)
    uses = by_use(model.memory())
    assert uses["weights", "uploaded"] >= X.nbytes
    assert uses["staging", "shared"] >= X.nbytes
    assert uses["inputs", "device"] >= X.nbytes
    assert uses["outputs", "device"] >= X.nbytes
    assert not any(kind == CALLER for _, kind in uses)


def test_a_gpu_that_shares_the_hosts_memory_needs_none(make):
    options = {**gpu_options("unified"), "late_binding": False}
    model = bound(chain("gpu"), make("gpu", **options))
    assert np.array_equal(model(X), 12 * X)
    uses = by_use(model.memory())
    assert uses["inputs", "shared"] >= X.nbytes
    assert uses["outputs", "shared"] >= X.nbytes
    assert "staging" not in {what for what, _ in uses}


def test_sums_and_texts():
    ledger = MemoryLedger(
        [
            MemoryRow("weights", "cpu", "mapped", 2_000_000),
            MemoryRow("weights", "vulkan", "shared", 2_000_000),
            MemoryRow("activations", "cpu", "device", 3000, 2900),
            MemoryRow("activations", "cpu", "shared", 1000, 1000),
            MemoryRow("inputs", "cpu", CALLER, 7777),
        ]
    )
    assert ledger.total == 2_004_000
    assert ledger.devices == {"cpu": {"weights": 2_000_000, "activations": 4000}, "vulkan": {}}
    assert ledger.lower_bound == 3900
    assert ledger.summary() == (
        "cpu: 2.0 MB weights, 4.0 kB activations (lower bound 3.9 kB); vulkan: nothing; total 2.0 MB"
    )
    titles = ("what", "device", "kind", "size", "lower bound", "used by", "where")
    assert str(ledger).splitlines()[0].split() == " ".join(titles).split()
    assert len(str(ledger).splitlines()) == 1 + len(ledger) + 1
    assert json.loads(json.dumps(ledger.to_json())) == ledger.to_json()
    assert math.isclose(sum(ledger.to_json()["totals"].values()), ledger.total)
    assert ledger[0].what == "weights"
    assert [row.kind for row in ledger[:2]] == ["mapped", "shared"]


def crossing(*slots: str) -> PlanBuilder:
    """t is made on the first device and read on the second; both read one weight."""
    b = PlanBuilder(*slots)
    x, y, t = b.input(0), b.output(1), b.value(0)
    w0 = b.constant(X, 0)
    w1 = b.constant(X, 1, weight=0)
    t_there = b.value(1)
    b.segment(0, b.step("add", x, w0, t))
    b.segment(1, b.move(t, t_there), b.step("add", t_there, w1, y), wait=[(0, 0)])
    return b


def test_the_ledger_tells_who_shares_an_allocation_and_how(make):
    cpu, gpu = make("cpu"), make("gpu", unified=True, late_binding=False, import_host=False)
    model = bound(crossing("cpu", "gpu"), cpu, gpu)
    assert np.array_equal(model(X), 3 * X)
    assert model.stats.device_bytes == 0
    rows = {(row.what, row.device): row for row in model.memory()}
    shared = rows["activations", "gpu"]
    assert shared.users == ("gpu", "cpu")
    assert shared.how == "host-visible device memory, imported by cpu"
    assert rows["outputs", "gpu"].users == ("gpu",)
    # One copy of the weight serves both.
    assert (rows["weights", "gpu"].kind, rows["weights", "gpu"].how) == (
        "uploaded",
        "host-visible device memory",
    )
    assert (rows["weights", "cpu"].kind, rows["weights", "cpu"].held) == ("shared", False)
    assert rows["weights", "cpu"].how == "host-visible device memory, imported"
    assert len(rows["weights", "cpu"].users) == 1


def test_weights_that_two_devices_map_are_held_once(make):
    cpu, gpu = make("cpu"), make("gpu", unified=True, late_binding=False, alignment=1)
    model = bound(crossing("cpu", "gpu"), cpu, gpu)
    assert np.array_equal(model(X), 3 * X)
    rows = [row for row in model.memory() if row.what == "weights"]
    assert [(row.device, row.kind) for row in rows] == [("gpu", "mapped"), ("cpu", "shared")]
    assert [row.how for row in rows] == ["memory of the frontend, imported", "memory of the frontend"]
    assert model.memory().totals["weights"] == X.nbytes
    assert model.stats.uploaded_bytes == 0


def test_devices_hold_the_weights_they_read_alone(make):
    b = PlanBuilder("cpu", "card")
    x, y, t, t_there = b.input(0), b.output(1), b.value(0), b.value(1)
    mine, theirs = b.constant(X, 0), b.constant(2 * X, 1)
    b.segment(0, b.step("add", x, mine, t))
    b.segment(1, b.move(t, t_there), b.step("add", t_there, theirs, y), wait=[(0, 0)])
    model = bound(b, make("cpu"), make("card", **gpu_options("discrete")))
    assert np.array_equal(model(X), 4 * X)
    rows = {row.device: row for row in model.memory() if row.what == "weights"}
    assert (rows["cpu"].kind, rows["cpu"].bytes) == ("mapped", X.nbytes)
    assert (rows["card"].kind, rows["card"].how) == ("uploaded", "device memory")
    assert model.stats.uploaded_bytes == rows["card"].bytes == 256
    crossing = [row for row in model.memory() if len(row.users) == 2]
    assert [(row.users, row.how) for row in crossing] == [(("card", "cpu"), "host memory, imported by cpu")]
