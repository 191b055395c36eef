"""Many requests over three devices that fail and hang at random: right results, and nothing left behind.

Five hundred requests as a test, ten thousand with ``make stress`` (MANSARD_STRESS_REQUESTS says how many).
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections import Counter

import numpy as np
import pytest
from support import vulkan_support
from support.stress.requests import EXPECTED, TIMEOUT, Client, Trouble, alive, resident, served_models
from support.three_devices import Devices

from mansard.runtime.calls.completion import completions

pytestmark = pytest.mark.vulkan
REQUESTS = int(os.environ.get("MANSARD_STRESS_REQUESTS", "500"))
GROWTH = 8 << 20
"""Bytes by which the process may grow while it serves: what allocators keep, not a little for each call."""


def serve(devices: Devices, requests: int, seed: int) -> tuple[Counter[str], int]:
    """Outcomes of requests to models on three devices and on one, and by how much memory grew."""
    trouble = Trouble(devices, seed)
    served = served_models(devices)
    client = Client(served, random.Random(seed))
    trouble.start()
    try:
        asyncio.run(asyncio.wait_for(client.send(max(300, requests // 5)), TIMEOUT))
        before = resident()
        asyncio.run(asyncio.wait_for(client.send(requests), TIMEOUT))
        gc.collect()
        grown = resident() - before
    finally:
        trouble.stop()
    for called, reference in served:
        x = np.ones(7, np.float32)
        np.testing.assert_array_equal(called(x, timeout=TIMEOUT), reference(x))
        called.close()
    return client.outcomes, grown


@pytest.mark.resident_memory
def test_requests_with_random_faults_leave_nothing_behind() -> None:
    completions()  # threads of the process, which stay
    devices = Devices.open()
    try:
        serve(devices, 50, seed=1)
        time.sleep(0.1)
        before = alive()
        outcomes, grown = serve(devices, REQUESTS, seed=2)
        after = alive()
    finally:
        devices.close()
    vulkan_support.assert_no_validation_messages()  # it tells of objects that outlive their device
    assert set(outcomes) >= {"right", "cancelled", *(error.__name__ for error in EXPECTED)}, outcomes
    assert outcomes["right"] > REQUESTS / 4, outcomes
    assert after - before == Counter()
    assert grown < GROWTH, f"{grown} bytes more after {REQUESTS} requests"
