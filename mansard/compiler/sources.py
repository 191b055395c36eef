"""What kernels were made from, kept in the artifact so that `mansard tune` can make them again."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mansard.arguments import shown
from mansard.codegen.parameters import Parameters
from mansard.compiler.identity import dispatch_from_data
from mansard.errors import ArtifactError, CompileError, ShapeContractError
from mansard.ir.dispatch import Dispatch
from mansard.ir.panels import Panels

_LARGEST = 256 << 20
"""Bytes of sources that are read; a model has some kilobytes."""


_UNREADABLE = (
    *(zlib.error, ValueError, LookupError, TypeError, AttributeError, ArithmeticError),
    *(RecursionError, MemoryError, CompileError, ShapeContractError),
)
"""What reading data that is no source may raise."""


@dataclass(frozen=True)
class KernelSource:
    """A kernel of a device slot: its dispatch (as `dispatch_key` writes it), the schedule parameters it
    was made with, and the layout it wants of packed inputs (by position)."""

    device: int
    name: str
    source: str
    parameters: Parameters | None = None
    packed: Mapping[int, Panels] = field(default_factory=dict)

    def dispatch(self) -> Dispatch:
        """The dispatch, under a name from which the kernel's is made; raises ArtifactError for a source that
        is none."""
        try:
            return dispatch_from_data(json.loads(self.source), self.name.rpartition("_")[0] or self.name)
        except _UNREADABLE as error:
            raise ArtifactError(
                f"the source of {shown(self.name)} is no dispatch: {str(error)[:200]}"
            ) from error


def sources_to_bytes(sources: Sequence[KernelSource]) -> bytes:
    """Sources in the form that an artifact holds: deflated JSON."""
    rows = [
        {
            "device": s.device,
            "name": s.name,
            "dispatch": json.loads(s.source),
            "parameters": None if s.parameters is None else s.parameters.to_dict(),
            "packed": panels_to_data(s.packed),
        }
        for s in sources
    ]
    return zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 9)


def sources_from_bytes(data: bytes) -> list[KernelSource]:
    """The opposite of `sources_to_bytes`. Raises ArtifactError for anything else."""
    try:
        text = zlib.decompressobj().decompress(data, _LARGEST)
        rows = json.loads(text)
        if not isinstance(rows, list):
            raise TypeError(f"a {type(rows).__name__} where a list belongs")
        return [_source(row) for row in rows]
    except _UNREADABLE as error:
        raise ArtifactError(f"the kernels' sources cannot be read: {str(error)[:200]}") from error


def panels_to_data(packed: Mapping[int, Panels]) -> dict[str, Any]:
    """Layouts by input as plain data."""
    return {str(place): dataclasses.asdict(panels) for place, panels in packed.items()}


def panels_from_data(data: Mapping[str, Any]) -> dict[int, Panels]:
    """The opposite of `panels_to_data`."""
    return {
        int(place): Panels(**{name: _tuples(value) for name, value in fields.items()})
        for place, fields in data.items()
    }


def _source(row: Mapping[str, Any]) -> KernelSource:
    parameters = row["parameters"]
    return KernelSource(
        int(row["device"]),
        str(row["name"]),
        json.dumps(row["dispatch"], separators=(",", ":")),
        None if parameters is None else Parameters.from_mapping({k: int(v) for k, v in parameters.items()}),
        panels_from_data(row["packed"]),
    )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
