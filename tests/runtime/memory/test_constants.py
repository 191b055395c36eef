"""Weights on devices."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.fake_device import FakeDevice
from support.plans.builder import PlanBuilder, X

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.artifact.weights import JoinedLoad
from mansard.errors import ArtifactError


@pytest.mark.parametrize("kind", [{}, {"unified": False, "late_binding": False, "import_host": False}])
def test_two_weights_may_be_one_entry(kind):
    b = PlanBuilder("cpu")
    x, y, t = b.input(), b.output(), b.value()
    first, second = b.constant(np.full(6, 0.5)), b.constant(np.full(6, 0.25))
    b.segment(0, b.step("add", x, first, t), b.step("add", t, second, y))
    plan = b.plan()
    weights = (plan.weights[0], dataclasses.replace(plan.weights[1], entry="w0"))
    plan = dataclasses.replace(plan, weights=weights)
    with Model(plan, b.resources(), {"cpu": FakeDevice("cpu", **kind)}) as model:
        np.testing.assert_array_equal(model(X), X + 1)


def test_two_weights_of_one_entry_have_one_size():
    b = PlanBuilder("cpu")
    b.constant(np.zeros(6))
    b.constant(np.zeros(8))
    plan = b.plan()
    weights = (plan.weights[0], dataclasses.replace(plan.weights[1], entry="w0"))
    with pytest.raises(ArtifactError, match="'w0' is there twice, of different sizes"):
        Model(dataclasses.replace(plan, weights=weights), b.resources()).bind()


@pytest.mark.parametrize("kind", [{}, {"unified": False, "late_binding": False, "import_host": False}])
def test_a_joined_weight_is_never_one_array_of_the_host(kind, monkeypatch):
    b = PlanBuilder("cpu")
    x, y = b.input(), b.output()
    w = b.constant(np.zeros(6))
    b.segment(0, b.step("add", x, w, y))
    plan, resources = b.plan(), b.resources()
    halves = [np.full(3, 1.5, np.float32), np.full(3, 2.5, np.float32)]
    joined = JoinedLoad(tuple((lambda half=half: half) for half in halves))
    np.testing.assert_array_equal(joined(), np.concatenate(halves))
    monkeypatch.setattr(JoinedLoad, "__call__", lambda self: pytest.fail("the parts were joined"))
    codes = {e: resources.code(e) for e in (ref.entry for ref in plan.devices[0].executables)}
    resources = MemoryResources(codes, [(plan.weights[0], joined)])
    with Model(plan, resources, {"cpu": FakeDevice("cpu", **kind)}) as model:
        np.testing.assert_array_equal(model(X), X + np.concatenate(halves))
