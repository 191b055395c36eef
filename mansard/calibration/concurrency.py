"""The gain in throughput if calls in flight run concurrently on several queues of a device."""

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
"""Calls per thread in a round."""


def concurrency(device: Device) -> float:
    """The number of small dispatches that a device completes in the time of one alone, with one call in
    flight per compute queue; 1 for a device with one queue. The maximum of several rounds.

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
    """Seconds of the dispatches of a single call."""
    return sum(row.end_ns - row.start_ns for row in session.profile(prepared).rows) / 1e9


def _per_call(session: Session, prepared: PreparedInputs, pool: ThreadPoolExecutor, clients: int) -> float:
    """Seconds per call of concurrent clients that each call sequentially."""

    def client(calls: int) -> None:
        for _ in range(calls):
            session.run(prepared)

    def some(calls: int) -> float:
        begin = time.perf_counter()
        list(pool.map(client, [calls] * clients))
        return (time.perf_counter() - begin) / (calls * clients)

    some(2)  # each call in flight has its own recording, made in the first round
    return some(_CALLS)
