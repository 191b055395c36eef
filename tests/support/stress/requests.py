"""Requests of every kind to models over three devices, which fail and hang at random."""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mansard.api import Model
from mansard.drivers.vulkan import vk
from mansard.errors import (
    DeadlineExceededError,
    ExecutionError,
    OutOfMemoryError,
    QueueFullError,
    WaitTimeoutError,
)
from mansard.hal import Buffer, CommandBuffer, Semaphore, native
from mansard.runtime.execution.context import Context
from support import three_devices
from support.three_devices import NAMES, Devices, expected, model, model_on_one

SIZES = (1, 60, 64, 300, three_devices.COUNT)
AT_ONCE = 24
"""Requests that are not over, of all kinds together."""
TIMEOUT = 120.0
QUEUED = 4
"""Requests to one model that may wait for their turn."""
ALLOWED = (ExecutionError, OutOfMemoryError, WaitTimeoutError, DeadlineExceededError, QueueFullError)
EXPECTED = (ExecutionError, WaitTimeoutError, DeadlineExceededError)
"""What befalls some of so many requests for sure."""

Reference = Callable[[np.ndarray], np.ndarray]


class Trouble(threading.Thread):
    """Lets batches fail and hang and allocations fail, until `stop`."""

    def __init__(self, devices: Devices, seed: int) -> None:
        super().__init__(name="trouble")
        self._devices, self._random, self._over = devices, random.Random(seed), threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            device = getattr(self._devices, self._random.choice(NAMES))
            self._once(device, self._random.randrange(4))
            self._over.wait(self._random.uniform(0.0, 0.006))
        self._devices.release()

    def _once(self, device: object, after: int) -> None:
        what = self._random.random()
        if what < 0.4:  # a batch of somebody's fails
            if device is self._devices.vulkan:
                device.inject(result=vk.VK_ERROR_UNKNOWN, after=after)
            else:
                device.inject(after, error=ExecutionError("injected"))
        elif what < 0.8:  # a batch hangs for a short while
            device.inject(after=after, hang=True)
            self._over.wait(self._random.uniform(0.0, 0.008))
            self._devices.release()
        else:
            self._devices.vulkan.inject(allocation=True, after=after)

    def stop(self) -> None:
        self._over.set()
        self.join()


@dataclass
class Client:
    """Sends requests and looks at what comes back."""

    served: list[tuple[Model, Reference]]
    random: random.Random
    outcomes: Counter[str] = field(default_factory=Counter)

    async def send(self, count: int) -> None:
        """Requests of every kind, each as soon as there are fewer than `AT_ONCE`."""
        turn, before = asyncio.Semaphore(AT_ONCE), asyncio.all_tasks()
        with ThreadPoolExecutor(4) as threads:
            kinds = (self._awaited, self._cancelled, lambda *a: self._blocking(threads, *a))
            weights = (6, 2, 2)

            async def one(kind: Callable[..., Awaitable[str]], *request: object) -> None:
                try:
                    self.outcomes[await kind(*request)] += 1
                finally:
                    turn.release()

            async with asyncio.TaskGroup() as group:
                for _ in range(count):
                    await turn.acquire()
                    called, reference = self.random.choice(self.served)
                    size = self.random.choice(SIZES)
                    x = np.full(size, self.random.randrange(100), np.float32)
                    (kind,) = self.random.choices(kinds, weights)
                    group.create_task(one(kind, called, x, reference))
        assert asyncio.all_tasks() == before, "a call leaves no task to the loop"

    async def _awaited(self, called: Model, x: np.ndarray, reference: Reference) -> str:
        priority, deadline = self.random.randrange(3), self.random.choice((None, None, 0.002, 0.02))
        return await self._checked(called.run_async(x, priority=priority, deadline=deadline), x, reference)

    async def _cancelled(self, called: Model, x: np.ndarray, reference: Reference) -> str:
        task = asyncio.ensure_future(called.run_async(x, priority=self.random.randrange(3)))
        await asyncio.sleep(self.random.choice((0.0, 0.001, 0.003)))
        task.cancel()
        return await self._checked(task, x, reference)

    async def _blocking(
        self, threads: ThreadPoolExecutor, called: Model, x: np.ndarray, reference: Reference
    ) -> str:
        timeout = self.random.choice((0.0, 0.002, TIMEOUT))
        call = asyncio.get_running_loop().run_in_executor(threads, lambda: called(x, timeout=timeout))
        return await self._checked(call, x, reference)

    async def _checked(self, call: Awaitable[object], x: np.ndarray, reference: Reference) -> str:
        try:
            y = await call
        except asyncio.CancelledError:
            return "cancelled"
        except ALLOWED as error:
            return type(error).__name__
        np.testing.assert_array_equal(y, reference(x))
        return "right"


def triple(x: np.ndarray) -> np.ndarray:
    return x + x + x


def served_models(devices: Devices) -> list[tuple[Model, Reference]]:
    """A model on three devices and one on each, with what they compute."""
    served: list[tuple[Model, Reference]] = [(model(devices, max_in_flight=4, max_queued=QUEUED), expected)]
    return served + [(model_on_one(name, devices), triple) for name in NAMES]


def alive() -> Counter[str]:
    """What a call may leave behind: objects of the runtime, descriptors, threads, errors under way."""
    for _ in range(3):
        gc.collect()
    kinds = (Context, Buffer, CommandBuffer, Semaphore, native.Status, Model)
    # The class as it is, not as objects of other libraries have it: asking some for it warns.
    counts = Counter(type(each).__name__ for each in gc.get_objects() if issubclass(type(each), kinds))
    counts["descriptors"] = len([*Path("/proc/self/fd").iterdir()])
    counts["threads"] = len([*Path("/proc/self/task").iterdir()])
    counts["errors"] = native.transported_errors()
    return counts


def resident() -> int:
    """Bytes of the process that are in memory."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()
