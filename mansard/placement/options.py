"""What a user may ask of placement, and its validation, which needs no model."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from typing import Any

from mansard.arguments import sequence, shown, size_in_bytes
from mansard.errors import PlacementError
from mansard.hal.device import HOST_DEVICE

OBJECTIVES = ("latency", "throughput")
SPLITS = ("off", "auto", "all")
FALLBACKS = (HOST_DEVICE, "error")

PINS_FORM = "(pattern, device) pairs, as in (('contraction*', 'vulkan'),)"
MEMORY_FORM = "(device, bytes) pairs, as in (('vulkan', 2 << 30),) or (('vulkan', '2GiB'),)"
COLOCATE_FORM = "a tuple of patterns, as in ('layer.0*',)"


@dataclass(frozen=True)
class PlacementOptions:
    """Options of placement. Raises PlacementError for values out of range.

    ``pins`` are (pattern, device) pairs; the first pattern that matches a dispatch's name, ops or
    source location wins (shell wildcards). ``min_share`` is the smallest fraction of the dispatches that
    every device must get (used with ``objective="throughput"``, which it implies). ``fallback`` "cpu" runs
    on the CPU what the requested devices cannot, with the reason, and where the model's weights exceed
    the memory of a device what it would be slower at; "error" refuses.
    """

    objective: str = "latency"
    pins: tuple[tuple[str, str], ...] = ()
    min_share: float = 0.0
    fallback: str = HOST_DEVICE
    memory: tuple[tuple[str, int], ...] = ()
    """(device, bytes) pairs, or a mapping; bytes may be texts such as ``1.5GB``. The limit on what a device
    holds during one call of typical sizes (weights, states and values); the rest goes elsewhere. Devices with
    memory of their own that are not named here take nine tenths of it."""
    colocate: tuple[str, ...] = ()
    """Patterns as in ``pins``: the dispatches that one matches are all on one device."""
    search_seconds: float = 5.0
    """Time limit of the search for a better placement (`mansard.placement.search.choose`)."""
    split: str = "off"
    """Whether heavy dispatches are partitioned over devices (`mansard.placement.partitioning`): ``off``;
    ``auto``, where that is predicted to make a call faster; ``all``, wherever two devices can share one."""
    together: InitVar[object] = None
    """The former name of ``colocate``; passing it warns."""

    def __post_init__(self, together: object) -> None:
        if together is not None:
            warnings.warn("the option together is now colocate", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "colocate", together)
        _check_choice("objective", self.objective, OBJECTIVES)
        if not isinstance(self.fallback, str) or self.fallback not in FALLBACKS:
            raise PlacementError(f'fallback {shown(self.fallback)} is not "cpu" or "error"')
        _check_choice("split", self.split, SPLITS)
        _check_number("min_share", self.min_share, 0, 0.5)
        _check_number("search_seconds", self.search_seconds, 0, math.inf)
        normalised = {
            "pins": _pins(self.pins),
            "memory": _memory(self.memory),
            "colocate": _colocate(self.colocate),
        }
        for name, value in normalised.items():
            object.__setattr__(self, name, value)


def _check_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise PlacementError(f"{field} {shown(value)} is not one of {', '.join(choices)}")


def _check_number(field: str, value: object, lower: float, upper: float) -> None:
    """Raise PlacementError, naming the field and its range, unless ``value`` is a number within."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if real and lower <= value <= upper:  # type: ignore[operator]
        return
    valid = f"between {lower:g} and {upper:g}" if math.isfinite(upper) else f"a number of {lower:g} or more"
    raise PlacementError(f"{field} {shown(value)} is not {valid}")


def _pairs(field: str, value: object, form: str) -> tuple[tuple[Any, Any], ...]:
    """The pairs of a mapping or sequence, the first of each a string; else PlacementError, with ``form``."""
    items = value.items() if isinstance(value, Mapping) else value
    pairs = []
    for item in sequence(field, items, PlacementError, form):
        if not isinstance(item, tuple | list) or len(item) != 2 or not isinstance(item[0], str):
            raise PlacementError(f"{field}={shown(value)}: it takes {form}, and {shown(item)} is none")
        pairs.append((item[0], item[1]))
    return tuple(pairs)


def _pins(value: object) -> tuple[tuple[str, str], ...]:
    pins = _pairs("pins", value, PINS_FORM)
    for pattern, device in pins:
        if not isinstance(device, str):
            raise PlacementError(f"{shown(pattern)} is pinned to {shown(device)}, which is no device's name")
    return pins


def _memory(value: object) -> tuple[tuple[str, int], ...]:
    limits = _pairs("memory", value, MEMORY_FORM)
    sizes = [size_in_bytes(size) if isinstance(size, str) else size for _, size in limits]
    for (device, given), size in zip(limits, sizes, strict=True):
        if isinstance(size, bool) or not isinstance(size, numbers.Integral) or size < 0:
            raise PlacementError(
                f"a memory limit of {shown(given)} for {shown(device)}: it is a number of bytes, an int, or "
                "a text such as '1.5GB'"
            )
    return tuple((device, int(size or 0)) for (device, _), size in zip(limits, sizes, strict=True))


def _colocate(value: object) -> tuple[str, ...]:
    patterns = sequence("colocate", value, PlacementError, COLOCATE_FORM)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise PlacementError(
                f"colocate={shown(value)}: it takes {COLOCATE_FORM}, and {shown(pattern)} is no pattern"
            )
    return patterns
