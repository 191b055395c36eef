"""Runs a model while one allocation of the core after another fails; prints counts as JSON.

    python failing_allocations.py ARTIFACT DEVICE

Runs with a core that was built with failing_allocations.h. An allocation that fails ends in an error of
Mansard's or is not noticed; afterwards the same work must succeed, with the right result, and leave nothing
allocated that was not allocated before.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import gc
import importlib
import json
import sys
import time

import numpy as np

import mansard
from mansard.errors import ExecutionError, MansardError
from mansard.hal import Point, Semaphore

faulthandler.dump_traceback_later(60, exit=True)  # a hang, with its place
core = ctypes.CDLL(importlib.import_module("mansard._core").__file__)
number = ctypes.c_long.in_dll(core, "allocation_number")
failing = ctypes.c_long.in_dll(core, "failing_allocation")
live = [ctypes.c_long.in_dll(core, name) for name in ("live_blocks", "live_bytes")]
INPUT = np.linspace(-1, 1, 16 * 24, dtype=np.float32).reshape(16, 24)


async def concurrently(model: mansard.Model, count: int) -> list[np.ndarray]:
    """Some calls in flight at once."""
    return list(await asyncio.gather(*(model.run_async(INPUT) for _ in range(count))))


def use(artifact: str, device: str) -> list[np.ndarray]:
    """Open the device, call the model in every manner, close everything."""
    with mansard.load(artifact, devices=[device]) as model:
        results = [model(INPUT)]
        results += asyncio.run(concurrently(model, 5))
        results += np.split(model.run_in_batches(np.concatenate([INPUT] * 3)), 3)
    return results


def attempt(artifact: str, device: str, failing_number: int) -> tuple[int, str]:
    """Let one allocation fail; the number of allocations there were, and the error."""
    number.value, failing.value = 0, failing_number
    error = ""
    try:
        use(artifact, device)
    except MansardError as caught:
        error = type(caught).__name__
    failing.value = 0
    return number.value, error


def allocated() -> tuple[int, ...]:
    """Blocks and mapped bytes of the core."""
    return tuple(counter.value for counter in live)


def returns_to(before: tuple[int, ...]) -> bool:
    """Whether no more is allocated than before, once threads that end have given back what they had."""
    end = time.monotonic() + 20
    while any(now > then for now, then in zip(allocated(), before, strict=True)):
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
        gc.collect()
    return True


def fail_points(failing_number: int) -> int:
    """Fail more points of a timeline than it has room for; the number of allocations there were.

    A point that failed never counts as reached, whatever memory there was to record it.
    """
    semaphore = Semaphore("points")
    number.value, failing.value = 0, failing_number
    for value in (1, 2, 4, 6, 8, 10):
        semaphore.fail(value, ExecutionError(str(value)))
    failing.value = 0
    assert semaphore.value == 10
    semaphore.signal(12)
    for value in (1, 2, 4, 6, 8, 10):
        assert Point(semaphore, value).error() is not None, (failing_number, value)
    assert Point(semaphore, 3).error() is None
    return number.value


def main() -> None:
    """Fail each allocation in turn."""
    artifact, device = sys.argv[1:]
    expected = use(artifact, device)[0]
    fail_points(0)  # the core keeps its list of errors that nobody needs any more
    gc.collect()
    time.sleep(0.5)  # threads end
    before = allocated()
    errors: dict[str, int] = {}
    failing_number = 0
    while True:
        failing_number += 1
        count, error = attempt(artifact, device, failing_number)
        for result in use(artifact, device):
            assert np.array_equal(result, expected), failing_number
        assert returns_to(before), (failing_number, error, before, allocated())
        if count < failing_number:
            break
        errors[error] = errors.get(error, 0) + 1
    points = 1
    while fail_points(points) >= points:
        points += 1
    print(json.dumps({"allocations": failing_number - 1, "points": points - 1, "errors": errors}))


if __name__ == "__main__":
    main()
