"""The simulated NPU in Mansard's conformance suite."""

from __future__ import annotations

import json
import time

import numpy as np
from mansard_npu.driver import DRIVER
from mansard_npu.library import FORMAT, function

from mansard.hal import Device, EntryPoint, ExecutableSpec
from mansard.testing import Adapter, Conformance

_ABI = {"fill_index": (1, 3), "add": (3, 1), "spin": (1, 1), "wide": (1, 20)}


@function("fill_index")
def fill_index(data, buffers, params):
    n, a, b = params
    buffers[0][: 4 * n].view(np.int32)[...] = (np.arange(n, dtype=np.int64) * a + b).astype(np.int32)


@function("add")
def add(data, buffers, params):
    a, b, c = (memory[: 4 * params[0]].view(np.float32) for memory in buffers)
    c[...] = a + b


@function("spin")
def spin(data, buffers, params):
    # The state after n steps in closed form would be no work: the device is busy for as long as a kernel.
    state = 0
    for _ in range(min(params[0], 2000)):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
    time.sleep(0.03)
    buffers[0][:4].view(np.uint32)[...] = state


@function("wide")
def wide(data, buffers, params):
    buffers[0][:8].view(np.int64)[...] = sum(params)


class NpuAdapter(Adapter):
    def open(self) -> Device:
        return DRIVER.open(DRIVER.devices()[0])

    def spec(self, name: str) -> ExecutableSpec:
        return ExecutableSpec(
            FORMAT, "npu", json.dumps({"function": name}).encode(), (EntryPoint(name, *_ABI[name]),)
        )

    def grid(self, name: str, count: int) -> tuple[int, int, int]:
        return (1, 1, 1)


class TestNpu(Conformance):
    adapter = NpuAdapter()
