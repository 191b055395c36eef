"""What callers say about calls: counts and times, checked before anything of a call is made."""

from __future__ import annotations

import math
import numbers
import operator

from mansard.errors import InputError

LONGEST_S = 365 * 86400.0
"""Limits of time beyond a year count as a year: nobody waits that long, and clocks count that far."""


def whole(name: str, value: object) -> int:
    """The value of an option that counts something; InputError, naming the option, unless it is an int."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InputError(f"{name}={value!r} is a {type(value).__name__}; it must be an int")
    return operator.index(value)


def seconds(name: str, value: object) -> float:
    """The value of an option that is a time; InputError, naming the option, unless it is a number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputError(f"{name}={value!r} is a {type(value).__name__}; it must be a number of seconds")
    given = float(value)
    if math.isnan(given):
        raise InputError(f"{name}={value!r} is not a number of seconds")
    return min(given, LONGEST_S)
