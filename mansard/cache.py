"""The disk cache: imported models, compiled kernels, tuning results, pipelines of GPU drivers.

Removing the folder, or any file in it, is always safe: what is missing or damaged is regenerated.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from mansard.atomic_write import PREFIX, SUFFIX, remove_abandoned, replacing

_MAGIC = b"mansard cache 1\n"
_DIGEST = hashlib.sha256().digest_size
_TOUCH_AFTER_S = 3600.0
"""Reading a file updates its modification time, by which files are evicted, if that is older than this."""
_STALE_SCRATCH_S = 3600.0
DEFAULT_LIMIT = 512 << 20
"""Bytes a `Folder` may hold: some ten thousand kernels."""


def cache_directory() -> Path:
    """``$MANSARD_CACHE_DIR``, or ``mansard`` in the user's cache directory."""
    chosen = os.environ.get("MANSARD_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mansard"


def read_file(path: Path) -> bytes | None:
    """The data that `write_file` stored, or None when the file is absent, truncated or altered."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    head = len(_MAGIC) + _DIGEST
    data = content[head:]
    intact = content[: len(_MAGIC)] == _MAGIC and hashlib.sha256(data).digest() == content[len(_MAGIC) : head]
    return data if intact else None


def write_file(path: Path, data: bytes) -> None:
    """Replace the file atomically, so that no reader sees a partial one. A read-only or full disk is not an
    error."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, mode=0o600) as file:
            file.write(_MAGIC + hashlib.sha256(data).digest() + data)


@dataclass
class Counts:
    """Cache hits and misses of a `Folder`."""

    hits: int = 0
    misses: int = 0


@dataclass
class _Growth:
    """Bytes that this process has written to a folder since it last looked through it, and how many it may
    write before it does so again; at first none."""

    written: int = 0
    room: int = 0


_growth: dict[Path, _Growth] = {}
_growth_lock = threading.Lock()
_WRITERS = 4
"""Processes that may write to a folder at a time without exceeding its limit before one looks through it."""


class Folder:
    """Byte strings by key in a folder of the cache; processes and threads may share it.

    Keys are strings of any length. ``limit`` bounds the bytes on disk: `trim` removes the least recently used
    files.
    """

    def __init__(self, name: str, limit: int = DEFAULT_LIMIT) -> None:
        self.path = cache_directory() / name
        self.limit = limit
        self.counts = Counts()
        self._lock = threading.Lock()
        with _growth_lock:
            self._growth = _growth.setdefault(self.path, _Growth())

    def get(self, key: str) -> bytes | None:
        """The data stored under a key, or None."""
        path = self._file(key)
        data = read_file(path)
        with self._lock:
            if data is None:
                self.counts.misses += 1
            else:
                self.counts.hits += 1
        if data is not None:
            _mark_used(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Store data under a key, replacing any present data."""
        write_file(self._file(key), data)
        with _growth_lock:
            self._growth.written += len(data)

    def trim(self) -> None:
        """If the limit is exceeded, remove the least recently used files until a tenth of it is free; and
        remove what killed processes have left.

        Does nothing as long as this process has written little since it last looked through the folder.
        """
        growth = self._growth
        with _growth_lock:
            if growth.written <= growth.room:
                return
            growth.written = 0
        total = self._remove_unused()
        with _growth_lock:
            growth.room = max(0, self.limit - total) // _WRITERS

    def _remove_unused(self) -> int:
        """What `trim` does; returns the bytes that are left."""
        files = []
        for folder in self.path.glob("*/"):
            remove_abandoned(folder)
        for path in self.path.glob("*/*"):
            if path.name.startswith(PREFIX) and path.name.endswith(SUFFIX):
                continue  # another process is writing it
            with contextlib.suppress(OSError):
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in files)
        goal = self.limit - self.limit // 10 if total > self.limit else total
        now = time.time()
        for used, size, path in sorted(files):
            abandoned = path.suffix == ".tmp" and now - used > _STALE_SCRATCH_S
            if total <= goal and not abandoned:
                continue
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
        return total

    def _file(self, key: str) -> Path:
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self.path / digest[:2] / digest[2:]


def _mark_used(path: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _TOUCH_AFTER_S:
            os.utime(path)


_GENERATORS = ("numpy", "llvmlite", "torch", "torch-mlir")
"""Packages whose versions affect the generated code."""


@functools.cache
def compiler_digest() -> str:
    """A digest of everything that affects how a model is compiled: Mansard's sources, and the versions of
    Python and of the packages involved."""
    from importlib import metadata

    digest = hashlib.sha256(sys.version.encode())
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    for package in _GENERATORS:
        try:
            digest.update(f"{package} {metadata.version(package)}\n".encode())
        except metadata.PackageNotFoundError:
            digest.update(f"{package} absent\n".encode())
    return digest.hexdigest()
