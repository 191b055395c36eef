"""Calls of every kind under a storm of signals whose handler raises: nothing may be lost.

``python -m support.signal_stress DEVICE SECONDS [SEED]`` in ``tests`` prints the seed and counts, and ends
with status 0 if all is right. After a storm of that many seconds comes one of a tenth of the time with a
tenth of the signals, in which long work such as loading gets to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import mansard
from mansard import dims
from mansard.api import Model
from mansard.dims import Dim
from mansard.drivers.cpu.device import CpuDevice
from mansard.drivers.vulkan.device import VulkanDevice
from mansard.dtypes import DType
from mansard.hal import Device, native
from mansard.ir import Constant, Graph, GraphBuilder
from mansard.runtime.calls.completion import completions
from support.graph_runner import compiled
from support.graphs import binary, matmul
from support.stress.storm import PERIOD, Interrupted, Storm, after

WEIGHT = np.random.default_rng(0).standard_normal((64, 16), dtype=np.float32)
GROWTH = 16 << 20
"""Bytes by which the process may grow after the first tenth of the time."""
HELD = 32
"""Errors that may be under way: of contexts that wait for their next call."""


def product() -> Graph:
    """y = x @ w for any number of rows."""
    b = GraphBuilder("product")
    x = b.input("x", (dims.symbol(Dim("n", 1, 64)), 64), DType.F32)
    return b.build([matmul(b, x, b.constant("w", Constant.of(WEIGHT, "w"), WEIGHT.shape, DType.F32))])


def counter() -> Graph:
    """A state that grows by x with every call, and its new contents."""
    b = GraphBuilder("counter")
    x, total = b.input("x", (8, 32), DType.F32), b.state("total", (8, 32), DType.F32)
    after = binary(b, "add", total, x)
    b.update_state(total, after)
    return b.build([after])


class Subject:
    """The models, and calls of them that check their results."""

    def __init__(self, device: str, seed: int) -> None:
        self._random = random.Random(seed)
        self.model = compiled(product(), device)
        self.states = compiled(counter(), device)
        self.path = Path(tempfile.mkdtemp()) / "model.mansard"
        self.model.save(self.path)
        self._count = 0.0
        self.loop = asyncio.new_event_loop()

    def call(self) -> None:
        """One blocking call."""
        self._check(self.model)

    def _check(self, model: Model, rows: int = 0, **options: float) -> None:
        x = np.full((rows or self._random.choice((1, 4, 33)), 64), self._random.randrange(1, 9), np.float32)
        assert np.allclose(model(x, **options), x @ WEIGHT, rtol=1e-4, atol=1e-4), "a wrong result"

    def step(self) -> None:
        """One call of the model with states: an interrupted one has been done wholly or not at all."""
        y = self.states(np.ones((8, 32), np.float32))
        assert np.all(y == y.flat[0]), "half a step"
        assert y.flat[0] > self._count, "a step was lost"
        self._count = float(y.flat[0])

    def chunks(self) -> None:
        """A batch as several calls in flight."""
        x = np.full((64, 64), 2, np.float32)
        y = self.model.run_in_batches(x, size=self._random.choice((9, 16)))
        assert np.allclose(y, x @ WEIGHT, rtol=1e-4, atol=1e-4), "a wrong batch"

    def awaited(self) -> None:
        """Several awaited calls, some cancelled."""

        async def main() -> None:
            x = np.full((4, 64), 3, np.float32)
            calls = [asyncio.ensure_future(self.model.run_async(x)) for _ in range(6)]
            calls[self._random.randrange(6)].cancel()
            for call in calls:
                with contextlib.suppress(asyncio.CancelledError):
                    assert np.allclose(await call, x @ WEIGHT, rtol=1e-4, atol=1e-4), "a wrong awaited result"

        self.loop.run_until_complete(main())

    def renew_loop(self) -> None:
        """End an event loop that was interrupted anywhere as `asyncio.run` does, and begin another.

        Not all of its tasks end: asyncio itself may have lost what was to wake one.
        """
        asyncio._set_running_loop(None)
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        for _ in range(4):
            # Tasks may have an interrupt as their result, and the loop may have been told to stop.
            with contextlib.suppress(Interrupted, KeyboardInterrupt, RuntimeError):
                self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()
        self.loop = asyncio.new_event_loop()

    def load(self) -> None:
        """Load, call and close another model."""
        with mansard.load(self.path) as model:
            self._check(model, rows=2)

    @contextlib.contextmanager
    def threads(self, count: int) -> Iterator[Counter[str]]:
        """Other threads, which call the same model without noticing anything."""
        over, ends = threading.Event(), Counter[str]()

        def serve(seed: int) -> None:
            rng = random.Random(seed)
            while not over.is_set():
                try:
                    x = np.full((rng.choice((1, 4, 33)), 64), seed, np.float32)
                    assert np.allclose(self.model(x), x @ WEIGHT, rtol=1e-4, atol=1e-4)
                    ends["calls of other threads"] += 1
                except BaseException as error:
                    ends[f"other thread: {type(error).__name__}: {error}"] += 1

        workers = [threading.Thread(target=serve, args=(n + 1,), daemon=True) for n in range(count)]
        for worker in workers:
            worker.start()
        yield ends
        over.set()
        for worker in workers:
            worker.join()

    def check(self) -> list[str]:
        """What is not as it was; everything must be given back by now, or soon."""
        problems = []
        for model in (self.model, self.states):
            session = model.bind()
            calls = session._calls
            admission, workspaces = calls.admission, calls._environment.workspaces
            until = time.monotonic() + 60
            while admission._free < admission.permits and time.monotonic() < until:
                time.sleep(0.001)
            if admission._free != admission.permits:
                problems.append(f"{admission._free} of {admission.permits} permits are free")
            if admission._queued or admission._granted or any(each[-1].waiting for each in admission._queue):
                problems.append(f"calls are still queued ({admission._queued} counted)")
            if any(each.user is not None for each in workspaces.all()):
                problems.append("a workspace is still in use")
            problems += [
                f"{n} submissions are held" for n in (still_held(slot.device) for slot in session.slots) if n
            ]
        until = time.monotonic() + 60  # calls of models that were loaded end in the background
        while completions()._watches and time.monotonic() < until:
            time.sleep(0.001)
        if completions()._watches:
            problems.append(f"{len(completions()._watches)} completions are still watched")
        self._check(self.model)
        self.step()
        return problems


def held(device: Device) -> int:
    """The submissions whose memory is kept for a device that is idle."""
    if isinstance(device, VulkanDevice):
        device._collect()
        return sum(len(queue._running) + len(queue._closing) for queue in device._queues.values())
    assert isinstance(device, CpuDevice)
    native.drop_retired(device._queue.handle, device._queue._held)
    return len(device._queue._held)


def still_held(device: Device) -> int:
    """`held` once the device had time to let go: a call may end before the thread that ran it retires it."""
    until = time.monotonic() + 60
    while (count := held(device)) and time.monotonic() < until:
        time.sleep(0.001)
    return count


def resident() -> int:
    """Bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def storm_round(
    subject: Subject, storm: Storm, seconds: float, others: bool
) -> tuple[Counter[str], list[str]]:
    """Every kind of work under the storm; how often each thing happened, and what was lost."""
    total, problems = Counter[str](), []
    works = (subject.call, subject.step, subject.chunks, subject.awaited, subject.load, subject.call)
    for work in works:
        threads = others and work == subject.call
        repair: Callable[[], object] = subject.renew_loop if work == subject.awaited else gc.get_count
        with subject.threads(2) if threads else contextlib.nullcontext(Counter[str]()) as ends:
            counts = storm.over(work, repair, after(seconds / len(works)))
        total += Counter({f"{work.__name__} {k}": n for k, n in counts.items()}) + ends
        problems += [f"after {work.__name__}: {each}" for each in subject.check()]
    gc.collect()
    return total, problems


