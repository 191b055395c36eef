"""A file as an array of bytes: mapped, or read into memory."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mansard.arguments import shown
from mansard.atomic_write import kind_of
from mansard.errors import ArtifactError

_READ_BYTES = 1 << 30  # Linux reads no more than 2 GiB at a time

Bytes = npt.NDArray[np.uint8]


def as_path(path: object) -> Path:
    """The path that a user names; raises ArtifactError, saying why, for what cannot be one."""
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]  # a TypeError is what is asked for
    except Exception:  # also of the object's own __fspath__
        if isinstance(path, str | Path):
            raise  # of a signal handler
        raise ArtifactError(
            f"{shown(path)} is a {type(path).__name__}, not the path of a file (a str or os.PathLike)"
        ) from None
    if not text:
        raise ArtifactError("the path of the file is empty")
    if "\0" in text:
        raise ArtifactError(f"{text!r} is not the path of a file: it contains a NUL character")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ArtifactError(f"{text!r} is not the path of a file: {error.reason}") from None
    return Path(text)


class MappedFile:
    """A regular file, opened once: what was opened stays the same file when another one takes its name.

    Mapped (the default), ``data`` shows the file itself: pages are read when they are used, and a program
    that writes into the file, or truncates it, changes ``data`` too, or ends the process by SIGBUS where it
    is read. `check_unchanged` notices that by the file's size and time of modification. With ``copy`` all of
    it is in memory of the process when the constructor returns, and the file is closed.

    Raises ArtifactError for what is not a regular file or cannot be read, without waiting for a pipe.
    """

    def __init__(self, path: Path, *, copy: bool = False) -> None:
        self.path, self.copied = path, copy
        try:
            # Without O_NONBLOCK opening a pipe waits for its writer.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except FileNotFoundError:
            raise ArtifactError(f"there is no file {path}") from None
        except OSError as error:
            raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from error
        self._close = weakref.finalize(self, os.close, self._descriptor)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ArtifactError(f"{path} cannot be read: it is {kind_of(status.st_mode)}, not a regular file")
        if status.st_size == 0:
            raise ArtifactError(f"{path} is empty, not a Mansard artifact")
        self._version = _version(status)
        try:
            self._mapping = self._read(status.st_size) if copy else self._map()
        except (OSError, MemoryError) as error:
            reason = getattr(error, "strerror", None) or str(error) or "not enough memory"
            raise ArtifactError(f"{path} cannot be read: {reason}") from error
        self.data: Bytes = np.frombuffer(self._mapping, dtype=np.uint8)
        if copy:
            self.check_unchanged()
            self._close()

    def check_unchanged(self) -> None:
        """Raise ArtifactError if the file was written to since it was opened, as far as its size and time of
        modification tell. Costs a system call; nothing for a copy."""
        if self._close.alive and _version(os.fstat(self._descriptor)) != self._version:
            raise ArtifactError(
                f"{self.path} was changed while it was in use: load it again. Replace such a file by "
                "renaming another one over it, as Model.save does, or load it with copy=True"
            )

    def read(self, start: int, size: int) -> Bytes:
        """A copy of a range of the file in memory of the process."""
        return self.data[start : start + size].copy()

    def let_go(self, start: int, size: int) -> None:
        """Give back the memory of a range; it is read from the file again when it is needed. Private
        changes are lost."""
        end = (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if not self.copied and start % mmap.PAGESIZE == 0 and end > start:
            self._mapping.madvise(mmap.MADV_DONTNEED, start, end - start)

    def _map(self) -> mmap.mmap:
        # Copy on write: pages stay shared with the file, and drivers that only import writable memory can
        # still use them in place.
        return mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_COPY)

    def _read(self, size: int) -> mmap.mmap:
        memory = mmap.mmap(-1, size)
        with contextlib.suppress(OSError):  # large pages, where there are any: weights are read faster
            memory.madvise(mmap.MADV_HUGEPAGE)
        with memoryview(memory) as view:
            done = 0
            while done < size:
                count = os.preadv(self._descriptor, [view[done : min(size, done + _READ_BYTES)]], done)
                if count == 0:
                    raise ArtifactError(f"{self.path} was truncated while it was read")
                done += count
        return memory


def _version(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns
