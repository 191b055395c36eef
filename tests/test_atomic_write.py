"""Files that appear whole, and what killed writers leave behind."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from mansard import atomic_write
from mansard.atomic_write import PREFIX, SUFFIX, remove_abandoned, replacing
from mansard.cache import Folder, write_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_appears_when_it_is_complete(tmp_path, durable):
    target = tmp_path / "file"
    for content in (b"first", b"second"):
        before = target.read_bytes() if target.exists() else None
        with replacing(target, durable=durable) as stream:
            stream.write(content)
            assert (target.read_bytes() if target.exists() else None) == before
        assert target.read_bytes() == content
    assert names(tmp_path) == ["file"]


def test_an_error_leaves_the_former_file(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"before")
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error), replacing(target) as stream:
            stream.write(b"half")
            raise error
    assert target.read_bytes() == b"before"
    assert names(tmp_path) == ["file"]


def test_the_mode_follows_the_umask(tmp_path):
    for mode, expected in ((0o666, 0o640), (0o600, 0o600)):
        before = os.umask(0o027)
        try:
            with replacing(tmp_path / "file", mode=mode):
                pass
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == expected


def test_only_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for target, what in (
        (tmp_path / "pipe", "a pipe"),
        (tmp_path, "a folder"),
        (Path("/dev/null"), "a device"),
    ):
        with pytest.raises(OSError, match=f"it is {what}, not a regular file"), replacing(target):
            pass
    assert names(tmp_path) == ["pipe"]


def _write_and_die(target: str) -> None:
    with replacing(Path(target)) as stream:
        stream.write(b"half")
        stream.flush()
        os._exit(9)


def test_what_a_dead_writer_left_goes_with_the_next_write(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(str(tmp_path / "a"),))
    process.start()
    process.join()
    assert [name.endswith(SUFFIX) for name in names(tmp_path)] == [True]
    with replacing(tmp_path / "b"), replacing(tmp_path / "c") as inner:
        inner.write(b"c")  # the outer writer lives, and keeps its file
    assert names(tmp_path) == ["b", "c"]


def test_what_is_not_ours_stays(tmp_path):
    (tmp_path / f"{PREFIX}x{SUFFIX}").mkdir()
    os.mkfifo(tmp_path / f"{PREFIX}y{SUFFIX}")
    (tmp_path / f"{PREFIX}z{SUFFIX}").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / ".other.tmp").write_bytes(b"")
    before = names(tmp_path)
    remove_abandoned(tmp_path)
    remove_abandoned(tmp_path / "missing")
    assert names(tmp_path) == before


def test_a_file_taken_for_abandoned_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    taken = []

    def lock(descriptor: int, operation: int) -> None:
        if not taken:
            taken.extend(tmp_path.iterdir())
            taken[0].unlink()
        fcntl.flock(descriptor, operation)

    monkeypatch.setattr(atomic_write, "fcntl", type("F", (), {**vars(fcntl), "flock": staticmethod(lock)}))
    with replacing(tmp_path / "file") as stream:
        stream.write(b"content")
    assert taken
    assert (tmp_path / "file").read_bytes() == b"content"
    assert names(tmp_path) == ["file"]


def test_without_locks_files_are_written_and_nothing_is_removed(tmp_path, monkeypatch):
    def lock(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(atomic_write, "fcntl", type("F", (), {**vars(fcntl), "flock": staticmethod(lock)}))
    (tmp_path / f"{PREFIX}x{SUFFIX}").write_bytes(b"")
    with replacing(tmp_path / "file"):
        pass
    assert names(tmp_path) == [f"{PREFIX}x{SUFFIX}", "file"]


def test_the_cache_forgets_what_killed_compilations_left(tmp_path, monkeypatch):
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))
    folder = Folder("kernels")
    folder.put("key", b"1")
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    dead, alive = (file.with_name(f"{PREFIX}{n}{SUFFIX}") for n in ("dead", "alive"))
    for path in (dead, alive):
        path.write_bytes(b"half")
    with alive.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        folder.trim()
        assert (dead.exists(), alive.exists(), file.exists()) == (False, True, True)
        write_file(file.with_name("other"), b"2")
        assert alive.exists()
    write_file(file.with_name("other"), b"2")
    assert not alive.exists()
