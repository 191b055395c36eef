"""Simulated time: how it relates to real time, and what happens when the host computes too slowly."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from dataclasses import dataclass

CARRIED = 1e-3
"""Seconds by which a command may end late without counting as overrun: what threads take to wake up. The next
command makes up for it, if it was there by then."""
BACK_TO_BACK = 200e-6
"""Seconds within which the host goes from one command to the next that was waiting."""
_NICE = -15
_PR_SET_TIMERSLACK = 29


@dataclass(frozen=True)
class Overruns:
    """Commands for which the host took longer than the simulated NPU would have: their times, and what
    depends on them, are the host's and not those of the model."""

    commands: int
    """Of how many in all."""
    overruns: int
    seconds: float
    """Real time lost to them."""


class Clock:
    """The time of one simulated device: ``speed`` simulated seconds pass in a real one; inf does not wait.

    Commands of one thread that follow each other do so in simulated time, whatever the host needed between
    them. Kernels and copies have a thread each.
    """

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        """May be changed at any time; a command that waits keeps the speed it began with."""
        self._own = threading.local()
        self._lock = threading.Lock()
        self._commands, self._overruns, self._lost = 0, 0, 0.0

    def spend(self, start: float, seconds: float) -> None:
        """Sleep until ``seconds`` of simulated time have passed since a command came at ``start``
        (`time.perf_counter`). Called by the device's threads; returns at once when that time is up."""
        self._wake_in_time()
        before, returned = self._own.last
        begin = min(start, before) if start - returned < BACK_TO_BACK else start
        end = begin + seconds / self.speed
        while (left := end - time.perf_counter()) > 0:
            time.sleep(left)
        returned = time.perf_counter()
        late = returned - end
        with self._lock:
            self._commands += 1
            if late > CARRIED and self.speed != float("inf"):
                self._overruns, self._lost = self._overruns + 1, self._lost + late
        self._own.last = (end if late <= CARRIED else returned, returned)

    def overruns(self) -> Overruns:
        """What was counted since the device was opened."""
        return Overruns(self._commands, self._overruns, self._lost)

    def _wake_in_time(self) -> None:
        """A chip of its own would not wait for the host's cores: its threads go before others, if they may.
        And Linux lets threads sleep 50 us longer than they asked for, unless they say otherwise."""
        if not hasattr(self._own, "last"):
            self._own.last = (0.0, 0.0)
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1000), 0, 0, 0)
