"""A soak: very many calls with faults, hangs, cancellations, deadlines and signals.

``python -m support.stress.soak CALLS [SEED]`` in ``tests`` prints the seed and counts, and ends with status 0
if every call had one outcome, results were right, nothing was left behind and memory stayed flat.

A thread sends requests of every kind (`support.stress.requests`); the main thread calls the same models under
a storm of signals, whose handler raises, until the thread is done. All of these calls count.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import threading
from collections import Counter, deque

import numpy as np
from numpy.testing import assert_array_equal  # now: an interrupted import leaves its lock

from mansard.api import Model
from mansard.runtime.calls.completion import completions
from support import vulkan_support
from support.stress.requests import (
    ALLOWED,
    SIZES,
    TIMEOUT,
    Client,
    Reference,
    Trouble,
    alive,
    resident,
    served_models,
    triple,
)
from support.stress.storm import Storm
from support.three_devices import Devices

ROUND = 2000
"""Requests of the thread between two looks at the memory."""
PERIOD = 4e-3
"""Seconds between signals: most calls get to their end."""
GROWTH = 16 << 20
"""Bytes by which the process may grow after the first tenth of the calls."""


class Caller:
    """Blocking calls of the main thread, which signals interrupt anywhere."""

    def __init__(self, served: list[tuple[Model, Reference]], seed: int) -> None:
        self._served, self._random = served, random.Random(seed)
        self.begun = self.ended = self.interrupted = 0
        self._open = False
        """Whether a call has begun and has no outcome yet; written together with the counts."""
        self.outcomes: Counter[str] = Counter()

    def call(self) -> None:
        """One call, or a batch."""
        called, reference = self._random.choice(self._served)
        x = np.full(self._random.choice(SIZES), self._random.randrange(100), np.float32)
        options = {"deadline": self._random.choice((None, None, None, 0.002, 0.02))}
        batch = reference is triple and self._random.random() < 0.1  # each row by itself
        self.begun, self._open = self.begun + 1, True
        outcome = "right"
        try:
            y = called.run_in_batches(x, **options) if batch else called(x, timeout=TIMEOUT, **options)
        except ALLOWED as error:
            outcome = type(error).__name__
        else:
            assert_array_equal(y, reference(x))
        self.ended, self._open = self.ended + 1, False
        self.outcomes[outcome] += 1

    def note_interrupt(self) -> None:
        """After an interrupt: it was the outcome of the call, if there was one."""
        self.interrupted, self._open = self.interrupted + self._open, False


def soak_round(client: Client, caller: Caller, storm: Storm, requests: int) -> None:
    """Requests of the thread, and calls of the main thread meanwhile."""
    ends: list[BaseException | None] = []  # not Thread.is_alive(), which takes an interrupt for the end

    def send() -> None:
        try:
            asyncio.run(client.send(requests))
        except BaseException as error:
            ends.append(error)
        else:
            ends.append(None)

    sender = threading.Thread(target=send, name="requests")
    sender.start()
    try:
        storm.over(caller.call, caller.note_interrupt, lambda: bool(ends))
    finally:
        sender.join()  # also after a failure: devices are closed next
    if ends[0] is not None:
        raise ends[0]


def soak(devices: Devices, storm: Storm, calls: int, seed: int) -> list[str]:
    """Serve so many calls; what was wrong."""
    served, problems, first, shown = served_models(devices), [], 0, 0
    trouble, client = Trouble(devices, seed), Client(served, random.Random(seed))
    caller, sent = Caller(served, seed + 1), 0
    storm.moved = client.outcomes.total
    trouble.start()
    try:
        while (count := sent + caller.begun) < calls:
            requests = min(ROUND, max(20, (calls - count) // 2))
            soak_round(client, caller, storm, requests)
            sent += requests
            if sent + caller.begun >= shown:
                shown += max(calls // 20, 1)
                gc.collect()
                first = first or (resident() if sent + caller.begun >= calls / 10 else 0)
                print(
                    f"  {sent + caller.begun} calls, {storm.signals} signals, {resident() / 2**20:.1f} MB",
                    flush=True,
                )
    finally:
        trouble.stop()
    gc.collect()
    grown = resident() - (first or resident())
    if grown > GROWTH and "MANSARD_STRESS_UNMEASURED" not in os.environ:  # as under a sanitiser
        problems.append(f"the process grew by {grown >> 20} MB")
    if client.outcomes.total() != sent:
        problems.append(f"{sent} requests have {client.outcomes.total()} outcomes")
    if caller.ended + caller.interrupted != caller.begun:
        problems.append(f"{caller.begun} calls have {caller.ended + caller.interrupted} outcomes")
    for called, reference in served:
        problems += left_by(called)
        x = np.ones(7, np.float32)
        assert_array_equal(called(x, timeout=TIMEOUT), reference(x))
        called.close()
    outcomes = client.outcomes + caller.outcomes + Counter({"interrupted": caller.interrupted})
    print(f"  {sent + caller.begun} calls: {', '.join(f'{n} {what}' for what, n in outcomes.most_common())}")
    return problems


def left_by(model: Model) -> list[str]:
    """What calls have not given back of a model that nobody calls any more."""
    admission = model.bind()._calls.admission
    model.bind()._calls.exclusively(lambda: None)  # calls that were cancelled end in the background
    free, waiting = admission._free, sum(each[-1].waiting for each in admission._queue)
    if (free, waiting, admission._queued, len(admission._granted)) == (admission.permits, 0, 0, 0):
        return []
    return [
        f"{free} of {admission.permits} permits free, {waiting} calls waiting, {admission._queued} counted"
    ]


def main(calls: int, seed: int) -> int:
    """Run; the exit status."""
    sys.unraisablehook = deque(maxlen=0).append  # interrupts of destructors; C, so not interrupted itself
    print(f"{calls} calls with faults, cancellations, deadlines and signals, seed {seed}", flush=True)
    completions()  # threads of the process, which stay
    storm, devices = Storm(seed), Devices.open()
    storm.period = PERIOD
    try:
        soak(devices, storm, min(300, calls // 2), seed)
        before = alive()
        problems = soak(devices, storm, calls, seed + 1)
        left = alive() - before
    finally:
        devices.close()
    if left:
        problems.append(f"left behind: {dict(left)}")
    vulkan_support.assert_no_validation_messages()  # it tells of objects that outlive their device
    print("\n".join(problems) or "every call had one outcome, and nothing was left behind", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30)))
