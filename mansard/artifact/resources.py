"""What a plan refers to: executables and weights, from a file or from memory."""

from __future__ import annotations

import abc
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mansard.artifact import weights as weight_file
from mansard.artifact.container import Container
from mansard.artifact.weights import Bytes, Load
from mansard.errors import ArtifactError
from mansard.plan.check import check_plan
from mansard.plan.plan import Plan, WeightSpec
from mansard.plan.serialise import plan_from_json, plan_to_json

PLAN_ENTRY = "plan.json"
WEIGHTS_ENTRY = "weights.safetensors"
SOURCES_ENTRY = "kernels/sources.json.z"

Verify = Literal["full", "code"] | bool
"""What is checked against its hash: "full" or True, everything; "code" or False, all but the weights."""
Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


@dataclass(frozen=True)
class WeightBlock:
    """One range of host memory that holds weights: ``offsets`` maps an entry name to its first byte."""

    data: Bytes
    offsets: Mapping[str, int]


class Resources(abc.ABC):
    """Executables by entry name, and weights in blocks."""

    @abc.abstractmethod
    def code(self, entry: str) -> bytes | memoryview:
        """The blob of an executable; raises ArtifactError when it is missing."""

    @abc.abstractmethod
    def blocks(self, wanted: Sequence[WeightSpec]) -> list[WeightBlock]:
        """Blocks that together hold the wanted weights, each of them once."""

    @abc.abstractmethod
    def load(self, spec: WeightSpec) -> Bytes:
        """The bytes of one weight."""

    def settle(self) -> None:  # noqa: B027  # memory resources have nothing to let go of
        """Executables are loaded: let go of pages that were only needed for that."""

    def sources(self) -> bytes | None:
        """What the kernels were made from, in the compiler's form; None when it was not kept."""
        return None

    def close(self) -> None:  # noqa: B027  # memory resources hold nothing to close
        """Drop what the resources hold; buffers that still use it keep it alive."""


class MemoryResources(Resources):
    """What the compiler hands over, without a file."""

    def __init__(
        self,
        executables: Mapping[str, bytes],
        weights: Sequence[tuple[WeightSpec, Load]],
        sources: bytes | None = None,
    ) -> None:
        self._executables = dict(executables)
        self._sources = sources
        self._loads = {spec.entry: load for spec, load in weights}

    def code(self, entry: str) -> bytes | memoryview:
        """The blob of an executable."""
        if entry not in self._executables:
            raise ArtifactError(f"the model lacks the executable {entry!r}")
        return self._executables[entry]

    def blocks(self, wanted: Sequence[WeightSpec]) -> list[WeightBlock]:
        """One block per weight: the memory the frontend gave, where it is contiguous."""
        return [WeightBlock(self.load(spec), {spec.entry: 0}) for spec in wanted]

    def load(self, spec: WeightSpec) -> Bytes:
        """The bytes of one weight."""
        if spec.entry not in self._loads:
            raise ArtifactError(f"the model lacks the weight {spec.entry!r} ({spec.source})")
        return weight_file.storage(spec, self._loads[spec.entry]())

    def sources(self) -> bytes | None:
        """What the compiler handed over."""
        return self._sources


