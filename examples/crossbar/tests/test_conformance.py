"""The simulated crossbar in Mansard's conformance suite: its kernels are functions of its digital part."""

from __future__ import annotations

import time

import numpy as np
from mansard_crossbar.device import DRIVER, FUNCTIONS
from mansard_crossbar.program import FORMAT, encode

from mansard.hal import Device, EntryPoint, ExecutableSpec
from mansard.testing import Adapter, Conformance

_ABI = {"fill_index": (1, 3), "add": (3, 1), "spin": (1, 1), "wide": (1, 20)}


def fill_index(buffers, params):
    n, a, b = params
    buffers[0][: 4 * n].view(np.int32)[...] = (np.arange(n, dtype=np.int64) * a + b).astype(np.int32)


def add(buffers, params):
    a, b, c = (memory[: 4 * params[0]].view(np.float32) for memory in buffers)
    c[...] = a + b


def spin(buffers, params):
    state = 0
    for _ in range(min(params[0], 2000)):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
    time.sleep(0.03)
    buffers[0][:4].view(np.uint32)[...] = state


def wide(buffers, params):
    buffers[0][:8].view(np.int64)[...] = sum(params)


FUNCTIONS.update(fill_index=fill_index, add=add, spin=spin, wide=wide)


class CrossbarAdapter(Adapter):
    def open(self) -> Device:
        return DRIVER.open(DRIVER.devices()[0])

    def spec(self, name: str) -> ExecutableSpec:
        entry = EntryPoint(name, *_ABI[name])
        return ExecutableSpec(FORMAT, "crossbar", encode({"function": name}), (entry,))

    def grid(self, name: str, count: int) -> tuple[int, int, int]:
        return (1, 1, 1)


class TestCrossbar(Conformance):
    adapter = CrossbarAdapter()
