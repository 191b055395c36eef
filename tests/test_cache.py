"""The cache on disk: what it keeps, what it forgets, and what it makes of damage."""

import multiprocessing
import os
from pathlib import Path

import pytest

from mansard.cache import Folder, cache_directory, read_file, write_file


def test_cache_directory(monkeypatch):
    monkeypatch.setenv("MANSARD_CACHE_DIR", "/somewhere")
    assert cache_directory() == Path("/somewhere")
    monkeypatch.delenv("MANSARD_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_directory() == Path("/cache/mansard")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "mansard"


def test_a_file_comes_back(tmp_path):
    path = tmp_path / "sub" / "data.bin"
    assert read_file(path) is None
    write_file(path, b"some data")
    assert read_file(path) == b"some data"
    write_file(path, b"newer")
    assert read_file(path) == b"newer"
    assert [p.name for p in path.parent.iterdir()] == ["data.bin"], "no temporary file stays"


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign"])
def test_a_damaged_file_is_ignored(tmp_path, damage):
    path = tmp_path / "data.bin"
    write_file(path, bytes(range(200)))
    whole = path.read_bytes()
    path.write_bytes({
        "cut": whole[:-1],
        "flip": whole[:-1] + bytes([whole[-1] ^ 1]),
        "empty": b"",
        "foreign": b"#!/bin/sh\n" * 30,
    }[damage])  # fmt: skip
    assert read_file(path) is None


def test_an_unwritable_place_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    write_file(tmp_path / "file" / "data.bin", b"data")
    assert read_file(tmp_path / "file" / "data.bin") is None


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_a_folder_counts_hits_and_misses(root):
    folder = Folder("kernels")
    assert folder.get("a key\nof two lines") is None
    folder.put("a key\nof two lines", b"1")
    assert folder.get("a key\nof two lines") == b"1"
    assert Folder("kernels").get("a key\nof two lines") == b"1"
    assert Folder("other").get("a key\nof two lines") is None
    assert (folder.counts.hits, folder.counts.misses) == (1, 1)


def test_a_damaged_entry_is_written_anew(root):
    folder = Folder("kernels")
    folder.put("key", b"good")
    (file,) = (p for p in root.rglob("*") if p.is_file())
    file.write_bytes(b"bad")
    assert folder.get("key") is None
    folder.put("key", b"good")
    assert folder.get("key") == b"good"


def test_what_was_unused_for_longest_goes_first(root):
    folder = Folder("kernels", limit=10_000)
    for number in range(12):
        before = {p for p in root.rglob("*") if p.is_file()}
        folder.put(f"key {number}", bytes(1000))
        (entry,) = {p for p in root.rglob("*") if p.is_file()} - before
        os.utime(entry, (1e9 + number, 1e9 + number))
    assert folder.get("key 0") is not None, "reading marks as used"
    folder.trim()
    kept = [n for n in range(12) if Folder("kernels").get(f"key {n}") is not None]
    assert kept[0] == 0 and kept[1:] == list(range(12 - len(kept) + 1, 12))
    assert sum(p.stat().st_size for p in root.rglob("*") if p.is_file()) <= 9_000


def test_abandoned_scratch_files_are_removed(root):
    folder = Folder("kernels")
    folder.put("key", b"1")
    (file,) = (p for p in root.rglob("*") if p.is_file())
    old, new = file.with_name(".x1.tmp"), file.with_name(".x2.tmp")
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    folder.trim()
    assert not old.exists() and new.exists() and file.exists()


def test_a_folder_is_looked_through_only_when_much_was_written(root):
    folder = Folder("kernels", limit=10_000)
    folder.put("key", b"1")
    folder.trim()
    (file,) = (p for p in root.rglob("*") if p.is_file())
    old = file.with_name(".x1.tmp")
    old.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    Folder("kernels", limit=10_000).put("other", bytes(1000))
    folder.trim()
    assert old.exists()
    folder.put("third", bytes(2000))
    Folder("kernels", limit=10_000).trim()
    assert not old.exists()


def _write_and_read(root: str, number: int) -> int:
    os.environ["MANSARD_CACHE_DIR"] = root
    folder = Folder("kernels", limit=20_000)
    for turn in range(40):
        key = f"key {turn % 10}"
        folder.put(key, key.encode() * 200)
        value = folder.get(f"key {(turn + number) % 10}")
        if value is not None and value != f"key {(turn + number) % 10}".encode() * 200:
            return -1
        if turn % 8 == 0:
            folder.trim()
    return folder.counts.hits


def test_processes_share_a_folder(root):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        hits = pool.starmap(_write_and_read, [(str(root), 1), (str(root), 3)])
    assert all(count > 0 for count in hits)
