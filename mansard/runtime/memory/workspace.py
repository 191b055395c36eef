"""Workspaces: memory for activations in which the contexts of many shapes take turns.

A device that accepts buffers at submission (``late_binding``) needs no arena for every set of shapes it
has recorded: a context is given a workspace that is large enough for the time of a call.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.errors import OutOfMemoryError
from mansard.hal import Buffer, MemoryKind
from mansard.plan.arena import ArenaPlan, Lease, plan_arena
from mansard.plan.layout import Store
from mansard.plan.memory_uses import ACTIVATIONS
from mansard.runtime.devices.binding import BoundSlot


@dataclass(frozen=True, eq=False)
class Workspace:
    """A buffer of one device slot, and the host's view of it."""

    slot: int
    buffer: Buffer
    view: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class WorkspacePlan:
    """What a context needs of a slot's workspace: where its stores lie in it."""

    slot: int
    arena: ArenaPlan
    offsets: Mapping[Store, int]


def plan_workspaces(
    slots: Sequence[BoundSlot], stores: Sequence[Store], sizes: Mapping[Store, int]
) -> dict[int, WorkspacePlan]:
    """The workspaces of a context, by slot: for activations that one late-binding device uses alone."""
    plans = {}
    for number, slot in enumerate(slots):
        capabilities = slot.device.capabilities
        own = [
            store
            for store in stores
            if store.use == ACTIVATIONS and store.members == {number} and store.kind is MemoryKind.DEVICE
        ]
        if not (capabilities.late_binding and capabilities.unified_memory):
            continue
        arena = plan_arena([Lease(sizes[store], store.first, store.last) for store in own])
        if 0 < arena.size <= capabilities.max_allocation:
            offsets = dict(zip(own, arena.offsets, strict=True))
            plans[number] = WorkspacePlan(number, arena, offsets)
    return plans


class Workspaces:
    """The workspaces of a session. Free ones are kept; a larger one takes the place of smaller ones."""

    def __init__(self, slots: Sequence[BoundSlot]) -> None:
        self._slots = slots
        self._free: list[Workspace] = []
        self._lent: list[Workspace] = []
        self._lock = threading.Lock()

    def take(self, plan: WorkspacePlan) -> Workspace:
        """The smallest free workspace that is large enough, or a new one; raises OutOfMemoryError."""
        with self._lock:
            fitting = [w for w in self._free if w.slot == plan.slot and w.buffer.size >= plan.arena.size]
            if fitting:
                found = min(fitting, key=lambda w: w.buffer.size)
                self._free.remove(found)
            else:
                found = self._allocate(plan)
            self._lent.append(found)
            return found

    def give(self, workspace: Workspace) -> None:
        """Take back what `take` gave."""
        with self._lock:
            self._lent.remove(workspace)
            self._free.append(workspace)

    def all(self) -> list[Workspace]:
        """Every workspace, lent or free."""
        with self._lock:
            return [*self._lent, *self._free]

    def close(self) -> None:
        """Free the workspaces nobody uses."""
        with self._lock:
            free, self._free = self._free, []
        for workspace in free:
            workspace.buffer.close()

    def _allocate(self, plan: WorkspacePlan) -> Workspace:
        # What is free is too small for this plan; the new one serves smaller plans as well.
        self._drop(plan.slot)
        try:
            return self._new(plan)
        except OutOfMemoryError:
            for slot in range(len(self._slots)):
                self._drop(slot)
        return self._new(plan)

    def _new(self, plan: WorkspacePlan) -> Workspace:
        buffer = self._slots[plan.slot].device.allocate(plan.arena.size, MemoryKind.DEVICE, ACTIVATIONS)
        return Workspace(plan.slot, buffer, buffer.view())

    def _drop(self, slot: int) -> None:
        for workspace in [w for w in self._free if w.slot == slot]:
            self._free.remove(workspace)
            workspace.buffer.close()
