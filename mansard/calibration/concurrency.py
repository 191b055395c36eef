"""How much more a device gets done where calls in flight run side by side on several queues."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mansard.calibration import probes
from mansard.calibration.links import wake
from mansard.calibration.sessions import session_on
from mansard.hal import Device
from mansard.runtime.memory.signature import PreparedInputs
from mansard.runtime.session import Session

_ROUNDS = 3
_CALLS = 8
"""Calls of each thread in a round."""


def concurrency(device: Device) -> float:
    """Small dispatches that a device does in the time that one takes alone, with a call in flight for each of
    its queues for kernels; 1 for a device with one queue. The most of some rounds.

    Raises errors under CompileError for a device that cannot run the calls, DeviceError when it fails.
    """
    queues = device.capabilities.compute_queues
    if queues == 1:
        return 1.0
    session = session_on(device, probes.walk(), queues)
    try:
        arrays = [np.ones([int(str(n)) for n in s.shape], s.dtype.numpy) for s in session.plan.inputs]
        prepared = session.signature.prepare(arrays, {})
        wake(device)
        alone = min(_busy(session, prepared) for _ in range(_ROUNDS))
        with ThreadPoolExecutor(queues) as pool:
            concurrent = min(_per_call(session, prepared, pool, queues) for _ in range(_ROUNDS))
    finally:
        session.close()
    return min(float(queues), max(1.0, alone / concurrent))


def _busy(session: Session, prepared: PreparedInputs) -> float:
    """Seconds of the dispatches of a call by itself."""
    return sum(row.end_ns - row.start_ns for row in session.profile(prepared).rows) / 1e9


def _per_call(session: Session, prepared: PreparedInputs, pool: ThreadPoolExecutor, clients: int) -> float:
    """Seconds per call of clients that each make one call after another."""

    def client(calls: int) -> None:
        for _ in range(calls):
            session.run(prepared)

    def some(calls: int) -> float:
        begin = time.perf_counter()
        list(pool.map(client, [calls] * clients))
        return (time.perf_counter() - begin) / (calls * clients)

    some(2)  # each call in flight has a recording of its own, made for the first
    return some(_CALLS)
