"""The states of a beam: partial placements, as structure of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.placement.problem import HOST

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass
class BeamStates:
    """Partial placements, one a row. Shapes: (states,), (states, devices) or (states, slots[, devices])."""

    queue_free: Floats
    """When the queue of every device is free."""
    last_bound: Floats
    """When the last dispatch so far ends."""
    available: Floats
    """When the value of a slot is available on a device; inf: it was not copied there."""
    source: Ints
    """The device that produced the value of a slot; HOST for inputs and empty slots."""
    group_device: Ints
    """The device of a co-located group, -1 before its first dispatch."""
    used_bytes: Floats
    """Bytes of constants on each limited device."""
    resident: Bools
    """Whether a shared constant is on a device. (states, shared constants, devices)"""
    pending: Bools
    """Whether the next read of a slot's value on a device is a handoff: nothing there has waited for it."""
    dispatch_counts: Floats
    """Dispatches on each device that must have some, up to that number."""

    def take(self, rows: Any) -> BeamStates:
        """Some of the rows, copied."""
        return BeamStates(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def live_values(self, slots: Ints) -> tuple[Ints, Floats, Bools]:
        """For the values of some slots the device that produced them, when, and the devices without them."""
        available, source = self.available[:, slots], self.source[:, slots]
        produced = np.take_along_axis(available, np.maximum(source, 0)[:, :, None], axis=2)[:, :, 0]
        return source, np.where(source == HOST, 0.0, produced), np.isinf(available)

    @staticmethod
    def concatenate(parts: Sequence[BeamStates]) -> BeamStates:
        """The rows of all parts."""
        names = BeamStates.__dataclass_fields__
        return BeamStates(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))
