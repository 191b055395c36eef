"""What a plan refers to: executables and weights, from a file or from memory."""

from __future__ import annotations

import abc
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mansard.arguments import boolean, function, shown
from mansard.artifact import weights as weight_file
from mansard.artifact.assets import PREFIX
from mansard.artifact.container import Container
from mansard.artifact.signing import Key, check_signature
from mansard.artifact.weights import Bytes, JoinedLoad, Load
from mansard.errors import ArtifactError
from mansard.plan.check import check_plan
from mansard.plan.plan import Plan, WeightSpec
from mansard.plan.serialise import (
    executables_from_json,
    executables_of,
    executables_to_json,
    plan_from_json,
    plan_to_json,
)

PLAN_ENTRY = "plan.json"
EXECUTABLES_ENTRY = "kernels/executables.json"
"""What the executables are, and the contracts of their kernels."""
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
        """Blocks of host memory that hold wanted weights, each of them once. A weight that lies in no
        memory in one piece is in none: `pieces` gives it."""

    @abc.abstractmethod
    def load(self, spec: WeightSpec) -> Bytes:
        """The bytes of one weight."""

    def pieces(self, spec: WeightSpec) -> Iterator[Bytes]:
        """The bytes of one weight in consecutive pieces, as they lie in the host's memory."""
        yield self.load(spec)

    @property
    def place(self) -> str:
        """Where weights lie that are used in place, for the memory ledger."""
        return "memory of the frontend"

    def settle(self) -> None:  # noqa: B027  # memory resources have nothing to let go of
        """Executables are loaded: let go of what was only needed for that."""

    def check_unchanged(self) -> None:  # noqa: B027  # nobody else can change memory resources
        """Raise ArtifactError if the file behind the resources was written to; cheap, and not sure to."""

    def sources(self) -> bytes | None:
        """What the kernels were made from, in the compiler's form; None when it was not kept."""
        return None

    @property
    def assets(self) -> Sequence[str]:
        """The names of the model's assets."""
        return ()

    def asset(self, name: str) -> bytes:
        """The content of an asset. Raises ArtifactError for one that the model does not have, naming those it
        has, and for a damaged one."""
        known = ", ".join(self.assets) or "none"
        raise ArtifactError(f"the model has no asset {shown(name)}; its assets: {known}")

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
        """One block per weight: the memory the frontend gave, where it is contiguous.

        Weights that have to be computed are computed on as many threads as there are CPUs.
        """
        whole = [spec for spec in wanted if not isinstance(self._loader(spec), JoinedLoad)]
        from concurrent.futures import ThreadPoolExecutor  # takes time to import, and few models need it

        with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "mansard-weights") as pool:
            blocks = pool.map(self.load, whole)
            return [WeightBlock(data, {spec.entry: 0}) for spec, data in zip(whole, blocks, strict=True)]

    def load(self, spec: WeightSpec) -> Bytes:
        """The bytes of one weight."""
        return weight_file.storage(spec, self._loader(spec)())

    def pieces(self, spec: WeightSpec) -> Iterator[Bytes]:
        """The bytes of one weight; of a joined one, part by part."""
        loader = self._loader(spec)
        if not isinstance(loader, JoinedLoad):
            yield self.load(spec)
            return
        for load in loader.loads:
            array = load()
            yield weight_file.storage(dataclasses.replace(spec, shape=array.shape), array)

    def _loader(self, spec: WeightSpec) -> Load:
        if spec.entry not in self._loads:
            raise ArtifactError(f"the model lacks the weight {spec.entry!r} ({spec.source})")
        return self._loads[spec.entry]

    def sources(self) -> bytes | None:
        """What the compiler handed over."""
        return self._sources


