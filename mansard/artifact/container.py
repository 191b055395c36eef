"""The container: a ZIP file whose entries are stored uncompressed and start on page boundaries.

Layout: an entry `MAGIC` first (it tells a truncated artifact from a foreign file), the content, and
``manifest.json`` last, which lists every entry's size and SHA-256. The ZIP comment holds the format
version and the SHA-256 of the manifest. ``unzip -l`` lists the file and every entry can be mapped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import re
import struct
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mansard.artifact.plan import FORMAT_VERSION
from mansard.errors import ArtifactError

PAGE = 4096
MAGIC = "mansard-artifact"
MANIFEST = "manifest.json"
HASH_CHUNK = 32 << 20
"""Large entries are hashed in parts of this size as well, so that loading can use several threads."""

_COMMENT = re.compile(rb"mansard-artifact (\d+) sha256:([0-9a-f]{64})")
_PAD_FIELD = 0xD935  # the extra field that zipalign uses for padding
_ZIP64_EXTRA = 20
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_ZIP64_FROM = 1 << 30  # well below zipfile's own limit, so that both always agree

Bytes = npt.NDArray[np.uint8]
Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


# Writing ------------------------------------------------------------------------------------------


class ContainerWriter:
    """Writes entries in order; use within `create`."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._zip = zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True)
        self._entries: dict[str, dict[str, Any]] = {}

    def add(self, name: str, parts: Iterable[bytes | memoryview], size: int) -> None:
        """Write one entry of ``size`` bytes from consecutive parts."""
        if name in self._entries or name == MANIFEST:
            raise ArtifactError(f"entry {name!r} is written twice")
        self._write(name, parts, size)

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest, to which the table of entries is added, and the ZIP directory."""
        text = json.dumps(
            {"format": FORMAT_VERSION, **manifest, "entries": self._entries}, separators=(",", ":")
        ).encode()
        self._write(MANIFEST, [text], len(text))
        digest = hashlib.sha256(text).hexdigest()
        self._zip.comment = f"{MAGIC} {FORMAT_VERSION} sha256:{digest}".encode()
        self.close()

    def close(self) -> None:
        """Let go of the stream; without `finish` what was written is no artifact."""
        self._zip.close()

    def _write(self, name: str, parts: Iterable[bytes | memoryview], size: int) -> None:
        info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
        info.external_attr = 0o644 << 16
        info.file_size = size
        zip64 = size >= _ZIP64_FROM
        start = self._stream.tell() + _LOCAL_HEADER.size + len(name.encode())
        info.extra = _padding(start + (_ZIP64_EXTRA if zip64 else 0))
        hashes = _Hashes()
        with self._zip.open(info, "w", force_zip64=zip64) as entry:
            if self._stream.tell() % PAGE:
                raise ArtifactError(f"entry {name!r} would start off a page boundary")
            for part in parts:
                for piece in _pieces(part):
                    entry.write(piece)
                    hashes.update(piece)
        if hashes.size != size:
            raise ArtifactError(f"entry {name!r} has {hashes.size} bytes where {size} were announced")
        info.extra = b""  # the padding matters in front of the data only, not in the directory
        self._entries[name] = hashes.record()


@contextlib.contextmanager
def create(path: str | os.PathLike[str]) -> Iterator[ContainerWriter]:
    """A writer whose file appears under ``path`` only when everything was written."""
    target = Path(path)
    scratch = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with scratch.open("w+b") as stream:
            writer = ContainerWriter(stream)
            try:
                mark = f"{FORMAT_VERSION}\n".encode()
                writer.add(MAGIC, [mark], len(mark))
                yield writer
            finally:
                writer.close()
            stream.flush()
            os.fsync(stream.fileno())
        scratch.replace(target)
    except OSError as error:
        raise ArtifactError(f"{target} could not be written: {error}") from error
    finally:
        scratch.unlink(missing_ok=True)


def _padding(start: int) -> bytes:
    gap = -start % PAGE
    if gap == 0:
        return b""
    if gap < 4:  # an extra field has a header of 4 bytes
        gap += PAGE
    return struct.pack("<HH", _PAD_FIELD, gap - 4) + bytes(gap - 4)


def _pieces(part: bytes | memoryview) -> Iterator[memoryview]:
    view = memoryview(part)
    for start in range(0, len(view), HASH_CHUNK):
        yield view[start : start + HASH_CHUNK]


class _Hashes:
    """SHA-256 of a stream: of the whole, and of each `HASH_CHUNK`."""

    def __init__(self) -> None:
        self.size = 0
        self._whole = hashlib.sha256()
        self._chunk = hashlib.sha256()
        self._chunks: list[str] = []

    def update(self, data: memoryview) -> None:
        self._whole.update(data)
        while len(data):
            room = HASH_CHUNK - self.size % HASH_CHUNK
            self._chunk.update(data[:room])
            self.size += len(data[:room])
            data = data[room:]
            if self.size % HASH_CHUNK == 0:
                self._close_chunk()

    def record(self) -> dict[str, Any]:
        """The manifest's record of the entry."""
        record: dict[str, Any] = {"size": self.size, "sha256": self._whole.hexdigest()}
        if self.size > HASH_CHUNK:
            if self.size % HASH_CHUNK:
                self._close_chunk()
            record["chunks"] = self._chunks
        return record

    def _close_chunk(self) -> None:
        self._chunks.append(self._chunk.hexdigest())
        self._chunk = hashlib.sha256()