class FileResources(Resources):
    """What an artifact file holds, mapped."""

    def __init__(self, container: Container) -> None:
        self._container: Container | None = container
        self._data: Bytes | None = None
        self._offsets: dict[str, tuple[int, int]] = {}
        if WEIGHTS_ENTRY in container.names:
            entry = container.entry(WEIGHTS_ENTRY)
            start, self._offsets = weight_file.parse_header(entry)
            self._data = entry[start:]

    def code(self, entry: str) -> bytes | memoryview:
        """The blob of an executable, mapped from the file."""
        if self._container is None:
            raise ArtifactError("the artifact is closed")
        return self._container.entry(entry).data.toreadonly()

    def blocks(self, wanted: Sequence[WeightSpec]) -> list[WeightBlock]:
        """The data part of the weights entry as one block."""
        if not wanted:
            return []
        for spec in wanted:
            self.load(spec)
        assert self._data is not None  # load() found the weights in it
        return [WeightBlock(self._data, {spec.entry: self._offsets[spec.entry][0] for spec in wanted})]

    def load(self, spec: WeightSpec) -> Bytes:
        """The bytes of one weight, mapped from the file."""
        if self._container is None:
            raise ArtifactError("the artifact is closed")
        span = self._offsets.get(spec.entry)
        if self._data is None or span is None:
            raise ArtifactError(f"the artifact lacks the weight {spec.entry!r} ({spec.source})")
        if span[1] - span[0] != weight_file.weight_bytes(spec):
            raise ArtifactError(f"weight {spec.entry!r} does not have the size the plan gives it")
        return self._data[span[0] : span[1]]

    def settle(self) -> None:
        """Unmap what loading has read: the plan, executables, directory and headers; weights stay."""
        if self._container is not None:
            self._container.let_go(name for name in self._container.names if name != WEIGHTS_ENTRY)

    def sources(self) -> bytes | None:
        """What the artifact holds."""
        if self._container is None:
            raise ArtifactError("the artifact is closed")
        if SOURCES_ENTRY not in self._container.names:
            return None
        self._container.verify([SOURCES_ENTRY])
        return self._container.entry(SOURCES_ENTRY).tobytes()

    def close(self) -> None:
        """Drop the mapping."""
        self._container = self._data = None
        self._offsets = {}


class _Meter:
    """Counts the bytes that were written."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def advance(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(self._done, self._total)

    def passing(self, parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for part in parts:
            yield part
            self.advance(len(part))


def write_artifact(
    path: str | os.PathLike[str], plan: Plan, resources: Resources, progress: Progress | None = None
) -> None:
    """Write a model as one file; weights pass through memory one at a time.

    The file appears under ``path`` when it is complete. Raises ArtifactError when it cannot be written.
    """
    from mansard.artifact.writing import create

    check_plan(plan)
    blobs = {entry: resources.code(entry) for entry in _code_entries(plan)}
    if sources := resources.sources():
        blobs[SOURCES_ENTRY] = sources
    weights = list({spec.entry: spec for p in plan.with_variants() for spec in p.weights}.values())
    layout = weight_file.lay_out(weights)
    text = plan_to_json(plan).encode()
    total = len(text) + sum(len(b) for b in blobs.values()) + layout.size
    report = _Meter(total, progress)

    with create(path) as writer:
        writer.add(PLAN_ENTRY, [text], len(text))
        for entry, blob in blobs.items():
            writer.add(entry, [blob], len(blob))
            report.advance(len(blob))
        if weights:
            loads = ((spec, functools.partial(resources.load, spec)) for spec in weights)
            writer.add(WEIGHTS_ENTRY, report.passing(weight_file.chunks(layout, loads)), layout.size)
        report.advance(len(text))
        writer.finish({"name": plan.name, "info": dict(plan.info)})


def read_artifact(path: str | os.PathLike[str], verify: Verify = "code") -> tuple[Plan, FileResources]:
    """Open an artifact; no plan and no code of it is used before its hash holds.

    The structure of the file, the plan and every executable are always checked. Weights stay on disk
    until a kernel reads them, and sources until the model is tuned: ``verify="full"`` reads and checks
    them too, about a second for every few gigabytes.
    Raises ArtifactError saying whether the file is truncated, altered, foreign or too new.
    """
    if verify not in ("full", "code", True, False):
        raise ArtifactError(f"verify is {verify!r}; it can be 'full' (or True) or 'code' (or False)")
    if not Path(path).exists():
        raise ArtifactError(f"there is no file {path}")
    container = Container(path)
    full = verify in ("full", True)
    later = () if full else (WEIGHTS_ENTRY, SOURCES_ENTRY)
    container.verify(name for name in container.names if name not in later)
    plan = plan_from_json(container.entry(PLAN_ENTRY).tobytes())
    check_plan(plan)
    for entry in _code_entries(plan):
        container.entry(entry)
    return plan, FileResources(container)


def _code_entries(plan: Plan) -> list[str]:
    """The entries of every executable of a plan and its variants, each once."""
    devices = (device for p in plan.with_variants() for device in p.devices)
    return list(dict.fromkeys(ref.entry for device in devices for ref in device.executables))
