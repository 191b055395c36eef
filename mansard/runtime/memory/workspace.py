"""Workspaces: activation memory that contexts of different shapes share over time.

A device that binds buffers at submission (``late_binding``) needs no arena for each set of shapes that it
has recorded: for the time of a call a context acquires a workspace that is large enough.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.errors import OutOfMemoryError
from mansard.hal import Buffer, MemoryKind
from mansard.hal.service import uninterrupted
from mansard.plan.arena import ArenaLayout, LiveRange, plan_arena
from mansard.plan.memory_uses import ACTIVATIONS
from mansard.plan.stores import Store
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.memory.host_copy import Bytes


@dataclass(eq=False)
class Workspace:
    """A buffer of one device slot, and the host's view of it."""

    slot: int
    buffer: Buffer
    view: Bytes
    user: object = None
    """The record of the call that uses it; None when it is free."""


@dataclass(frozen=True)
class WorkspacePlan:
    """The offsets of a context's stores in the workspace of a slot."""

    slot: int
    arena: ArenaLayout
    offsets: Mapping[Store, int]


def plan_workspaces(
    slots: Sequence[BoundSlot], stores: Sequence[Store], sizes: Mapping[Store, int]
) -> dict[int, WorkspacePlan]:
    """The workspaces that a context needs, by slot: for activations used by a single late-binding device."""
    plans = {}
    for number, slot in enumerate(slots):
        capabilities = slot.device.capabilities
        local = [
            store
            for store in stores
            if store.use == ACTIVATIONS and store.members == {number} and store.kind is MemoryKind.DEVICE
        ]
        if not (capabilities.late_binding and capabilities.unified_memory):
            continue
        arena = plan_arena([LiveRange(sizes[store], store.first, store.last) for store in local])
        if 0 < arena.size <= capabilities.max_allocation:
            offsets = dict(zip(local, arena.offsets, strict=True))
            plans[number] = WorkspacePlan(number, arena, offsets)
    return plans


class Workspaces:
    """The workspaces of a session. Free ones are kept; a larger one replaces free ones that are too small."""

    def __init__(self, slots: Sequence[BoundSlot]) -> None:
        self._slots = slots
        self._all: list[Workspace] = []
        self._lock = threading.Lock()

    def acquire(self, plan: WorkspacePlan, into: dict[int, Workspace]) -> None:
        """Put the smallest free workspace that is large enough, or a new one, ``into`` the caller's record by
        device slot; raises OutOfMemoryError."""
        with self._lock:
            best: Workspace | None = None
            for each in self._all:
                fits = each.user is None and each.slot == plan.slot and each.buffer.size >= plan.arena.size
                if fits and (best is None or each.buffer.size < best.buffer.size):
                    best = each
            if best is not None:
                into[plan.slot] = best
                best.user = into
                return
        uninterrupted(lambda: self._add(plan, into))

    def _add(self, plan: WorkspacePlan, into: dict[int, Workspace]) -> None:
        with self._lock:
            workspace = self._allocate(plan)
            workspace.user = into
            self._all += [workspace]
            into[plan.slot] = workspace

    def release(self, held: dict[int, Workspace]) -> None:
        """Return the workspaces that `acquire` put in a record. Can be called again after an interrupt."""
        for slot in tuple(held):
            if held[slot].user is held:
                held[slot].user = None
            del held[slot]

    def all(self) -> list[Workspace]:
        """Every workspace, in use or free."""
        return list(self._all)

    def close(self) -> None:
        """Free the workspaces that are not in use."""
        with self._lock:
            self._drop([workspace for workspace in self._all if workspace.user is None])

    def _allocate(self, plan: WorkspacePlan) -> Workspace:
        # The free ones are too small for this plan; the new one serves smaller plans as well.
        self._drop_free(plan.slot)
        try:
            return self._new(plan)
        except OutOfMemoryError:
            for slot in range(len(self._slots)):
                self._drop_free(slot)
        return self._new(plan)

    def _new(self, plan: WorkspacePlan) -> Workspace:
        buffer = self._slots[plan.slot].device.allocate(plan.arena.size, MemoryKind.DEVICE, ACTIVATIONS)
        return Workspace(plan.slot, buffer, buffer.view())

    def _drop_free(self, slot: int) -> None:
        self._drop([w for w in self._all if w.slot == slot and w.user is None])

    def _drop(self, workspaces: Sequence[Workspace]) -> None:
        self._all = [workspace for workspace in self._all if workspace not in workspaces]
        for workspace in workspaces:
            workspace.buffer.close()
