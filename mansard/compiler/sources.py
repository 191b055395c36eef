"""What kernels were made from, kept in the artifact so that `mansard tune` can make them again."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mansard.codegen.parameters import Parameters
from mansard.compiler.identity import dispatch_from_data
from mansard.errors import ArtifactError
from mansard.ir.dispatch import Dispatch
from mansard.ir.panels import Panels

_LARGEST = 256 << 20
"""Bytes of sources that are read; a model has some kilobytes."""


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
        """The dispatch, under a name from which the kernel's is made."""
        return dispatch_from_data(json.loads(self.source), self.name.rpartition("_")[0] or self.name)


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
        return [_source(row) for row in json.loads(text)]
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"the kernels' sources cannot be read: {error!r}") from error


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
