"""Files that appear whole: written under a temporary name next to their place, then renamed into it.

A process that is killed while it writes leaves its temporary file behind. The writer holds a lock (`flock`)
on it, which ends with the process, so that the next write into the folder can tell such a file from one that
is still being written, and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PREFIX, SUFFIX = ".mansard-", ".tmp"
"""Of the names of temporary files. They do not contain that of the file, which may be as long as a name can
be."""


@contextlib.contextmanager
def replacing(target: Path, *, mode: int = 0o666, durable: bool = False) -> Iterator[BinaryIO]:
    """A stream for the content of a file that appears under ``target``, in place of one that may be there,
    when the block ends without an error.

    Who has the former file open or mapped keeps it. ``mode`` is that of the new file, less the process's
    umask. With ``durable`` the file is on disk before it has its name, and the name before the block's end.
    Raises OSError, also for a target that is there and not a regular file.
    """
    _check_replaceable(target)
    remove_abandoned(target.parent)
    scratch, stream = _open_scratch(target.parent, mode)
    try:
        with stream:
            yield stream
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
            scratch.replace(target)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(target.parent)


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files of writers that are dead."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.name.endswith(SUFFIX):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(Path(entry.path))


def _check_replaceable(target: Path) -> None:
    """Renaming would put a file in the place of a device (``/dev/null``) or a pipe."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(target.stat().st_mode):
            raise OSError(f"it is {kind_of(target.stat().st_mode)}, not a regular file")


def _open_scratch(folder: Path, mode: int) -> tuple[Path, BinaryIO]:
    """A new temporary file, locked."""
    while True:
        scratch = folder / f"{PREFIX}{os.urandom(8).hex()}{SUFFIX}"
        descriptor = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with contextlib.suppress(OSError):  # a file system without locks: nobody can take it for abandoned
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return scratch, os.fdopen(descriptor, "w+b")
        os.close(descriptor)  # it was taken for abandoned before it was locked


def _remove_if_abandoned(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError while its writer lives
            path.unlink()
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems refuse it
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def kind_of(mode: int) -> str:
    """What kind of file a mode of `os.stat` describes, for messages."""
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "a special file")
