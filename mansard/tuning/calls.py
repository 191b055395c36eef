"""What a call takes beside its devices' work: until they begin, and while the host copies.

Two small models tell it, called as any model is, with few rows and with many: the first numbers of the rows
of an input, and rows made of one number each. What calls take longer than their kernels and the device's
copies do is the host's: for few rows the way to the device and back, for many its own copies as well, as far
as they do not run beside the device's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from mansard.dims import Dim, representative, symbol
from mansard.dtypes import DType
from mansard.hal import Device
from mansard.ir import Graph, GraphBuilder, IndexMap
from mansard.ir.scalar import Apply, Arg, Const, Scalar
from mansard.runtime.profiling.profile import Profile
from mansard.tuning.links import wake
from mansard.tuning.sessions import session_on

Points = tuple[tuple[float, float], ...]
"""(Bytes, seconds), the smallest first."""
_WIDTH = 1 << 10
_ROWS = (1 << 8, 1 << 11, 1 << 13)
"""1, 8 and 32 MB."""
_CALLS, _PROFILED = 200, 30
_LEAST, _SECONDS = 4, 0.1
"""Fewer, down to so many, where they take longer than this."""


@dataclass(frozen=True)
class CallCosts:
    """Seconds of a call beside its kernel, where there is little to do, and of the host's own copies of
    inputs and of outputs."""

    least: float
    inputs: Points
    outputs: Points


def call_costs(device: Device) -> CallCosts:
    """Measure a device that computes. Raises errors under CompileError and DeviceError where it cannot."""
    firsts, spread = _Calls(device, _firsts()), _Calls(device, _spread())
    with closing(firsts), closing(spread):
        least = firsts.beside(1, copies=False)
        if device.capabilities.late_binding:  # uses the caller's arrays
            return CallCosts(least, (), ())
        return CallCosts(least, _points(firsts.beside), _points(spread.beside))


def _points(beside: Callable[[int], float]) -> Points:
    """Seconds of the host's copies by bytes: never less than those of fewer."""
    found: list[tuple[float, float]] = []
    nothing = beside(1)
    for rows in _ROWS:
        seconds = max(beside(rows) - nothing, found[-1][1] if found else 0.0)
        found.append((4.0 * _WIDTH * rows, seconds))
    return tuple(found)


class _Calls:
    """A model with rows of inputs, called."""

    def __init__(self, device: Device, graph: Graph) -> None:
        self.session = session_on(device, graph)
        self.shape = self.session.plan.inputs[0].shape
        self.kernels = {decision.dispatch for decision in self.session.plan.decisions}
        wake(device)

    def beside(self, rows: int, *, copies: bool = True) -> float:
        """Seconds of a call with so many rows beside its kernels, and the device's ``copies``: the least of
        several calls, less the least of the device's work in as many others."""
        array = np.ones([rows, *map(representative, self.shape[1:])], np.float32)
        prepared = self.session.signature.prepare([array], {})

        def call() -> float:
            begin = time.perf_counter()
            self.session.run(self.session.signature.prepare([array], {}))
            return time.perf_counter() - begin

        call()
        took = _least_of(call, _CALLS)
        return max(
            0.0, took - _least_of(lambda: self._work(self.session.profile(prepared), copies), _PROFILED)
        )

    def _work(self, profile: Profile, copies: bool) -> float:
        rows = [row for row in profile.rows if copies or row.label in self.kernels]
        return sum(row.end_ns - row.start_ns for row in rows) / 1e9

    def close(self) -> None:
        """Free what it holds."""
        self.session.close()


def _least_of(measured: Callable[[], float], turns: int) -> float:
    found: list[float] = []
    until = time.monotonic() + _SECONDS
    while len(found) < (turns if time.monotonic() < until else _LEAST):
        found.append(measured())
    return min(found)


def _rows() -> Dim:
    return Dim("rows", 1, max(_ROWS), typical=_ROWS[0])


def _firsts() -> Graph:
    """The first numbers of rows of f32: a large input, of which little is read, and a small output."""
    b = GraphBuilder("firsts")
    x = b.input("x", (symbol(_rows()), _WIDTH), DType.F32)
    y = b.generic([x], [IndexMap.of_dims((0, None))], x.type.shape[:1], _plus_one())
    return b.build([y])


def _spread() -> Graph:
    """Rows of f32 that hold one number each, and one more: a small input, a large output."""
    b = GraphBuilder("rows_of_numbers")
    x = b.input("x", (symbol(_rows()),), DType.F32)
    y = b.generic([x], [IndexMap.of_dims((0,))], (x.type.shape[0], _WIDTH), _plus_one())
    return b.build([y])


def _plus_one() -> Scalar:
    return Apply("add", (Arg(0, DType.F32), Const(1.0, DType.F32)), DType.F32)