def main(device: str, seconds: float, seed: int) -> int:
    """Run; the exit status."""
    sys.unraisablehook = deque(maxlen=0).append  # interrupts of destructors; C, so not interrupted itself
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # calls whose loop was interrupted
    print(f"{device}: {seconds:g} s of signals every {PERIOD * 1e3:g} ms, seed {seed}", flush=True)
    subject, storm = Subject(device, seed), Storm(seed)
    for work in (subject.call, subject.step, subject.chunks, subject.awaited, subject.load):
        work()
    problems: list[str] = []
    rounds, total, first = 10 if seconds >= 60 else 2, Counter[str](), 0
    for number in range(rounds + 1):
        if number == rounds:
            storm.period = 10 * PERIOD
        length = seconds / rounds if number < rounds else seconds / 10
        counts, lost = storm_round(subject, storm, length, others=number % 2 > 0)
        total, problems, errors = total + counts, problems + lost, native.transported_errors()
        first = first or resident()
        print(f"  {storm.signals} signals, {resident() / 2**20:.1f} MB, {errors} errors held", flush=True)
        if errors > HELD:
            problems.append(f"{errors} errors are held")
    grown = resident() - first
    if grown > GROWTH and "MANSARD_STRESS_UNMEASURED" not in os.environ:  # as under a sanitiser
        problems.append(f"the process grew by {grown >> 20} MB")
    problems += [each for each in total if each.startswith("other thread")]
    subject.model.close()
    subject.states.close()
    for name, count in sorted(total.items()):
        print(f"  {name}: {count}")
    print("\n".join(problems) or "nothing was lost", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(
        main(
            sys.argv[1],
            float(sys.argv[2]),
            int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 30),
        )
    )
