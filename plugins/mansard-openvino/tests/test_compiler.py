"""Regions through OpenVINO: a whole model as one asynchronous request, and what is left to others."""

from __future__ import annotations

import asyncio
import importlib.metadata

import pytest
import torch
from mansard_openvino.compiler import BACKEND
from torch import nn

import mansard
from mansard.errors import CodegenError, CompileError, DeadlineExceededError
from mansard.hal import registry


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, stride=2),
        nn.GELU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.ReLU6(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 10),
        nn.Softmax(-1),
    ).eval()
    return module, torch.randn(1, 3, 32, 32)


@pytest.fixture(scope="module")
def model(network):
    module, x = network
    return mansard.compile(module, (x,), devices=["openvino:1"])


def test_a_whole_network_is_one_region_in_f32(network, model):
    module, x = network
    (row,) = model.plan.decisions
    assert (row.dispatch, row.device) == ("region", "openvino:1")
    with torch.no_grad():
        torch.testing.assert_close(torch.as_tensor(model(x)), module(x), atol=1e-5, rtol=1e-5)


def test_requests_in_flight_are_answered_in_their_own_arrays(network, model):
    module, _ = network
    inputs = [torch.randn(1, 3, 32, 32) for _ in range(16)]

    async def run():
        return await asyncio.gather(*(model.run_async(x) for x in inputs))

    with torch.no_grad():
        for x, answer in zip(inputs, asyncio.run(run()), strict=True):
            torch.testing.assert_close(torch.as_tensor(answer), module(x), atol=1e-5, rtol=1e-5)


def test_requests_are_cancelled_and_have_deadlines_while_the_device_hangs(network, model):
    module, x = network
    device = registry.open_device("openvino:1")
    model(x)

    async def run():
        device.inject(hang=True)
        try:
            first = asyncio.ensure_future(model.run_async(x))
            await asyncio.sleep(0.05)
            second = asyncio.ensure_future(model.run_async(x))
            await asyncio.sleep(0.05)
            second.cancel()
            with pytest.raises(DeadlineExceededError):
                await model.run_async(x, deadline=0.05)
            with pytest.raises(asyncio.CancelledError):
                await second
        finally:
            device.release()
        return await first

    with torch.no_grad():
        torch.testing.assert_close(torch.as_tensor(asyncio.run(run())), module(x), atol=1e-5, rtol=1e-5)
    model(x)


def test_types_that_openvino_changes_are_left_to_others():
    class Doubles(nn.Module):
        def forward(self, x):
            return (x @ x).double() @ x.double()

    x = torch.randn(8, 8)
    model = mansard.compile(Doubles(), (x,), devices=["openvino:1"])
    reasons = {str(row.costs["openvino:1"]) for row in model.plan.decisions if row.device == "cpu"}
    assert "OpenVINO computes 64-bit floats in 32 bits" in reasons
    torch.testing.assert_close(torch.as_tensor(model(x)), Doubles()(x), atol=1e-4, rtol=1e-4)


def test_a_missing_package_is_the_reason(network, monkeypatch):
    module, x = network

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    words = r"OpenVINO is not installed: pip install 'mansard-openvino\[vendor\]'"
    with pytest.raises(CompileError, match=words):
        mansard.compile(module, (x,), devices=["openvino:1"], fallback="error")
    monkeypatch.undo()


def test_targets():
    assert BACKEND.parse_target("openvino").name == "openvino:npu"
    with pytest.raises(CodegenError, match="unknown target 'openvino:tpu'"):
        BACKEND.parse_target("openvino:tpu")
    cpu, npu = (BACKEND.profile(f"openvino:{kind}", None) for kind in ("cpu", "npu"))
    assert (cpu.cores, npu.cores) == ("host", "")
    assert npu.rate("i8") > 1e13
