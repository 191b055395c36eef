"""The suite's kernels as functions of a worker, for adapters of devices that run regions in one
(`mansard.hal.worker_device`): ``load`` and ``run`` of their module."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mansard.hal.program import Program, Tensor

Array = npt.NDArray[np.generic]
_N = Tensor("x", "float32", ("n",))
_ABI: dict[str, tuple[tuple[Tensor, ...], Tensor, tuple[str, ...]]] = {
    "fill_index": ((), Tensor("out", "int32", ("n",)), ("n", "a", "b")),
    "add": ((_N, _N), _N, ("n",)),
    "spin": ((), Tensor("out", "uint32", (1,)), ("n",)),
    "wide": ((), Tensor("out", "int64", (1,)), tuple(f"p{number}" for number in range(20))),
    "hang": ((), Tensor("out", "int32", (1,)), ()),
    "die": ((), Tensor("out", "int32", (1,)), ()),
}


def worker_kernel(name: str, code: bytes | None = None) -> Program:
    """One of `mansard.testing.KERNELS`, or ``hang`` or ``die``, which do that. ``code`` is what the device
    takes the name from; None: the name itself."""
    inputs, output, parameters = _ABI[name]
    return Program(name.encode() if code is None else code, inputs, (output,), parameters)


def load(code: bytes) -> str:
    """The name of a kernel."""
    return bytes(code).decode()


def run(name: str, inputs: Sequence[Array], params: Sequence[int]) -> list[Array]:
    """The results of a kernel."""
    if name == "fill_index":
        n, a, b = params
        return [(np.arange(n, dtype=np.int64) * a + b).astype(np.int32)]
    if name == "add":
        return [np.asarray(inputs[0] + inputs[1])]  # type: ignore[operator]
    if name == "spin":
        return [np.array([_spun(params[0])], np.uint32)]
    if name == "wide":
        return [np.array([sum(params)], np.int64)]
    if name == "die":
        os.abort()
    time.sleep(600)
    return []


def _spun(steps: int) -> int:
    state = 0
    for _ in range(min(steps, 2000)):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
    time.sleep(0.03)
    return state
