"""Checks of arguments that users pass: errors say what was wrong and what would be right.

Every function takes the name of the argument and the error to raise, and returns the value as its type.
"""

from __future__ import annotations

import math
import numbers
import operator
import re
import reprlib
from collections.abc import Sequence
from typing import Any

from mansard.errors import MansardError

_SHOWN = 80


def shown(value: object) -> str:
    """A value in a message: short, whatever it is, and however deep."""
    brief = reprlib.Repr()
    brief.maxother = brief.maxstring = brief.maxlong = _SHOWN
    try:
        text = brief.repr(value)
    except Exception:  # of the value's own __repr__, or a number too long to print
        return f"a {type(value).__name__}"
    return text if len(text) <= 2 * _SHOWN else f"{text[: 2 * _SHOWN]}…"


def boolean(name: str, value: object, error: type[MansardError]) -> bool:
    """True or False, and nothing that merely counts as one of them."""
    if not isinstance(value, bool):
        raise error(f"{name}={shown(value)} is a {type(value).__name__}; it must be True or False")
    return value


def integer(
    name: str, value: object, error: type[MansardError], low: int = -(2**63), high: int = 2**63 - 1
) -> int:
    """An int, also one of NumPy's, from ``low`` to ``high``; without limits one of 64 bits."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise error(f"{name}={shown(value)} is a {type(value).__name__}; it must be an int")
    number = operator.index(value)
    if not low <= number <= high:
        raise error(f"{name}={shown(value)} is out of range: it must be from {low} to {high}")
    return number


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def size_in_bytes(text: str) -> int | None:
    """The bytes that a text such as ``1.5GB`` or ``512MiB`` says; None for one that says none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([kmg]i?)?b?", text.strip().lower())
    return None if match is None else int(float(match[1]) * _UNITS[match[2] or ""])


def seconds(name: str, value: object, error: type[MansardError], longest: float) -> float:
    """A number of seconds, infinity included; those above ``longest`` count as that."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise error(f"{name}={shown(value)} is a {type(value).__name__}; it must be a number of seconds")
    try:
        number = float(value)
    except OverflowError:  # an int beyond what a float can hold
        number = math.inf if operator.gt(value, 0) else -math.inf
    if math.isnan(number):
        raise error(f"{name}={shown(value)} is not a number of seconds")
    return max(-longest, min(number, longest))


def choice(name: str, value: object, choices: Sequence[str], error: type[MansardError]) -> str:
    """One of the strings that a parameter knows."""
    if not isinstance(value, str) or value not in choices:
        raise error(f"{name}={shown(value)} is not one of {', '.join(map(repr, choices))}")
    return value


def text(name: str, value: object, error: type[MansardError]) -> str:
    """A string."""
    if not isinstance(value, str):
        raise error(f"{name}={shown(value)} is a {type(value).__name__}; it must be a string")
    return value


def texts(name: str, value: object, error: type[MansardError], example: str) -> tuple[str, ...]:
    """A string, or a sequence of them, as a tuple; ``example`` is one of them, for messages."""
    if isinstance(value, str):
        return (value,)
    items = sequence(name, value, error, f"a string such as {example!r} or a sequence of them")
    for item in items:
        if not isinstance(item, str):
            raise error(f"{name}: {shown(item)} is a {type(item).__name__}, not a string such as {example!r}")
    return items


def sequence(name: str, value: object, error: type[MansardError], form: str) -> tuple[Any, ...]:
    """The items of a list, a tuple or another iterable that is no string and no bytes."""
    if isinstance(value, (str, bytes, bytearray)):
        raise error(f"{name}={shown(value)}: it takes {form}")
    try:
        return tuple(value)  # type: ignore[arg-type]  # a TypeError is what is asked for
    except Exception as problem:  # also of the value's own iterator
        raise error(f"{name}={shown(value)}: it takes {form}") from problem


def names(name: str, value: object, error: type[MansardError], example: str) -> tuple[str, ...]:
    """A sequence of names: strings that are not empty and can be written."""
    items = sequence(name, value, error, f"a sequence of names such as [{example!r}]")
    for item in items:
        if not isinstance(item, str) or not item or not item.isprintable():
            raise error(f"{name}: {shown(item)} is not a name such as {example!r}")
    return items


def function(name: str, value: object, error: type[MansardError]) -> None:
    """Something that can be called, or None."""
    if value is not None and not callable(value):
        raise error(f"{name}={shown(value)} is a {type(value).__name__}; it must be a function or None")
