"""Weights on devices: in place where the device can use the host's memory, else uploaded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.artifact.resources import FileResources, Resources, WeightBlock
from mansard.artifact.weights import weight_bytes
from mansard.errors import DeviceError, OutOfMemoryError
from mansard.hal import (
    Buffer,
    BufferRef,
    CopyCommand,
    Device,
    MemoryKind,
    Point,
    QueueKind,
    Semaphore,
    Submission,
)
from mansard.plan.arena import ALIGNMENT
from mansard.plan.layout import Layout, Links
from mansard.plan.plan import Plan, WeightSpec
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.memory.host_copy import HostCopy, copy_all

STAGING_BYTES = 32 << 20
# Kernels count on no more than the alignment of an element; NumPy gives 16 to every array.
WEIGHT_ALIGNMENT = 16

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ConstantRow:
    """One range of memory with weights, for the memory ledger."""

    slot: int
    bytes: int
    kind: str
    """mapped (the host's own memory), uploaded, or shared (memory that another device's row counts)."""
    how: str
    """Where the memory lies, and how the device reaches it."""


class Constants:
    """The weights of a session: (slot, weight number) to the buffer and offset kernels read."""

    def __init__(
        self, plan: Plan, layout: Layout, slots: Sequence[BoundSlot], links: Links, resources: Resources
    ) -> None:
        self.rows: list[ConstantRow] = []
        self.uploaded_bytes = 0
        self._places: dict[tuple[int, int], tuple[Buffer, int]] = {}
        self._buffers: list[Buffer] = []
        self._slots, self._links, self._resources = slots, links, resources
        self._weights = plan.weights
        self._mapped: set[str] = set()
        wanted: dict[int, dict[int, WeightSpec]] = {}
        for store in layout.stores:
            if store.role == "constant":
                wanted.setdefault(store.home, {})[store.source] = plan.weights[store.source]
        # Devices that may need copies come first: those that share their memory then use these copies.
        for slot in sorted(wanted, key=lambda s: slots[s].device.capabilities.late_binding):
            self._place(slot, wanted[slot])

    def place(self, slot: int, weight: int) -> tuple[Buffer, int]:
        """Where a slot's kernels read a weight."""
        return self._places[slot, weight]

    def read(self, weight: int) -> Bytes:
        """The host's bytes of a weight."""
        return self._resources.load(self._weights[weight])

    def close(self) -> None:
        """Free the copies and let go of the host's memory."""
        for buffer in reversed(self._buffers):
            buffer.close()
        self._buffers, self._places = [], {}

    def _place(self, slot: int, wanted: dict[int, WeightSpec]) -> None:
        rest = {n: spec for n, spec in wanted.items() if not self._borrow(slot, n, spec)}
        numbers = {spec.entry: number for number, spec in rest.items()}
        left: dict[int, WeightSpec] = {}
        for block in self._resources.blocks(list(rest.values())):
            sizes = {entry: weight_bytes(rest[numbers[entry]]) for entry in block.offsets}
            for window, first in self._windows(slot, block, sizes):
                buffer = self._import(slot, window, {entry: sizes[entry] for entry in window.offsets})
                for entry, offset in window.offsets.items():
                    if buffer is None:
                        left[numbers[entry]] = rest[numbers[entry]]
                    else:
                        self._places[slot, numbers[entry]] = (buffer, offset - first)
        for group in self._groups(slot, left):
            self._upload(slot, group)

    def _borrow(self, slot: int, number: int, spec: WeightSpec) -> bool:
        """Use the copy of a device whose memory this one shares, if there is one."""
        for other in range(len(self._slots)):
            place = self._places.get((other, number))
            if place is None or place[0].kind is not MemoryKind.SHARED or not self._links.reach[other][slot]:
                continue
            if not (self._links.unified[slot] and self._links.unified[other]):
                continue
            if self._slots[other].device is self._slots[slot].device:
                self._places[slot, number] = place
                return True
            if not any(row.slot == other and row.kind == "uploaded" for row in self.rows):
                continue  # the host's own memory: better imported directly
            imported = self._slots[slot].device.import_buffer(place[0], f"weight {spec.entry}")
            if imported is not None:
                self._buffers.append(imported)
                self._places[slot, number] = (imported, place[1])
                how = f"{self._slots[other].memory(MemoryKind.SHARED)}, imported"
                self.rows.append(ConstantRow(slot, weight_bytes(spec), "shared", how))
                return True
        return False

    def _windows(
        self, slot: int, block: WeightBlock, sizes: Mapping[str, int]
    ) -> list[tuple[WeightBlock, int]]:
        """A block in pieces that the device can use in place, each with the byte at which it starts.

        The whole block where one buffer may be as large; else pieces of whole weights, from one multiple
        of the alignment of imported memory to another.
        """
        capabilities = self._slots[slot].device.capabilities
        limit, alignment = capabilities.max_allocation, capabilities.import_alignment
        if block.data.size <= limit:
            return [(block, 0)]
        pieces: list[tuple[int, int, dict[str, int]]] = []
        for entry, offset in sorted(block.offsets.items(), key=lambda item: item[1]):
            start = offset // alignment * alignment
            end = min(-(-(offset + sizes[entry]) // alignment) * alignment, block.data.size)
            if pieces and end - pieces[-1][0] <= limit:
                start, _, held = pieces.pop()
                pieces.append((start, end, {**held, entry: offset}))
            else:
                pieces.append((start, end, {entry: offset}))
        return [(WeightBlock(block.data[start:end], held), start) for start, end, held in pieces]

    def _import(self, slot: int, block: WeightBlock, sizes: Mapping[str, int]) -> Buffer | None:
        """The block as a buffer of the slot's device, which reads so many bytes of its entries; None if it
        cannot."""
        device = self._slots[slot].device
        capabilities = device.capabilities
        if not (capabilities.import_host and capabilities.unified_memory) or block.data.size == 0:
            return None
        alignment = max(capabilities.import_alignment, WEIGHT_ALIGNMENT)
        size = block.data.size
        if block.data.ctypes.data % alignment or size % capabilities.import_alignment:
            return None
        try:
            buffer = device.import_host(block.data, "weights")
        except DeviceError:
            return None  # a driver may refuse some memory; a copy always works
        self._buffers.append(buffer)
        place = "mapped file" if isinstance(self._resources, FileResources) else "memory of the frontend"
        how = place if capabilities.late_binding else f"{place}, imported"
        fresh = sum(size for entry, size in sizes.items() if entry not in self._mapped)
        for kind, used in (("mapped", fresh), ("shared", sum(sizes.values()) - fresh)):
            if used:
                self.rows.append(ConstantRow(slot, used, kind, how))
        self._mapped.update(sizes)
        return buffer

    def _groups(self, slot: int, weights: dict[int, WeightSpec]) -> list[dict[int, WeightSpec]]:
        """Weights that go into one allocation, within the device's limit."""
        limit = self._slots[slot].device.capabilities.max_allocation
        for spec in weights.values():
            if weight_bytes(spec) > limit:
                raise OutOfMemoryError(
                    f"weight {spec.entry!r} ({spec.source}) has {weight_bytes(spec)} bytes, and a buffer of "
                    f"{self._slots[slot].name} holds {limit}: compile it for this device, or for the bare "
                    "driver name, and it is split over several"
                )
        groups: list[dict[int, WeightSpec]] = []
        filled = limit + 1
        for number, spec in weights.items():
            size = -(-weight_bytes(spec) // ALIGNMENT) * ALIGNMENT
            if filled + size > limit:
                groups.append({})
                filled = 0
            groups[-1][number] = spec
            filled += size
        return groups

    def _upload(self, slot: int, weights: dict[int, WeightSpec]) -> None:
        device, total = self._slots[slot].device, 0
        offsets = {}
        for number, spec in weights.items():
            offsets[number] = total
            total += -(-weight_bytes(spec) // ALIGNMENT) * ALIGNMENT
        kind = MemoryKind.SHARED if device.capabilities.unified_memory else MemoryKind.DEVICE
        buffer = device.allocate(max(total, ALIGNMENT), kind, "weights")
        self._buffers.append(buffer)
        parts = [(offsets[n], self._resources.load(spec)) for n, spec in weights.items()]
        upload(device, buffer, parts, 0, total)
        self.uploaded_bytes += total
        self.rows.append(ConstantRow(slot, total, "uploaded", self._slots[slot].memory(kind)))
        for number, offset in offsets.items():
            self._places[slot, number] = (buffer, offset)


def upload(
    device: Device, target: Buffer, parts: Sequence[tuple[int, Bytes]], first: int, total: int
) -> None:
    """Copy host bytes to their offsets in a buffer, all within ``first`` to ``first + total``.

    A buffer the host cannot see is filled by the device, through two staging buffers. Blocks.
    """
    if total == 0:
        return
    if target.host_pointer is not None:
        _fill(target.view(), parts, 0, target.size)
        return
    size = min(STAGING_BYTES, total)
    loans = [device.pool.alloca(size, MemoryKind.SHARED, "staging") for _ in range(2)]
    for point in (point for loan in loans for point in loan.wait):
        point.wait()  # the host writes first
    staging = [loan.buffer for loan in loans]
    semaphore = Semaphore("weights upload")
    recorded = []
    for count, start in enumerate(range(first, first + total, size)):
        if count >= 2:
            Point(semaphore, count - 1).wait()  # the copy that last used this half is done
        half, end = staging[count % 2], min(start + size, first + total)
        _fill(half.view(), parts, start, end)
        copy = CopyCommand(BufferRef(half), BufferRef(target, start), end - start, "weights")
        commands = device.record([copy], queue=QueueKind.TRANSFER)
        recorded.append(commands)
        before = (Point(semaphore, count),) if count else ()
        device.submit([Submission(commands, before, (Point(semaphore, count + 1),))])
    Point(semaphore, len(recorded)).wait()
    for commands in recorded:
        commands.close()
    for half in staging:
        device.pool.dealloca(half)


def _fill(view: Bytes, parts: Sequence[tuple[int, Bytes]], start: int, end: int) -> None:
    """Put what parts hold of the range ``start`` to ``end`` into a view of that range."""
    copies = []
    for offset, data in parts:
        low, high = max(offset, start), min(offset + data.size, end)
        if low < high:
            copies.append(HostCopy(data[low - offset : high - offset], view[low - start : high - start]))
    copy_all(copies)
