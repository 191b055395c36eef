"""The memory ledger: every use on every device, summed, and what is not held is not counted."""

from __future__ import annotations

import json
import math

import numpy as np
from fake_device import gpu_options
from plan_builder import PlanBuilder, bound

from mansard.runtime.ledger import CALLER, MemoryLedger, MemoryRow

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
    assert str(ledger).splitlines()[0].split() == ["what", "device", "kind", "size", "lower", "bound"]
    assert len(str(ledger).splitlines()) == 1 + len(ledger) + 1
    assert json.loads(json.dumps(ledger.to_json())) == ledger.to_json()
    assert math.isclose(sum(ledger.to_json()["totals"].values()), ledger.total)
    assert ledger[0].what == "weights"
    assert [row.kind for row in ledger[:2]] == ["mapped", "shared"]
