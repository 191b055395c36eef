"""Tables of a flatbuffer, read in place and with every bound checked.

A file may be damaged or hostile. Every offset is compared with the file's length, and the work spent on
structure is limited by it: vectors that overlap cannot make a small file expensive to read.
"""

from __future__ import annotations

import functools
import re
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.errors import ImportModelError
from mansard.frontends.tflite.schema import OPTION_TABLES, STRUCTURE

_SCALARS = {
    "bool": "<?", "i8": "<b", "u8": "<B", "i16": "<h", "u16": "<H", "i32": "<i", "u32": "<I",
    "i64": "<q", "u64": "<Q", "f32": "<f",
}  # fmt: skip
_ARRAYS = {"bool": "u1", "i8": "i1", "u8": "u1", "u16": "<u2", "i32": "<i4", "i64": "<i8", "f32": "<f4"}
_WORK = 16
"""Elements of structure that are read at most, per byte of the file."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Field:
    slot: int
    kind: str
    default: float


@functools.cache
def _tables() -> dict[str, dict[str, _Field]]:
    """The fields of every table, by name."""
    tables = {}
    for entry in re.split(r"\n(?! )", (STRUCTURE + OPTION_TABLES).strip()):
        name, _, fields = entry.partition(":")
        if not name:
            continue
        declared = {}
        for slot, field in enumerate(fields.split()):
            key, _, kind = field.partition(":")
            kind, _, default = kind.partition("=")
            declared[key] = _Field(slot, kind, float(default or 0))
        tables[name] = declared
    return tables


def is_declared(table: str) -> bool:
    """Whether the schema here has fields for a table."""
    return table in _tables()


class File:
    """The bytes of a flatbuffer."""

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self._view = memoryview(data)  # type: ignore[arg-type]
        self._work = _WORK * len(data) + 4096

    def root(self, table: str) -> Table:
        """The root table."""
        return Table(self, self.follow(0), table)

    def scalar(self, position: int, kind: str) -> Any:
        """A number at a position."""
        layout = _SCALARS[kind]
        if not 0 <= position <= len(self.data) - struct.calcsize(layout):
            raise self.damage(position)
        return struct.unpack_from(layout, self._view, position)[0]

    def follow(self, position: int) -> int:
        """Where the offset at a position leads."""
        return position + int(self.scalar(position, "u32"))

    def vector(self, position: int, width: int) -> tuple[int, int]:
        """The first element and the length of a vector whose offset is at a position."""
        start = self.follow(position)
        count = int(self.scalar(start, "u32"))
        if start + 4 + count * width > len(self.data):
            raise self.damage(start)
        return start + 4, count

    def spend(self, work: int) -> None:
        """Count elements of structure. Raises ImportModelError when there are too many for the file."""
        self._work -= work + 1
        if self._work < 0:
            raise ImportModelError("the .tflite file is damaged: its tables overlap")

    def damage(self, position: int) -> ImportModelError:
        """The error for an offset that leads out of the file."""
        return ImportModelError(
            f"the .tflite file is damaged: byte {position} is referred to, of {len(self.data)} bytes"
        )


class Table:
    """A table: its fields by name, with the schema's default for those that are not stored."""

    def __init__(self, file: File, position: int, name: str) -> None:
        self.file, self.name = file, name
        self._position = position
        self._fields = _tables()[name]
        file.spend(0)
        self._slots = position - int(file.scalar(position, "i32"))
        self._count = (int(file.scalar(self._slots, "u16")) - 4) // 2

    def _place(self, name: str) -> int | None:
        """The position of a field, or None where it is not stored."""
        if name not in self._fields:
            raise ImportModelError(f"the .tflite file is damaged: {self.name} has no field {name!r}")
        slot = self._fields[name].slot
        if slot >= self._count:
            return None
        offset = int(self.file.scalar(self._slots + 4 + 2 * slot, "u16"))
        return self._position + offset if offset else None

    def _number(self, name: str) -> Any:
        place = self._place(name)
        field = self._fields[name]
        return field.default if place is None else self.file.scalar(place, field.kind)

    def integer(self, name: str) -> int:
        """An integer field."""
        return int(self._number(name))

    def real(self, name: str) -> float:
        """A float field."""
        return float(self._number(name))

    def flag(self, name: str) -> bool:
        """A bool field."""
        return bool(self._number(name))

    def text(self, name: str) -> str:
        """A string field; without valid UTF-8, with replacement characters."""
        place = self._place(name)
        if place is None:
            return ""
        start, count = self.file.vector(place, 1)
        self.file.spend(count)
        return self.file.data[start : start + count].tobytes().decode("utf-8", "replace")

    def table(self, name: str) -> Table | None:
        """A table field."""
        place = self._place(name)
        return None if place is None else self._at(place, self._fields[name].kind.removeprefix("@"))

    def union(self, name: str, table: str) -> Table | None:
        """A union field, whose table is known."""
        place = self._place(name)
        return None if place is None else self._at(place, table)

    def tables(self, name: str) -> list[Table]:
        """A vector of tables."""
        place = self._place(name)
        if place is None:
            return []
        start, count = self.file.vector(place, 4)
        self.file.spend(count)
        element = self._fields[name].kind.strip("[@]")
        return [self._at(start + 4 * i, element) for i in range(count)]

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """A vector of numbers, copied."""
        values = self.mapped(name)
        self.file.spend(values.size)
        return values.copy()

    def mapped(self, name: str) -> npt.NDArray[Any]:
        """A vector of numbers, in the file."""
        place = self._place(name)
        dtype = np.dtype(_ARRAYS[self._fields[name].kind.strip("[]")])
        if place is None:
            return np.empty(0, dtype)
        start, count = self.file.vector(place, dtype.itemsize)
        return self.file.data[start : start + count * dtype.itemsize].view(dtype)

    def integers(self, name: str) -> list[int]:
        """A vector of integers."""
        return [int(i) for i in self.numbers(name)]

    def _at(self, place: int, table: str) -> Table:
        return Table(self.file, self.file.follow(place), table)
