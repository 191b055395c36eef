"""What products take inside a model: one behind the other, each reading what the one before has written.

A kernel that runs alone over and over finds its operands in the caches of the cores that read them. In a
model other cores have just written one operand, and other layers have been in the way of the other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from mansard.artifact.plan import Decision
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.dims import evaluate
from mansard.hal import Device
from mansard.ir import Graph
from mansard.placement import Placement
from mansard.runtime.session import Session
from mansard.tuning.links import wake

_LEAST_RUNS = 5


def dispatch_seconds(
    device: Device,
    graph: Graph,
    budget: float,
    counts: Callable[[Decision], bool] = lambda decision: True,
) -> tuple[float, float]:
    """Seconds and operations of a dispatch of a graph, the mean of those that count; seconds are those of
    the lower quartile of calls one after the other for about ``budget`` seconds.

    Raises errors under CompileError for a graph that the device cannot run, DeviceError when it fails.
    """
    made = compile_graph(graph, CompileOptions((device.info.id,), Placement(fallback="error")))
    counted = [decision for decision in made.plan.decisions if counts(decision)]
    labels = {decision.dispatch for decision in counted}
    operations = sum(evaluate(decision.operations, {}) for decision in counted)
    session = Session(made.plan, MemoryResources(made.executables, made.weights))
    try:
        rng = np.random.default_rng(0)
        arrays = [_random(rng, spec.shape, spec.dtype.numpy) for spec in made.plan.inputs]
        prepared = session.signature.prepare(arrays, {})
        wake(device)
        times: list[int] = []
        until = time.monotonic() + budget
        while len(times) < _LEAST_RUNS or time.monotonic() < until:
            rows = [row for row in session.profile(prepared).rows if row.label in labels]
            times.append(sum(row.end_ns - row.start_ns for row in rows))
    finally:
        session.close()
    quartile, *_ = statistics.quantiles(times, n=4)
    return max(1.0, quartile) / len(counted) / 1e9, operations / len(counted)


def _random(
    rng: np.random.Generator, shape: tuple[object, ...], dtype: np.dtype[np.generic]
) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    sizes = [int(str(extent)) for extent in shape]
    if dtype.kind in "iu":
        return rng.integers(0, 100, sizes).astype(dtype)
    return rng.uniform(-1, 1, sizes).astype(np.float32).astype(dtype)
