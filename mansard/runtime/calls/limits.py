"""Checked options of calls: counts, times and deadlines."""

from __future__ import annotations

import math
import numbers
import operator
import time
from dataclasses import dataclass

from mansard.errors import InputError

MAX_SECONDS = 365 * 86400.0
"""Longer times count as a year, which every clock can represent."""


def checked_int(name: str, value: object) -> int:
    """The value of an option that is a count; raises InputError, naming the option, unless it is an int."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InputError(f"{name}={value!r} is a {type(value).__name__}; it must be an int")
    return operator.index(value)


def checked_seconds(name: str, value: object) -> float:
    """The value of an option that is a time; raises InputError, naming the option, unless it is a number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputError(f"{name}={value!r} is a {type(value).__name__}; it must be a number of seconds")
    seconds = float(value)
    if math.isnan(seconds):
        raise InputError(f"{name}={value!r} is not a number of seconds")
    return min(seconds, MAX_SECONDS)


@dataclass(frozen=True)
class Deadline:
    """A time of `time.monotonic`, and the seconds until it when it was set."""

    at: float
    seconds: float

    @classmethod
    def after(cls, seconds: float, option: str = "deadline") -> Deadline:
        """That many seconds from now; raises InputError, naming the option, unless it is a number."""
        seconds = checked_seconds(option, seconds)
        return cls(time.monotonic() + seconds, seconds)

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; 0 when it has passed."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.at
