"""The overhead of a call: the time until devices start, and that of the host's copies.

Two small models measure it by ordinary calls with few and many rows: one reads the first number of each row
of an input, the other broadcasts one number to each row. The time of a call minus that of its kernels and the
device's copies is the host's: for few rows the submission and completion, for many also its own copies, as
far as they do not overlap the device's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from mansard.calibration.links import wake
from mansard.calibration.sessions import session_on
from mansard.dims import Dim, representative, symbol
from mansard.dtypes import DType
from mansard.hal import Device
from mansard.ir import Graph, GraphBuilder, IndexMap
from mansard.ir.scalar import Apply, Arg, Const, Scalar
from mansard.runtime.profiling.profile import Profile

Points = tuple[tuple[float, float], ...]
"""(bytes, seconds), in ascending order."""
_WIDTH = 1 << 10
_ROWS = (1 << 8, 1 << 11, 1 << 13)
"""1, 8 and 32 MB."""
_CALLS, _PROFILED = 200, 30
_MIN_SAMPLES, _SECONDS = 4, 0.1
"""Fewer, down to this many, if they take longer than the limit."""


@dataclass(frozen=True)
class CallCosts:
    """Seconds of a small call without its kernel, and of the host's own copies of inputs and of outputs."""

    minimum: float
    inputs: Points
    outputs: Points


def call_costs(device: Device) -> CallCosts:
    """Measure a device that computes. Raises errors under CompileError and DeviceError where it cannot."""
    firsts, spread = _Calls(device, _first_elements_graph()), _Calls(device, _broadcast_graph())
    with closing(firsts), closing(spread):
        minimum = firsts.host_seconds(1, copies=False)
        if device.capabilities.late_binding:  # accesses the caller's arrays directly
            return CallCosts(minimum, (), ())
        return CallCosts(minimum, _points(firsts.host_seconds), _points(spread.host_seconds))


def _points(host_seconds: Callable[[int], float]) -> Points:
    """Seconds of the host's copies by bytes, made monotonic."""
    points: list[tuple[float, float]] = []
    baseline = host_seconds(1)
    for rows in _ROWS:
        seconds = max(host_seconds(rows) - baseline, points[-1][1] if points else 0.0)
        points.append((4.0 * _WIDTH * rows, seconds))
    return tuple(points)


class _Calls:
    """Times calls of a model whose inputs have a variable number of rows."""

    def __init__(self, device: Device, graph: Graph) -> None:
        self.session = session_on(device, graph)
        self.shape = self.session.plan.inputs[0].shape
        self.kernels = {decision.dispatch for decision in self.session.plan.decisions}
        wake(device)

    def host_seconds(self, rows: int, *, copies: bool = True) -> float:
        """Seconds of a call with ``rows`` rows without its kernels and, with ``copies``, the device's copies:
        the minimum of several calls minus the minimum of the device's work in as many others."""
        array = np.ones([rows, *map(representative, self.shape[1:])], np.float32)
        prepared = self.session.signature.prepare([array], {})

        def call() -> float:
            begin = time.perf_counter()
            self.session.run(self.session.signature.prepare([array], {}))
            return time.perf_counter() - begin

        call()
        took = _fastest(call, _CALLS)
        return max(
            0.0, took - _fastest(lambda: self._work(self.session.profile(prepared), copies), _PROFILED)
        )

    def _work(self, profile: Profile, copies: bool) -> float:
        rows = [row for row in profile.rows if copies or row.label in self.kernels]
        return sum(row.end_ns - row.start_ns for row in rows) / 1e9

    def close(self) -> None:
        """Release the session and its inputs."""
        self.session.close()


def _fastest(measured: Callable[[], float], samples_wanted: int) -> float:
    samples: list[float] = []
    until = time.monotonic() + _SECONDS
    while len(samples) < (samples_wanted if time.monotonic() < until else _MIN_SAMPLES):
        samples.append(measured())
    return min(samples)


def _rows() -> Dim:
    return Dim("rows", 1, max(_ROWS), typical=_ROWS[0])


def _first_elements_graph() -> Graph:
    """The first number of each row of f32: a large input, of which little is read, and a small output."""
    b = GraphBuilder("firsts")
    x = b.input("x", (symbol(_rows()), _WIDTH), DType.F32)
    y = b.generic([x], [IndexMap.of_dims((0, None))], x.type.shape[:1], _plus_one())
    return b.build([y])


def _broadcast_graph() -> Graph:
    """Broadcasts one number, plus one, to each row of f32: a small input, a large output."""
    b = GraphBuilder("rows_of_numbers")
    x = b.input("x", (symbol(_rows()),), DType.F32)
    y = b.generic([x], [IndexMap.of_dims((0,))], (x.type.shape[0], _WIDTH), _plus_one())
    return b.build([y])


def _plus_one() -> Scalar:
    return Apply("add", (Arg(0, DType.F32), Const(1.0, DType.F32)), DType.F32)
