"""The container: a ZIP file whose entries are stored uncompressed and start on page boundaries.

Layout: an entry `MAGIC` first (it tells a truncated artifact from a foreign file), the content, and
``manifest.json`` last, which lists every entry's size and SHA-256. The ZIP comment holds the format
version, the SHA-256 of the manifest, and signatures of both (`mansard.artifact.signing`). ``unzip -l`` lists
the file and every entry can be mapped.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.artifact.directory import STORED, DirectoryEntry, DirectoryError, read_directory
from mansard.artifact.mapped_file import MappedFile, as_path
from mansard.errors import ArtifactError
from mansard.plan.plan import FORMAT_VERSION

PAGE = 4096
MAGIC = "mansard-artifact"
MANIFEST = "manifest.json"
HASH_CHUNK = 32 << 20
"""Large entries are hashed in parts of this size as well, so that they can be checked by several threads."""
LOCAL_HEADER = struct.Struct("<4s5H3I2H")

_COMMENT = re.compile(
    rb"(mansard-artifact (\d{1,9}) sha256:([0-9a-f]{64}))((?: ed25519:[0-9a-f]{64}:[0-9a-f]{128})*)"
)
_SIGNED = b"Ed25519 signature of a Mansard artifact: "
"""What precedes the signed text, so that the signature of something else is never one of an artifact."""
_COMMENT_BYTES = 0xFFFF
_LEAN_BYTES = 4 << 20  # what the plain C code of the interpreter hashes in about 10 ms
_PIECE_BYTES = 1 << 20

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Signature:
    """An Ed25519 signature of an artifact, with the raw public key that it names."""

    key: bytes
    value: bytes

    def __str__(self) -> str:
        return f"ed25519:{self.key.hex()}:{self.value.hex()}"


class Container:
    """An opened artifact file, mapped or (``copy``) in memory. Entries are checked one by one before use.

    `hold` and `verify` are for what is needed at once, `verify` alone for what stays on disk until then.
    """

    def __init__(self, path: str | os.PathLike[str], *, copy: bool = False) -> None:
        self._file = MappedFile(as_path(path), copy=copy)
        self.path = self._file.path
        self.data: Bytes = self._file.data
        self._held: dict[str, Bytes] = {}
        self.signatures: tuple[Signature, ...] = ()
        """Of `signed_text`, not checked yet."""
        self._spans = self._directory()
        self.manifest = self._manifest()
        self._check_table()

    @property
    def copied(self) -> bool:
        """Whether the whole file was read into memory, rather than mapped."""
        return self._file.copied

    @property
    def names(self) -> list[str]:
        """Every entry but the manifest."""
        return [name for name in self._spans if name != MANIFEST]

    def entry(self, name: str) -> Bytes:
        """The bytes of an entry: those held, else those of the file; writes to them stay private to the
        process."""
        if name not in self._spans:
            raise ArtifactError(f"{self.path} lacks the entry {name!r}; it was altered")
        start, size = self._spans[name]
        return self._held[name] if name in self._held else self.data[start : start + size]

    def hold(self, names: Iterable[str]) -> None:
        """Read entries into memory, so that what is checked is what is used even if the file changes."""
        for name in names:
            if not self.copied:
                self._held[name] = self._file.read(*self._spans[name])

    @property
    def signed_text(self) -> bytes:
        """What signatures sign: the format and the hash of the manifest, which has those of all entries."""
        return _SIGNED + self._mark

    def with_signatures(self, signatures: Sequence[Signature]) -> tuple[Bytes, bytes]:
        """The file with these signatures instead of its own, as all but its end, and its end."""
        mark = b" ".join([self._mark, *(str(signature).encode() for signature in signatures)])
        if len(mark) > _COMMENT_BYTES:
            raise ArtifactError(f"{self.path} has no room for {len(signatures)} signatures")
        return self.data[: -len(self._comment) - 2], struct.pack("<H", len(mark)) + mark

    def check_unchanged(self) -> None:
        """Raise ArtifactError if the file was written to since it was opened (`MappedFile`)."""
        self._file.check_unchanged()

    def verify(self, names: Iterable[str]) -> None:
        """Compare entries with the hashes of the manifest; raises ArtifactError naming an altered one.

        What was read of the file is let go of again piece by piece, so that checking gigabytes takes no
        memory; private changes to the entries are lost with it.
        """
        work: list[tuple[str, int, int, str]] = []
        for name in names:
            size, record = self._spans[name][1], self.manifest["entries"][name]
            chunks = record.get("chunks")
            if chunks is None:
                work.append((name, 0, size, record["sha256"]))
                continue
            if not isinstance(chunks, list) or len(chunks) != -(-size // HASH_CHUNK):
                raise ArtifactError(f"{self.path}: entry {name!r} has a broken record in the manifest")
            begins = range(0, size, HASH_CHUNK)
            work += [(name, at, min(size, at + HASH_CHUNK), c) for at, c in zip(begins, chunks, strict=True)]
        self._compare(work)

    def verify_header(self, name: str) -> int:
        """Check the first part of an entry, which its record describes as ``header``, on its own, and return
        its bytes."""
        record = self.manifest["entries"][name].get("header")
        size = record.get("size") if isinstance(record, dict) else None
        if type(size) is not int or not 0 <= size <= self._spans[name][1]:
            raise ArtifactError(f"{self.path}: entry {name!r} has a broken record in the manifest")
        self._compare([(name, 0, size, str(record.get("sha256")))])
        return size

    def let_go(self, names: Iterable[str]) -> None:
        """Give back the memory of entries; they are read from the file again when they are needed."""
        for name in names:
            self._held.pop(name, None)
            self._file.let_go(*self._spans[name])

    def _compare(self, work: Sequence[tuple[str, int, int, str]]) -> None:
        """Compare ranges of entries (name, begin, end) with their SHA-256."""
        if sum(end - begin for _, begin, end, _ in work) < _LEAN_BYTES:
            digests = [_lean_sha256(self.entry(name)[begin:end]) for name, begin, end, _ in work]
        else:
            digests = self._digests([(name, begin, end) for name, begin, end, _ in work])
        for (name, _, _, digest), seen in zip(work, digests, strict=True):
            if seen != digest:
                raise ArtifactError(f"{self.path} was altered: entry {name!r} does not match its hash")

    def _digests(self, ranges: Sequence[tuple[str, int, int]]) -> list[str]:
        """The SHA-256 of ranges of entries, several at a time."""
        import hashlib
        from concurrent.futures import ThreadPoolExecutor

        def digest(part: tuple[str, int, int]) -> str:
            name, first, last = part
            state, data = hashlib.sha256(), self.entry(name)
            for begin in range(first, last, _PIECE_BYTES):
                end = min(begin + _PIECE_BYTES, last)
                state.update(data[begin:end].data)
                if name not in self._held and end - begin == _PIECE_BYTES:  # whole pages only
                    self._file.let_go(self._spans[name][0] + begin, end - begin)
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
        self._mark = comment[1]
        self._check_version(int(comment[2]))
        text = self.entry(MANIFEST).tobytes()
        if _lean_sha256(text) != comment[3].decode():
            raise ArtifactError(f"{self.path} was altered: entry {MANIFEST!r} does not match its hash")
        try:
            manifest = json.loads(text)
        except (ValueError, RecursionError, MemoryError) as error:
            raise ArtifactError(f"{self.path}: the manifest is not JSON") from error
        if not isinstance(manifest, dict) or not isinstance(manifest.get("entries"), dict):
            raise ArtifactError(f"{self.path}: the manifest lists no entries")
        for words in (text.split(b":") for text in comment[4].split()):
            key, value = (bytes.fromhex(word.decode()) for word in words[1:])
            self.signatures = (*self.signatures, Signature(key, value))
        return manifest

    def _check_version(self, version: int) -> None:
        if version < 1:
            raise ArtifactError(f"{self.path} was altered: there is no format {version}")
        if version < FORMAT_VERSION:
            raise ArtifactError(
                f"{self.path} was made by an older Mansard (format {version}; this one reads "
                f"{FORMAT_VERSION}); compile the model again with this version"
            )
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
            well_formed = isinstance(record, dict) and isinstance(record.get("sha256"), str)
            if not well_formed or type(record.get("size")) is not int:
                raise ArtifactError(f"{self.path}: entry {name!r} has a broken record in the manifest")
            if record["size"] != size:
                raise ArtifactError(
                    f"{self.path} was altered: entry {name!r} has {size} bytes, not {record['size']}"
                )


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
