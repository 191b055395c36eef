"""The container: a ZIP file whose entries are stored uncompressed and start on page boundaries.

Layout: an entry `MAGIC` first (it tells a truncated artifact from a foreign file), the content, and
``manifest.json`` last, which lists every entry's size and SHA-256. The ZIP comment holds the format
version and the SHA-256 of the manifest. ``unzip -l`` lists the file and every entry can be mapped.
"""

from __future__ import annotations

import functools
import importlib
import json
import mmap
import os
import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.artifact.directory import STORED, DirectoryEntry, DirectoryError, read_directory
from mansard.errors import ArtifactError
from mansard.plan.plan import FORMAT_VERSION

PAGE = 4096
MAGIC = "mansard-artifact"
MANIFEST = "manifest.json"
HASH_CHUNK = 32 << 20
"""Large entries are hashed in parts of this size as well, so that they can be checked by several threads."""
LOCAL_HEADER = struct.Struct("<4s5H3I2H")

_COMMENT = re.compile(rb"mansard-artifact (\d+) sha256:([0-9a-f]{64})")
_LEAN_BYTES = 4 << 20  # what the plain C code of the interpreter hashes in about 10 ms
_PIECE_BYTES = 1 << 20

Bytes = npt.NDArray[np.uint8]


class Container:
    """An opened artifact file, mapped. Entries are verified one by one (`verify`) before use."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._mapping = _map(self.path)
        self.data: Bytes = np.frombuffer(self._mapping, dtype=np.uint8)
        self._spans = self._directory()
        self.manifest = self._manifest()
        self._check_table()

    @property
    def names(self) -> list[str]:
        """Every entry but the manifest."""
        return [name for name in self._spans if name != MANIFEST]

    def entry(self, name: str) -> Bytes:
        """The bytes of an entry, mapped from the file; writes to them stay private to the process."""
        if name not in self._spans:
            raise ArtifactError(f"{self.path} lacks the entry {name!r}; it was altered")
        start, size = self._spans[name]
        return self.data[start : start + size]

    def verify(self, names: Iterable[str]) -> None:
        """Compare entries with the hashes of the manifest; raises ArtifactError naming an altered one.

        What was read is let go of again piece by piece, so that checking gigabytes takes no memory; private
        changes to the entries are lost with it.
        """
        work: list[tuple[str, int, int, str]] = []
        for name in names:
            (start, size), record = self._spans[name], self.manifest["entries"][name]
            chunks = record.get("chunks")
            if chunks is None:
                work.append((name, start, start + size, record["sha256"]))
                continue
            if not isinstance(chunks, list) or len(chunks) != -(-size // HASH_CHUNK):
                raise ArtifactError(f"{self.path}: entry {name!r} has a broken record in the manifest")
            ends = [start + min(size, (i + 1) * HASH_CHUNK) for i in range(len(chunks))]
            begins = [start + i * HASH_CHUNK for i in range(len(chunks))]
            work += [(name, *part) for part in zip(begins, ends, chunks, strict=True)]
        if sum(end - begin for _, begin, end, _ in work) < _LEAN_BYTES:
            digests = [_lean_sha256(self.data[begin:end]) for _, begin, end, _ in work]
        else:
            digests = self._digests([(begin, end) for _, begin, end, _ in work])
        for (name, _, _, digest), seen in zip(work, digests, strict=True):
            if seen != digest:
                raise ArtifactError(f"{self.path} was altered: entry {name!r} does not match its hash")

    def let_go(self, names: Iterable[str]) -> None:
        """Give back the memory of entries; they are read from the file again when they are needed."""
        for name in names:
            begin, size = self._spans[name]
            end = (begin + size) // mmap.PAGESIZE * mmap.PAGESIZE
            if begin % mmap.PAGESIZE == 0 and end > begin:
                self._mapping.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def _digests(self, ranges: Sequence[tuple[int, int]]) -> list[str]:
        """The SHA-256 of ranges of the file, several at a time."""
        import hashlib
        from concurrent.futures import ThreadPoolExecutor

        def digest(span: tuple[int, int]) -> str:
            state = hashlib.sha256()
            for begin in range(*span, _PIECE_BYTES):
                end = min(begin + _PIECE_BYTES, span[1])
                state.update(self.data[begin:end].data)
                if begin % mmap.PAGESIZE == 0 and end - begin == _PIECE_BYTES:  # whole pages only
                    self._mapping.madvise(mmap.MADV_DONTNEED, begin, end - begin)
            return state.hexdigest()

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            return list(pool.map(digest, ranges))

    def _directory(self) -> dict[str, tuple[int, int]]:
        try:
            entries, self._comment = read_directory(self.data)
        except DirectoryError as error:
            if _has_magic(self.data):
                raise ArtifactError(
                    f"{self.path} is truncated: its directory, at the end, is missing or damaged"
                ) from error
            raise ArtifactError(f"{self.path} is not a Mansard artifact") from error
        if not _has_magic(self.data) and MAGIC not in {entry.name for entry in entries}:
            raise ArtifactError(f"{self.path} is a ZIP file, but not a Mansard artifact")
        spans: dict[str, tuple[int, int]] = {}
        for entry in entries:
            if entry.name in spans or entry.method != STORED:
                raise ArtifactError(f"{self.path} was altered: entry {entry.name!r} is doubled or packed")
            spans[entry.name] = self._span(entry)
        return spans

    def _span(self, entry: DirectoryEntry) -> tuple[int, int]:
        header = self.data[entry.header : entry.header + LOCAL_HEADER.size].tobytes()
        if len(header) < LOCAL_HEADER.size or not header.startswith(b"PK\3\4"):
            raise ArtifactError(f"{self.path} was altered: no entry where {entry.name!r} should start")
        name_length, extra_length = LOCAL_HEADER.unpack(header)[-2:]
        start = entry.header + LOCAL_HEADER.size + name_length + extra_length
        if start % PAGE or start + entry.size > self.data.size:
            raise ArtifactError(f"{self.path} was altered: entry {entry.name!r} lies outside its place")
        return start, entry.size

    def _manifest(self) -> dict[str, Any]:
        comment = _COMMENT.fullmatch(self._comment)
        if comment is None or self.data[-len(self._comment) :].tobytes() != self._comment:
            raise ArtifactError(f"{self.path} was altered: the mark at its end does not read as Mansard's")
        self._check_version(int(comment[1]))
        text = self.entry(MANIFEST).tobytes()
        if _lean_sha256(text) != comment[2].decode():
            raise ArtifactError(f"{self.path} was altered: entry {MANIFEST!r} does not match its hash")
        try:
            manifest = json.loads(text)
        except ValueError as error:
            raise ArtifactError(f"{self.path}: the manifest is not JSON") from error
        if not isinstance(manifest, dict) or not isinstance(manifest.get("entries"), dict):
            raise ArtifactError(f"{self.path}: the manifest lists no entries")
        return manifest

    def _check_version(self, version: int) -> None:
        if version > FORMAT_VERSION:
            raise ArtifactError(
                f"{self.path} was made by a newer Mansard (format {version}; this one reads up to "
                f"{FORMAT_VERSION}); update Mansard, or compile the model again with this version"
            )

    def _check_table(self) -> None:
        entries = self.manifest["entries"]
        listed, present = set(entries), set(self.names)
        for name in sorted(listed ^ present):
            what = "lacks the entry" if name in listed else "has the unlisted entry"
            raise ArtifactError(f"{self.path} was altered: it {what} {name!r}")
        for name, record in entries.items():
            size = self._spans[name][1]
            if not isinstance(record, dict) or not isinstance(record.get("sha256"), str):
                raise ArtifactError(f"{self.path}: entry {name!r} has a broken record in the manifest")
            if record.get("size") != size:
                raise ArtifactError(
                    f"{self.path} was altered: entry {name!r} has {size} bytes, not {record.get('size')}"
                )


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size == 0:
                raise ArtifactError(f"{path} is empty, not a Mansard artifact")
            # Copy on write: pages stay shared with the file, and drivers that only import writable
            # memory can still use them in place.
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from error


def _has_magic(data: Bytes) -> bool:
    """Whether a file starts like an artifact, or is cut off before it could tell."""
    start = data[: LOCAL_HEADER.size + len(MAGIC)].tobytes()
    if not start.startswith(b"PK\3\4"):
        return False
    name = start[LOCAL_HEADER.size :]
    return MAGIC.encode().startswith(name) if data.size < 64 else name == MAGIC.encode()


def _lean_sha256(data: Bytes | bytes) -> str:
    """The SHA-256 of a little data, without the cryptographic library that ``hashlib`` brings in."""
    return str(_lean_hash()(data).hexdigest())


@functools.cache
def _lean_hash() -> Any:
    for name in ("_sha2", "_sha256"):  # Python 3.12 on, 3.11; an interpreter may be built without
        try:
            return importlib.import_module(name).sha256
        except ImportError:
            continue
    return importlib.import_module("hashlib").sha256
