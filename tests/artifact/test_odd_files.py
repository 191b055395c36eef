"""Hundreds of odd files: whatever a ZIP can be made to say, loading gives what was saved or an ArtifactError,
and the commands end with one line."""

from __future__ import annotations

import itertools
import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command_line import invoke
from support.plans.artifact import resources_for, two_device_plan

import mansard
from mansard.artifact.container import MANIFEST, Container
from mansard.artifact.resources import WEIGHTS_ENTRY, read_artifact, write_artifact
from mansard.artifact.writing import create
from mansard.errors import ArtifactError, MansardError

ODD_32 = (0, 1, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF)
ODD_16 = (0, 1, 8, 99, 0x7FFF, 0xFFFF)
# field: (offset in the header, format, odd values); PKWARE's APPNOTE.TXT 4.3.7, 4.3.12, 4.3.16
CENTRAL = {
    "made by": (4, "<H", ODD_16),
    "needs": (6, "<H", ODD_16),
    "flags": (8, "<H", (0x1, 0x8, 0x20, 0x40, 0x800, 0x2000, 0xFFFF)),  # encrypted, streamed, patched …
    "method": (10, "<H", (1, 8, 9, 12, 14, 93, 99, 0xFFFF)),  # shrunk, deflated, … zstd, AES
    "crc": (16, "<I", ODD_32),
    "packed": (20, "<I", ODD_32),
    "size": (24, "<I", ODD_32),
    "name length": (28, "<H", ODD_16),
    "extra length": (30, "<H", ODD_16),
    "comment length": (32, "<H", ODD_16),
    "disk": (34, "<H", ODD_16),
    "attributes": (38, "<I", (0o120777 << 16, 0o040755 << 16 | 0x10, 0o020666 << 16, 0o010666 << 16)),
    "header offset": (42, "<I", ODD_32),
}  # fmt: skip
LOCAL = {
    "signature": (0, "<I", ODD_32),
    "flags": (6, "<H", ODD_16),
    "method": (8, "<H", ODD_16),
    "packed": (18, "<I", ODD_32),
    "size": (22, "<I", ODD_32),
    "name length": (26, "<H", ODD_16),
    "extra length": (28, "<H", ODD_16),
}
END = {
    "disk": (4, "<H", ODD_16),
    "disk of the directory": (6, "<H", ODD_16),
    "entries here": (8, "<H", ODD_16),
    "entries": (10, "<H", ODD_16),
    "directory size": (12, "<I", ODD_32),
    "directory offset": (16, "<I", ODD_32),
    "comment length": (20, "<H", ODD_16),
}
NAMES = (b"\0", b"\xff", b"/", b"..", b"\\", b" ", b"\xed\xa0\x80")