# Reading ------------------------------------------------------------------------------------------


class Container:
    """An opened artifact file, mapped. Entries are verified one by one (`verify`) before use."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.data = _map(self.path)
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
        """Compare entries with the hashes of the manifest; raises ArtifactError naming an altered one."""
        work: list[tuple[str, Bytes, str]] = []
        for name in names:
            data, record = self.entry(name), self.manifest["entries"][name]
            chunks = record.get("chunks")
            if chunks is None:
                work.append((name, data, record["sha256"]))
                continue
            if not isinstance(chunks, list) or len(chunks) != -(-data.size // HASH_CHUNK):
                raise ArtifactError(f"{self.path}: entry {name!r} has a broken record in the manifest")
            pieces = (data[i * HASH_CHUNK : (i + 1) * HASH_CHUNK] for i in range(len(chunks)))
            work += [(name, piece, digest) for piece, digest in zip(pieces, chunks, strict=True)]
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for (name, _, digest), found in zip(work, pool.map(_sha256, (w[1] for w in work)), strict=True):
                if found != digest:
                    raise ArtifactError(f"{self.path} was altered: entry {name!r} does not match its hash")

    def _directory(self) -> dict[str, tuple[int, int]]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                infos, self._comment = archive.infolist(), archive.comment
        except (zipfile.BadZipFile, ValueError, OSError, struct.error, NotImplementedError) as error:
            if _has_magic(self.data):
                raise ArtifactError(
                    f"{self.path} is truncated: its directory, at the end, is missing or damaged"
                ) from error
            raise ArtifactError(f"{self.path} is not a Mansard artifact") from error
        if not _has_magic(self.data) and MAGIC not in {info.filename for info in infos}:
            raise ArtifactError(f"{self.path} is a ZIP file, but not a Mansard artifact")
        spans: dict[str, tuple[int, int]] = {}
        for info in infos:
            if info.filename in spans or info.compress_type != zipfile.ZIP_STORED:
                raise ArtifactError(f"{self.path} was altered: entry {info.filename!r} is doubled or packed")
            spans[info.filename] = self._span(info)
        return spans

    def _span(self, info: zipfile.ZipInfo) -> tuple[int, int]:
        header = self.data[info.header_offset : info.header_offset + _LOCAL_HEADER.size].tobytes()
        if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\3\4"):
            raise ArtifactError(f"{self.path} was altered: no entry where {info.filename!r} should start")
        name_length, extra_length = _LOCAL_HEADER.unpack(header)[-2:]
        start = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
        if start % PAGE or start + info.file_size > self.data.size:
            raise ArtifactError(f"{self.path} was altered: entry {info.filename!r} lies outside its place")
        return start, info.file_size

    def _manifest(self) -> dict[str, Any]:
        comment = _COMMENT.fullmatch(self._comment)
        if comment is None or self.data[-len(self._comment) :].tobytes() != self._comment:
            raise ArtifactError(f"{self.path} was altered: the mark at its end does not read as Mansard's")
        self._check_version(int(comment[1]))
        text = self.entry(MANIFEST).tobytes()
        if hashlib.sha256(text).hexdigest() != comment[2].decode():
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


def _map(path: Path) -> Bytes:
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size == 0:
                raise ArtifactError(f"{path} is empty, not a Mansard artifact")
            # Copy on write: pages stay shared with the file, and drivers that only import writable
            # memory can still use them in place.
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from error
    return np.frombuffer(mapped, dtype=np.uint8)


def _has_magic(data: Bytes) -> bool:
    """Whether a file starts like an artifact, or is cut off before it could tell."""
    start = data[: _LOCAL_HEADER.size + len(MAGIC)].tobytes()
    if not start.startswith(b"PK\3\4"):
        return False
    name = start[_LOCAL_HEADER.size :]
    return MAGIC.encode().startswith(name) if data.size < 64 else name == MAGIC.encode()


def _sha256(data: Bytes) -> str:
    return hashlib.sha256(data.data).hexdigest()
