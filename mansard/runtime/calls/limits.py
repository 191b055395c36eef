"""Checked options of calls: counts, times and deadlines."""

from __future__ import annotations

import time
from dataclasses import dataclass

from mansard.arguments import integer, seconds
from mansard.errors import InputError

MAX_SECONDS = 365 * 86400.0
"""Longer times count as a year, which every clock can represent."""


def checked_int(name: str, value: object) -> int:
    """The value of an option that is a count; raises InputError, naming the option, unless it is an int."""
    return integer(name, value, InputError)


def checked_seconds(name: str, value: object) -> float:
    """The value of an option that is a time; raises InputError, naming the option, unless it is a number."""
    return seconds(name, value, InputError, MAX_SECONDS)


@dataclass(frozen=True)
class Deadline:
    """A time of `time.monotonic`, and the seconds until it when it was set."""

    at: float
    seconds: float

    @classmethod
    def after(cls, seconds: float, option: str = "deadline") -> Deadline:
        """That many seconds from now; raises InputError, naming the option, unless it is a number."""
        given = checked_seconds(option, seconds)
        return cls(time.monotonic() + given, given)

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; 0 when it has passed."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.at
