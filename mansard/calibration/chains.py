"""Times of dispatches in chains, as in models: each reads the result of the previous one.

A single kernel that is repeated finds its operands in the caches of the cores that read them. In a model, one
operand was just written by other cores, and the other was evicted by other layers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mansard.calibration.links import wake
from mansard.calibration.sessions import session_on
from mansard.dims import evaluate
from mansard.hal import Device
from mansard.ir import Graph
from mansard.plan.plan import Decision

_MIN_RUNS = 5
_WAKING_S = 0.1
"""Chains follow each other without a pause: a GPU lowers its clock within seconds."""


class Mean(NamedTuple):
    """The mean seconds, operations and bytes of a dispatch."""

    seconds: float
    operations: float
    bytes: float

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.seconds


Runs = list[dict[str, int]]
"""For every call, the nanoseconds of all dispatches by name."""


def dispatch_seconds(
    device: Device,
    graph: Graph,
    budget: float,
    counts: Callable[[Decision], bool] = lambda decision: True,
) -> tuple[float, float]:
    """Mean seconds and operations of the dispatches of a graph for which ``counts`` is True; seconds are the
    lower quartile of sequential calls during about ``budget`` seconds.

    Raises errors under CompileError for a graph that the device cannot run, DeviceError when it fails.
    """
    decisions, runs = _run(device, graph, budget)
    seconds, operations, _ = _mean([decision for decision in decisions if counts(decision)], runs)
    return seconds, operations


def kind_seconds(device: Device, graph: Graph, budget: float) -> Mapping[str, Mean]:
    """As `dispatch_seconds`, by kind of work (`mansard.placement.kinds`). Raises the same errors."""
    decisions, runs = _run(device, graph, budget)
    kinds = sorted({decision.kind for decision in decisions})
    return {kind: _mean([d for d in decisions if d.kind == kind], runs) for kind in kinds}


def _run(device: Device, graph: Graph, budget: float) -> tuple[Sequence[Decision], Runs]:
    session = session_on(device, graph)
    runs: Runs = []
    try:
        rng = np.random.default_rng(0)
        arrays = [_random(rng, spec.shape, spec.dtype.numpy) for spec in session.plan.inputs]
        prepared = session.signature.prepare(arrays, {})
        wake(device, _WAKING_S)
        until = time.monotonic() + budget
        while len(runs) < _MIN_RUNS or time.monotonic() < until:
            spent: dict[str, int] = {}
            for row in session.profile(prepared).rows:
                spent[row.label] = spent.get(row.label, 0) + row.end_ns - row.start_ns
            runs.append(spent)
    finally:
        session.close()
    return session.plan.decisions, runs


def _mean(decisions: Sequence[Decision], runs: Runs) -> Mean:
    labels, count = {decision.dispatch for decision in decisions}, len(decisions)
    operations = sum(evaluate(decision.operations, {}) for decision in decisions)
    moved = sum(evaluate(decision.bytes, {}) for decision in decisions)
    quartile, *_ = statistics.quantiles([sum(run[label] for label in labels) for run in runs], n=4)
    return Mean(max(1.0, quartile) / count / 1e9, operations / count, moved / count)


def _random(
    rng: np.random.Generator, shape: tuple[object, ...], dtype: np.dtype[np.generic]
) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    sizes = [int(str(extent)) for extent in shape]
    if dtype.kind in "iu":
        return rng.integers(0, 100, sizes).astype(dtype)
    return rng.uniform(-1, 1, sizes).astype(np.float32).astype(dtype)