class FileResources(Resources):
    """What an artifact file holds, mapped or copied. Every read of it raises ArtifactError if the file was
    written to since it was opened."""

    def __init__(self, container: Container) -> None:
        self._container: Container | None = container
        self._place = "memory" if container.copied else "mapped file"
        self._data: Bytes | None = None
        self._offsets: dict[str, tuple[int, int]] = {}
        if WEIGHTS_ENTRY in container.names:
            checked = container.verify_header(WEIGHTS_ENTRY)
            entry = container.entry(WEIGHTS_ENTRY)
            start, self._offsets = weight_file.parse_header(entry[:checked], entry.size)
            self._data = entry[start:]

    @property
    def place(self) -> str:
        """The mapped file, or memory."""
        return self._place

    def check_weights(self, wanted: Iterable[WeightSpec]) -> None:
        """Raise ArtifactError unless the file has every weight of a plan, in the size the plan gives it."""
        for spec in wanted:
            self._span(spec)

    def code(self, entry: str) -> bytes | memoryview:
        """The blob of an executable."""
        return self._opened().entry(entry).data.toreadonly()

    def blocks(self, wanted: Sequence[WeightSpec]) -> list[WeightBlock]:
        """The data part of the weights entry as one block."""
        if not wanted:
            return []
        self._opened()
        offsets = {spec.entry: self._span(spec)[0] for spec in wanted}
        assert self._data is not None  # it holds the weights
        return [WeightBlock(self._data, offsets)]

    def load(self, spec: WeightSpec) -> Bytes:
        """The bytes of one weight."""
        self._opened()
        first, last = self._span(spec)
        assert self._data is not None  # it holds the weight
        return self._data[first:last]

    def settle(self) -> None:
        """Free or unmap what loading has read: the plan, executables, directory and headers; weights stay."""
        if self._container is not None:
            self._container.let_go(name for name in self._container.names if name != WEIGHTS_ENTRY)

    def check_unchanged(self) -> None:
        """Raise ArtifactError if the file was written to since it was opened."""
        if self._container is not None:
            self._container.check_unchanged()

    def sources(self) -> bytes | None:
        """What the artifact holds."""
        return self._checked(SOURCES_ENTRY) if SOURCES_ENTRY in self._opened().names else None

    @property
    def assets(self) -> Sequence[str]:
        """Those of the file."""
        return [name.removeprefix(PREFIX) for name in self._opened().names if name.startswith(PREFIX)]

    def asset(self, name: str) -> bytes:
        """The content of an entry, whose hash is checked."""
        return self._checked(PREFIX + name) if name in self.assets else super().asset(name)

    def _checked(self, entry: str) -> bytes:
        """The content of an entry that is not kept in memory."""
        container = self._opened()
        container.hold([entry])
        container.verify([entry])
        content = container.entry(entry).tobytes()
        container.let_go([entry])
        return content

    def close(self) -> None:
        """Drop the mapping."""
        self._container = self._data = None
        self._offsets = {}

    def _opened(self) -> Container:
        if self._container is None:
            raise ArtifactError("the artifact is closed")
        self._container.check_unchanged()
        return self._container

    def _span(self, spec: WeightSpec) -> tuple[int, int]:
        span = self._offsets.get(spec.entry)
        if span is None:
            raise ArtifactError(f"the artifact lacks the weight {spec.entry!r} ({spec.source})")
        if span[1] - span[0] != weight_file.weight_bytes(spec):
            raise ArtifactError(f"weight {spec.entry!r} does not have the size the plan gives it")
        return span


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
    path: str | os.PathLike[str],
    plan: Plan,
    resources: Resources,
    progress: Progress | None = None,
    assets: Mapping[str, bytes] | None = None,
) -> None:
    """Write a model as one file; weights pass through memory one at a time. ``assets`` are added to those of
    the resources, or take their place.

    The file appears under ``path`` when it is complete. Raises ArtifactError when it cannot be written.
    """
    from mansard.artifact.writing import create

    function("progress", progress, ArtifactError)
    check_plan(plan)
    blobs = {entry: resources.code(entry) for entry in _code_entries(plan)}
    if sources := resources.sources():
        blobs[SOURCES_ENTRY] = sources
    given = assets or {}
    kept = {name: resources.asset(name) for name in resources.assets if name not in given}
    blobs |= {PREFIX + name: content for name, content in {**kept, **given}.items()}
    weights = list({spec.entry: spec for p in plan.all_plans() for spec in p.weights}.values())
    layout = weight_file.lay_out(weights)
    text = plan_to_json(plan, executables_of(plan)).encode()
    blobs = {EXECUTABLES_ENTRY: executables_to_json(plan).encode(), **blobs}
    total = len(text) + sum(len(b) for b in blobs.values()) + layout.size
    report = _Meter(total, progress)

    with create(path) as writer:
        writer.add(PLAN_ENTRY, [text], len(text))
        for entry, blob in blobs.items():
            writer.add(entry, [blob], len(blob))
            report.advance(len(blob))
        if weights:
            loads = ((spec, functools.partial(resources.load, spec)) for spec in weights)
            parts = report.passing(weight_file.chunks(layout, loads))
            writer.add(WEIGHTS_ENTRY, parts, layout.size, header=layout.header)
        report.advance(len(text))
        writer.finish({"name": plan.name, "info": dict(plan.info)})


def read_artifact(
    path: str | os.PathLike[str],
    verify: Verify | None = None,
    *,
    copy: bool = False,
    trusted_keys: Sequence[Key] | None = None,
) -> tuple[Plan, FileResources]:
    """Open an artifact; no plan and no code of it is used before its hash holds.

    The structure of the file, the plan, every executable and where the weights lie are always checked.
    Weights stay on disk until a kernel reads them, sources until the model is tuned, and assets until they
    are asked for: ``verify="full"`` reads and checks them too, about a second for every few gigabytes. With
    ``copy`` all of the file is read into memory, and what happens to it afterwards does not matter. With
    ``trusted_keys`` one of them must have signed the file, and everything is checked. ``verify`` is "code" by
    default, "full" with keys.
    Raises ArtifactError saying whether the file is truncated, altered, foreign or too new,
    SignatureError for one that no trusted key signed.
    """
    if verify is None:
        verify = "code" if trusted_keys is None else "full"
    if not isinstance(verify, (str, bool)) or verify not in ("full", "code", True, False):
        raise ArtifactError(f"verify is {shown(verify)}; it can be 'full' (or True) or 'code' (or False)")
    boolean("copy", copy, ArtifactError)
    full = verify in ("full", True)
    if trusted_keys is not None and not full:
        raise ArtifactError(f"verify={verify!r} would leave weights unchecked that trusted_keys vouches for")
    container = Container(path, copy=copy)
    if trusted_keys is not None:
        check_signature(container, trusted_keys)
    later = (WEIGHTS_ENTRY, SOURCES_ENTRY)
    now = [name for name in container.names if name not in later and not name.startswith(PREFIX)]
    container.hold(now)
    container.verify(container.names if full else now)
    executables = executables_from_json(container.entry(EXECUTABLES_ENTRY).tobytes())
    plan = plan_from_json(container.entry(PLAN_ENTRY).tobytes(), executables)
    check_plan(plan)
    for entry in _code_entries(plan):
        container.entry(entry)
    resources = FileResources(container)
    resources.check_weights(weight for p in plan.all_plans() for weight in p.weights)
    container.check_unchanged()
    return plan, resources


def _code_entries(plan: Plan) -> list[str]:
    """The entries of every executable of a plan, its variants and methods, each once."""
    devices = (device for p in plan.all_plans() for device in p.devices)
    return list(dict.fromkeys(ref.entry for device in devices for ref in device.executables))
