"""A storm of signals: SIGALRM at random times, with a handler that raises."""

from __future__ import annotations

import faulthandler
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

PERIOD = 0.4e-3
"""Seconds between signals, on average."""
STALL = 180
"""Seconds in which nothing moves after which the process is ended: it hangs, however slow the machine."""


class Interrupted(Exception):
    """Raised by the handler, as alarm time-outs and Celery's soft limit are."""


class Storm:
    """Interrupts work of the main thread. One for a process, which it ends when nothing moves any more."""

    def __init__(self, seed: int) -> None:
        self._random, self._on = random.Random(seed), False
        self.period = PERIOD
        self.signals = 0
        self._steps = 0
        self.moved: Callable[[], object] = lambda: (self.signals, self._steps)
        """What changes as long as the process does not hang."""
        signal.signal(signal.SIGALRM, self._raise)
        threading.Thread(target=self._watch, daemon=True).start()

    def _raise(self, number: int, frame: object) -> None:
        if self._on:
            self.signals += 1
            self._arm()
            raise self._random.choice((Interrupted, Interrupted, KeyboardInterrupt))

    def _arm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._random.uniform(0.02, 1.98) * self.period)

    def _watch(self) -> None:
        main, moved, signals = threading.main_thread().ident or 0, None, 0
        while True:
            if moved != (moved := self.moved()):
                faulthandler.dump_traceback_later(STALL, exit=True)
            if self._on and signals == self.signals:
                # One may have come just before a system call that waits, and its handler runs after that.
                signal.pthread_kill(main, signal.SIGALRM)
            signals = self.signals
            time.sleep(0.25)

    def over(
        self, work: Callable[[], None], repair: Callable[[], object], done: Callable[[], bool]
    ) -> Counter[str]:
        """Repeat some work until all is done, interrupted at any point; how often each thing happened.

        ``repair`` is called after each interrupt, and is not interrupted. Raises what did not come
        of a signal.
        """
        ends: Counter[str] = Counter()
        while not done():
            try:
                self._on = True
                self._arm()
                while not done():
                    work()
                    self._steps += 1
                    ends["completed"] += 1
            except (Exception, KeyboardInterrupt) as error:
                self._on = False
                if not came_of_signal(error):
                    raise
                ends["interrupted"] += 1
                repair()
            finally:
                self._on = False
        return ends


def came_of_signal(error: BaseException | None) -> bool:
    """Whether an error is an interrupt, or what other libraries made of one."""
    while error is not None and not isinstance(error, Interrupted | KeyboardInterrupt):
        error = error.__context__
    return error is not None


def after(seconds: float) -> Callable[[], bool]:
    """Whether so much time has passed."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until
