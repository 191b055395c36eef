"""Weights on devices: used in place where the device can import host memory, else uploaded once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mansard.artifact.resources import Resources, WeightBlock
from mansard.artifact.weights import weight_bytes
from mansard.errors import DeviceError, OutOfMemoryError
from mansard.hal import Buffer, Device, MemoryKind
from mansard.plan.arena import ALIGNMENT
from mansard.plan.plan import Plan, WeightSpec
from mansard.plan.stores import Layout, Links
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.memory.host_copy import Bytes
from mansard.runtime.memory.upload import upload


@dataclass(frozen=True)
class ConstantRow:
    """A range of memory that holds weights, for the memory ledger."""

    slot: int
    bytes: int
    kind: str
    """mapped (host memory used in place), uploaded, or shared (memory counted by another device's row)."""
    how: str
    """Where the memory lies, and how the device reaches it."""


class Constants:
    """The weights of a session: by slot and weight number, the buffer and offset that kernels read."""

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        slots: Sequence[BoundSlot],
        links: Links,
        resources: Resources,
        shared: Constants | None = None,
    ) -> None:
        self.rows: list[ConstantRow] = []
        self.uploaded_bytes = 0
        self._places: dict[tuple[int, int], tuple[Buffer, int]] = {}
        self._buffers: list[Buffer] = []
        self._slots, self._links, self._resources = slots, links, resources
        self._weights = plan.weights
        self._others: list[Constants] = [] if shared is None else shared._others
        """Those of all sessions that share theirs, in the order in which they were opened."""
        self._mapped: set[str] = set()
        by_slot: dict[int, dict[int, WeightSpec]] = {}
        for store in layout.stores:
            if store.role == "constant":
                by_slot.setdefault(store.home, {})[store.source] = plan.weights[store.source]
        # Devices that may need uploads come first, so that devices sharing their memory can use the copies.
        for slot in sorted(by_slot, key=lambda s: slots[s].device.capabilities.late_binding):
            self._place(slot, by_slot[slot])
        self._others.append(self)

    def find(self, device: Device, entry: str) -> tuple[Buffer, int] | None:
        """Where kernels of a device read the weight of an entry; None where the device does not have it."""
        for (slot, number), place in self._places.items():
            if self._slots[slot].device is device and self._weights[number].entry == entry:
                return place
        return None

    def place(self, slot: int, weight: int) -> tuple[Buffer, int]:
        """Where a slot's kernels read a weight."""
        return self._places[slot, weight]

    def read(self, weight: int) -> Bytes:
        """The host's bytes of a weight."""
        return self._resources.load(self._weights[weight])

    def check_unchanged(self) -> None:
        """Raise ArtifactError if the file that weights are mapped from was written to."""
        self._resources.check_unchanged()

    def close(self) -> None:
        """Free the uploads and close the imported buffers."""
        for buffer in reversed(self._buffers):
            buffer.close()
        self._buffers, self._places = [], {}

    def _place(self, slot: int, weights: dict[int, WeightSpec]) -> None:
        """Give a slot its weights: by sharing, else by importing, else by uploading them."""
        first_of: dict[str, int] = {}
        for number, spec in weights.items():
            first_of.setdefault(spec.entry, number)
        once: dict[int, WeightSpec] = {}
        for entry, number in first_of.items():
            device = self._slots[slot].device
            places = (other.find(device, entry) for other in self._others)
            place = next(filter(None, places), None)
            if place is None:
                once[number] = weights[number]
            else:
                self._places[slot, number] = place
        self._place_once(slot, once)
        for number, spec in weights.items():
            self._places[slot, number] = self._places[slot, first_of[spec.entry]]

    def _place_once(self, slot: int, weights: dict[int, WeightSpec]) -> None:
        """Give a slot weights of which no two are the same entry."""
        unshared = {n: spec for n, spec in weights.items() if not self._share(slot, n, spec)}
        numbers = {spec.entry: number for number, spec in unshared.items()}
        capabilities = self._slots[slot].device.capabilities
        importable = (
            list(unshared.values()) if capabilities.import_host and capabilities.unified_memory else []
        )
        for block in self._resources.blocks(importable):
            sizes = {entry: weight_bytes(unshared[numbers[entry]]) for entry in block.offsets}
            for window, first in self._windows(slot, block, sizes):
                specs = [unshared[numbers[entry]] for entry in window.offsets]
                buffer = self._import(slot, window, specs)
                if buffer is not None:
                    for entry, offset in window.offsets.items():
                        self._places[slot, numbers[entry]] = (buffer, offset - first)
        uploads = {n: spec for n, spec in unshared.items() if (slot, n) not in self._places}
        for group in self._groups(slot, uploads):
            self._upload(slot, group)

    def _share(self, slot: int, number: int, spec: WeightSpec) -> bool:
        """Use the upload of a device whose memory this slot's device shares; False if there is none."""
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
                continue  # host memory, which is better imported directly
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
        """Ranges of a block that the device can import, each with its first byte.

        The whole block where a buffer may be as large; otherwise ranges of whole weights, aligned as imported
        memory has to be.
        """
        capabilities = self._slots[slot].device.capabilities
        limit, alignment = capabilities.max_allocation, capabilities.import_alignment
        if block.data.size <= limit:
            return [(block, 0)]
        ranges: list[tuple[int, int, dict[str, int]]] = []
        for entry, offset in sorted(block.offsets.items(), key=lambda item: item[1]):
            start = offset // alignment * alignment
            end = min(-(-(offset + sizes[entry]) // alignment) * alignment, block.data.size)
            if ranges and end - ranges[-1][0] <= limit:
                start, _, offsets = ranges.pop()
                ranges.append((start, end, {**offsets, entry: offset}))
            else:
                ranges.append((start, end, {entry: offset}))
        return [(WeightBlock(block.data[start:end], offsets), start) for start, end, offsets in ranges]

    def _import(self, slot: int, block: WeightBlock, specs: Sequence[WeightSpec]) -> Buffer | None:
        """Import the block, of which the slot reads these weights; None if the device cannot.

        Kernels of devices that take any memory assume no more than the alignment of an element.
        """
        device = self._slots[slot].device
        capabilities = device.capabilities
        if block.data.size == 0:
            return None
        alignment = max(capabilities.import_alignment, *(-(-spec.dtype.bits // 8) for spec in specs))
        size = block.data.size
        if block.data.ctypes.data % alignment or size % capabilities.import_alignment:
            return None
        if size > capabilities.max_allocation:
            return None  # one weight larger than a buffer may be
        try:
            buffer = device.import_host(block.data, "weights")
        except DeviceError:
            return None  # a driver may refuse some memory; an upload always works
        self._buffers.append(buffer)
        place = self._resources.place
        how = place if capabilities.late_binding else f"{place}, imported"
        sizes = {spec.entry: weight_bytes(spec) for spec in specs}
        fresh = sum(size for entry, size in sizes.items() if entry not in self._mapped)
        for kind, used in (("mapped", fresh), ("shared", sum(sizes.values()) - fresh)):
            if used:
                self.rows.append(ConstantRow(slot, used, kind, how))
        self._mapped.update(sizes)
        return buffer

    def _parts(
        self, weights: Mapping[int, WeightSpec], offsets: Mapping[int, int]
    ) -> Iterator[tuple[int, Bytes]]:
        """The bytes of weights with their places, in order of these; each is made when it is asked for."""
        for number, spec in weights.items():
            at = offsets[number]
            for piece in self._resources.pieces(spec):
                yield at, piece
                at += piece.size

    def _groups(self, slot: int, weights: dict[int, WeightSpec]) -> list[dict[int, WeightSpec]]:
        """The weights to upload in groups of one allocation each, within the device's limit."""
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
        upload(device, buffer, self._parts(weights, offsets))
        self.uploaded_bytes += total
        self.rows.append(ConstantRow(slot, total, "uploaded", self._slots[slot].memory(kind)))
        for number, offset in offsets.items():
            self._places[slot, number] = (buffer, offset)
