"""Whether what a user wants of placement makes sense, before any model is looked at."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from mansard.errors import PlacementError

PINS = "(pattern, device) pairs, as in (('contraction*', 'vulkan'),)"
MEMORY = "(device, bytes) pairs, as in (('vulkan', 2 << 30),)"
TOGETHER = "a tuple of patterns, as in ('layer.0*',)"


def pairs(field: str, value: object, form: str) -> tuple[tuple[Any, Any], ...]:
    """The pairs of a mapping or sequence, the first of each a text; else PlacementError, with ``form``."""
    items = value.items() if isinstance(value, Mapping) else value
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise PlacementError(f"{field}={value!r}: it takes {form}")
    result = []
    for item in items:
        if not isinstance(item, tuple | list) or len(item) != 2 or not isinstance(item[0], str):
            raise PlacementError(f"{field}={value!r}: it takes {form}, and {item!r} is none")
        result.append((item[0], item[1]))
    return tuple(result)


def pins(value: object) -> tuple[tuple[str, str], ...]:
    """The field ``pins``, checked."""
    found = pairs("pins", value, PINS)
    for pattern, device in found:
        if not isinstance(device, str):
            raise PlacementError(f"{pattern!r} is pinned to {device!r}, which is no device's name")
    return found


def memory(value: object) -> tuple[tuple[str, int], ...]:
    """The field ``memory``, checked."""
    found = pairs("memory", value, MEMORY)
    for device, size in found:
        if isinstance(size, bool) or not isinstance(size, numbers.Integral) or size < 0:
            raise PlacementError(
                f"a memory limit of {size!r} for {device!r}: it is a number of bytes, an int"
            )
    return tuple((device, int(size)) for device, size in found)


def together(value: object) -> tuple[str, ...]:
    """The field ``together``, checked."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise PlacementError(f"together={value!r}: it takes {TOGETHER}")
    found = tuple(value)
    for pattern in found:
        if not isinstance(pattern, str):
            raise PlacementError(f"together={value!r}: it takes {TOGETHER}, and {pattern!r} is no pattern")
    return found


def number(field: str, value: object, least: float, most: float) -> None:
    """Raise PlacementError, naming the field and its range, unless it is a number within."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if real and least <= float(value) <= most:  # type: ignore[arg-type]
        return
    wanted = f"between {least:g} and {most:g}" if math.isfinite(most) else f"a number of {least:g} or more"
    raise PlacementError(f"{field} {value!r} is not {wanted}")