def set_field(data: bytes, at: int, field: tuple[int, str, Any], value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(field[1], changed, at + field[0], value)
    return bytes(changed)


def places(data: bytes, signature: bytes) -> list[int]:
    """Where headers with a signature start."""
    starts, at = [], data.find(signature)
    while at >= 0:
        starts.append(at)
        at = data.find(signature, at + 1)
    return starts


def odd_headers(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Every field of every header with every odd value."""
    for kind, signature, fields in (
        ("central", b"PK\1\2", CENTRAL),
        ("local", b"PK\3\4", LOCAL),
        ("end", b"PK\5\6", END),
    ):
        for number, start in enumerate(places(data, signature)):
            for name, field in fields.items():
                for value in field[2]:
                    yield f"{kind} {number} {name} {value:#x}", set_field(data, start, field, value)
    for number, start in enumerate(places(data, b"PK\1\2")):
        for name in NAMES:
            yield f"name {number} {name!r}", data[: start + 46] + name + data[start + 46 + len(name) :]


def odd_64_bit_ends(data: bytes) -> Iterator[tuple[str, bytes]]:
    """64-bit records in front of the end, that point and count wherever they like."""
    (end,) = places(data, b"PK\5\6")
    count, size, start = struct.unpack_from("<HII", data, end + 10)
    for offset in (0, end, 1 << 40, (1 << 64) - 1, end - 56):
        for fields in (
            (count, size, start),
            (1 << 63, size, start),
            (count, 1 << 63, 0),
            (0, 0, (1 << 64) - 1),
        ):
            record = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, fields[0], *fields)
            locator = struct.pack("<4sIQI", b"PK\6\7", 0, offset, 1)
            yield f"zip64 at {offset:#x} {fields}", data[:end] + record + locator + data[end:]
            yield f"locator at {offset:#x} {fields}", data[:end] + locator + data[end:]


def odd_lengths(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Cut, padded, moved and doubled files, and directories without their entries and the reverse."""
    for part in range(0, 40):
        yield f"cut {part}", data[: len(data) * part // 40]
    first = places(data, b"PK\1\2")[0]
    end = places(data, b"PK\5\6")[0]
    yield "in front", b"#!/bin/sh\n" + data
    yield "page in front", bytes(4096) + data
    yield "behind", data + b"\0"
    yield "doubled", data * 2
    yield "no directory", data[:first] + data[end:]
    yield "directory alone", data[first:]
    yield "two directories", data[:end] + data[first:]
    yield "zeros", bytes(len(data))
    yield "a hole in the middle", data[:4096] + bytes(first - 4096) + data[first:]


def rebuilt(path: Path, good: Container, contents: dict[str, bytes]) -> bytes:
    """An artifact with these entries whose hashes are right."""
    with create(path) as writer:
        for name, content in contents.items():
            header = content[: 8 + int.from_bytes(content[:8], "little")] if name == WEIGHTS_ENTRY else None
            writer.add(name, [content], len(content), header=header)
        writer.finish({key: value for key, value in good.manifest.items() if key != "entries"})
    return path.read_bytes()


def odd_entries(path: Path) -> Iterator[tuple[str, bytes]]:
    """Every entry left out, renamed, cut, longer, and replaced by odd texts; hashes are right."""
    good = Container(path)
    contents = {name: good.entry(name).tobytes() for name in good.names if name != "mansard-artifact"}
    scratch = path.with_name("rebuilt")
    texts = (
        b"",
        b"{}",
        b"[]",
        b"null",
        b"[" * 5000,
        b"\xff\xfe",
        b'"\\ud800"',
        b"1" * 5000,
        b'{"a":1e999}',
        b"NaN",
    )
    for name, content in contents.items():
        rest = {other: data for other, data in contents.items() if other != name}
        yield f"without {name}", rebuilt(scratch, good, rest)
        yield f"{name} renamed", rebuilt(scratch, good, {**rest, f"../{name}": content})
        yield f"{name} is cut", rebuilt(scratch, good, {**rest, name: content[: len(content) // 2]})
        yield f"{name} is longer", rebuilt(scratch, good, {**rest, name: content + b"\0"})
        for text in texts:
            yield f"{name} is {text[:9]!r}", rebuilt(scratch, good, {**rest, name: text})
    for name in ("", "x" * 60_000, "/etc/passwd", "folder/", "plan.json/", "é"):
        yield f"with {name[:20]!r}", rebuilt(scratch, good, {**contents, name: b"x"})


def odd_zips(path: Path, data: bytes) -> Iterator[tuple[str, bytes]]:
    """What the standard library can be asked to write with the same entries."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
        comment = archive.comment
    scratch = path.with_name("zip")
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(scratch, "w", method) as archive:
            for name, content in entries.items():
                archive.writestr(name, content)
            archive.comment = comment
        yield f"written with method {method}", scratch.read_bytes()
    for odd in (
        b"",
        b"mansard-artifact",
        comment[:-1] + b"!",
        comment.replace(b" 2 ", b" " + b"9" * 300 + b" "),
    ):
        (end,) = places(data, b"PK\5\6")
        yield f"comment {odd[:30]!r}", data[: end + 20] + struct.pack("<H", len(odd)) + odd


def manifests(path: Path) -> Iterator[tuple[str, bytes]]:
    """Manifests with odd records, their hash made right."""
    from mansard.artifact import writing

    good = Container(path)
    contents = {name: good.entry(name).tobytes() for name in good.names if name != "mansard-artifact"}
    for odd in (
        None,
        3,
        "x",
        [],
        {},
        {"size": 10**30},
        {"size": True, "sha256": "x"},
        {"sha256": 3, "size": 1},
    ):
        for name in good.names:
            scratch = path.with_name("manifest")
            with writing.create(scratch) as writer:
                for other, content in contents.items():
                    header = content[:4096] if other == WEIGHTS_ENTRY else None
                    writer.add(other, [content], len(content), header=header)
                writer._entries[name] = odd
                writer.finish({"name": "m"})
            yield f"manifest of {name}: {odd}", scratch.read_bytes()


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    plan = two_device_plan()
    path = tmp_path / "m.mansard"
    write_artifact(path, plan, resources_for(plan))
    return path


def every_odd_file(path: Path) -> Iterator[tuple[str, bytes]]:
    data = path.read_bytes()
    for files in (odd_headers, odd_64_bit_ends, odd_lengths):
        yield from files(data)
    yield from odd_entries(path)
    yield from odd_zips(path, data)
    yield from manifests(path)


# Headers, ends and entries of every kind are among every second file.
@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_odd_files_are_what_was_saved_or_an_error(artifact: Path, step: int) -> None:
    plan = two_device_plan()
    original = resources_for(plan)
    weights = [original.load(spec).tobytes() for spec in plan.weights]
    odd = artifact.with_name("odd")
    outcomes = {"same": 0, "refused": 0}
    for label, data in itertools.islice(every_odd_file(artifact), 0, None, step):
        odd.write_bytes(data)
        for copy in (False, True):
            try:
                loaded, resources = read_artifact(odd, verify="full", copy=copy)
            except ArtifactError as error:
                assert 10 < len(str(error)) < 2000 + len(str(odd)), label
                outcomes["refused"] += 1
            else:
                assert loaded == plan, label
                assert [resources.load(spec).tobytes() for spec in plan.weights] == weights, label
                outcomes["same"] += 1
    assert outcomes["refused"] > 700 / step, outcomes
    assert outcomes["same"] > 100 / step, outcomes


# One in seven takes a third of a minute. Far more odd files of another model are read above.
@pytest.mark.parametrize("step", [47, pytest.param(7, marks=pytest.mark.slow)])
def test_commands_and_load_end_with_a_line(tmp_path: Path, step: int) -> None:
    """A model of one product, and one in ``step`` of its odd files. Not those with other code and right
    hashes: a file is a program."""
    path, odd = tmp_path / "m.mansard", tmp_path / "odd"
    with mansard.compile(torch.nn.Linear(4, 4), (torch.zeros(2, 4),), devices="cpu") as model:
        model.save(path)
        expected = model(np.ones((2, 4), np.float32))
    commands: list[Callable[[], Any]] = [
        lambda: invoke("run", odd, "--input", "2x4xf32=1"),
        lambda: invoke("explain", odd),
        lambda: invoke("simulate", odd),
        lambda: invoke("devices", "--artifact", odd),
    ]
    for number, (label, data) in enumerate(every_odd_file(path)):
        if number % step or (label.startswith("kernels/") and " is " in label and ".json" not in label):
            continue
        odd.write_bytes(data)
        try:
            with mansard.load(odd, verify="full") as loaded:
                assert np.array_equal(loaded(np.ones((2, 4), np.float32)), expected), label
        except MansardError:
            pass
        result = commands[number // step % len(commands)]()
        assert result.exception is None or isinstance(result.exception, SystemExit), (label, result.exception)
        if result.exit_code:
            (line,) = result.stderr.strip().splitlines()
            assert line.startswith("mansard: "), label


def test_the_manifest_is_compared_with_the_entries(artifact: Path) -> None:
    opened = Container(artifact)
    assert json.loads(opened.entry(MANIFEST).tobytes())["entries"].keys() == set(opened.names)
