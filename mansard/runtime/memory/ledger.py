"""The memory ledger: the memory that a session holds, by use and device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, overload

from mansard.plan.memory_uses import ACTIVATIONS, USES, WEIGHTS

CALLER = "caller's arrays"
"""The kind of inputs and outputs that kernels access in the caller's memory: the model holds nothing."""
SWAPPED = "swapped"
"""The kind of programs that take turns in an area of a device's memory, which has a row of its own."""


@dataclass(frozen=True)
class MemoryRow:
    """One use of memory by one device.

    ``what`` is one of

    - weights: ``kind`` is mapped (read in place from the artifact's file or the frontend's memory), uploaded
      (a copy in device memory) or shared (another device's copy);
    - states: buffers that live across calls;
    - activations: the arena of one context, in which values with disjoint live ranges share memory;
      ``lower_bound`` is the peak of live bytes over all steps, below which no arena can be;
    - scratch: argument tables and command lists of the recordings (CPU kernels have their scratch memory
      on the threads' stacks);
    - inputs, outputs: memory of the context that the host fills and reads, or the caller's arrays, which
      the model does not hold;
    - staging: memory through which inputs, outputs and transfers are copied;
    - code: machine code or shaders; with the programs of an NPU their weights. ``executables`` are always
      loaded; ``swapped`` ones take turns in the device's ``area of programs``, and lie in the artifact's
      file.

    For allocated memory, ``kind`` is device or shared (host-visible), and ``device`` is the one that
    allocated it. ``users`` are the devices whose commands access the allocation. ``how`` is where it lies
    (host memory, device memory or host-visible device memory) and by which devices it is ``imported``.
    """

    what: str
    device: str
    kind: str
    bytes: int
    lower_bound: int | None = None
    users: tuple[str, ...] = ()
    how: str = ""

    @property
    def held(self) -> bool:
        """Whether the model holds this memory: not the caller's arrays, shared weights nor swapped
        programs."""
        return self.kind not in (CALLER, SWAPPED) and not (self.what == WEIGHTS and self.kind == "shared")


class MemoryLedger(Sequence[MemoryRow]):
    """The rows of the ledger, with totals. ``str()`` gives a table.

    Weights that several devices share are counted for the first of them.
    """

    def __init__(self, rows: Sequence[MemoryRow]) -> None:
        self.rows = tuple(rows)

    @overload
    def __getitem__(self, index: int) -> MemoryRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[MemoryRow, ...]: ...
    def __getitem__(self, index: int | slice) -> MemoryRow | tuple[MemoryRow, ...]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[MemoryRow]:
        return iter(self.rows)

    @property
    def total(self) -> int:
        """Bytes that the model holds on all devices."""
        return sum(row.bytes for row in self.rows if row.held)

    @property
    def totals(self) -> dict[str, int]:
        """Bytes held by use; every use has an entry."""
        return {use: sum(r.bytes for r in self.rows if r.held and r.what == use) for use in USES}

    @property
    def devices(self) -> dict[str, dict[str, int]]:
        """Bytes held by device and use; uses of no bytes are left out."""
        by_device: dict[str, dict[str, int]] = {}
        for row in self.rows:
            uses = by_device.setdefault(row.device, {})
            if row.held and row.bytes:
                uses[row.what] = uses.get(row.what, 0) + row.bytes
        return by_device

    @property
    def lower_bound(self) -> int:
        """The sum of the lower bounds of all activations."""
        return sum(row.lower_bound or 0 for row in self.rows)

    def summary(self) -> str:
        """One line: ``cpu: 14.0 MB weights, 9.7 MB activations (lower bound 9.7 MB), ...; total 24.1 MB``."""
        parts = []
        for device, uses in self.devices.items():
            bound = sum(row.lower_bound or 0 for row in self.rows if row.device == device)
            texts = [
                f"{_size(size)} {what}" + (f" (lower bound {_size(bound)})" if what == ACTIVATIONS else "")
                for what, size in uses.items()
            ]
            parts.append(f"{device}: {', '.join(texts) or 'nothing'}")
        return "; ".join([*parts, f"total {_size(self.total)}"])

    def to_json(self) -> dict[str, Any]:
        """The ledger as plain data: ``rows``, ``totals`` by use, ``devices`` by name and use, ``total``."""
        return {
            "rows": [{**asdict(row), "users": list(row.users)} for row in self.rows],
            "totals": self.totals,
            "devices": self.devices,
            "lower_bound": self.lower_bound,
            "total": self.total,
        }

    def __str__(self) -> str:
        cells = [("what", "device", "kind", "size", "lower bound", "used by", "where")]
        for row in self.rows:
            bound = "" if row.lower_bound is None else _size(row.lower_bound)
            users = ", ".join(row.users or (row.device,))
            cells.append((row.what, row.device, row.kind, _size(row.bytes), bound, users, row.how))
        widths = [max(len(row[column]) for row in cells) for column in range(7)]
        lines = ["  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        return "\n".join([*lines, self.summary()])


def merge_rows(rows: Sequence[MemoryRow]) -> list[MemoryRow]:
    """Merge rows that differ only in their bytes."""
    totals: dict[MemoryRow, int] = {}
    for row in rows:
        key = replace(row, bytes=0)
        totals[key] = totals.get(key, 0) + row.bytes
    return [replace(row, bytes=size) for row, size in totals.items()]


def _size(count: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"
