"""Files that change, vanish or are no files: what is mapped is guarded, what is copied is safe."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from support.plans.artifact import resources_for, two_device_plan

import mansard
from mansard.artifact.container import Container
from mansard.artifact.resources import WEIGHTS_ENTRY, read_artifact, write_artifact
from mansard.artifact.writing import create
from mansard.errors import ArtifactError

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def artifact(tmp_path):
    plan = two_device_plan()
    path = tmp_path / "m.mansard"
    write_artifact(path, plan, resources_for(plan))
    return path


@pytest.fixture(scope="module")
def compiled_file(tmp_path_factory):
    """A matrix product with a constant; columns 0, 3, 6 ... of the result are the sums of the rows."""
    path = tmp_path_factory.mktemp("model") / "m.mansard"
    compile_product(path, 1.0)
    return path


def compile_product(path: Path, value: float) -> None:
    import torch

    layer = torch.nn.Linear(4, 512, bias=False)
    with torch.no_grad():
        layer.weight.copy_(value * (1 + torch.arange(512) % 3).unsqueeze(1))
    with mansard.compile(layer, (torch.zeros(3, 4),), devices="cpu") as model:
        model.save(path)


# The header of the weights --------------------------------------------------------------------------


def rewrite_header(path: Path, change, *, rehash: bool) -> None:
    """Change the table of the weights' header in place, its length kept; with ``rehash`` also its hashes."""
    opened = Container(path)
    entry = opened.entry(WEIGHTS_ENTRY)
    length = int.from_bytes(entry[:8].tobytes(), "little")
    table = json.loads(entry[8 : 8 + length].tobytes())
    change(table)
    text = json.dumps(table, separators=(",", ":")).encode()
    assert len(text) <= length
    changed = entry[:8].tobytes() + text.ljust(length) + entry[8 + length :].tobytes()
    if not rehash:
        data = bytearray(path.read_bytes())
        start = entry.ctypes.data - opened.data.ctypes.data
        data[start : start + len(changed)] = changed
        path.write_bytes(data)
        return
    contents = {name: opened.entry(name).tobytes() for name in opened.names}
    with create(path) as writer:
        for name, content in contents.items():
            if name == WEIGHTS_ENTRY:
                writer.add(name, [changed], len(changed), header=changed[: 8 + length])
            elif name != "mansard-artifact":
                writer.add(name, [content], len(content))
        writer.finish({key: value for key, value in opened.manifest.items() if key != "entries"})


def swap(table):
    table["w"]["data_offsets"], table["__pad.24"]["data_offsets"] = (
        table["__pad.24"]["data_offsets"],
        table["w"]["data_offsets"],
    )


def move(table):
    table["w"]["data_offsets"] = [256, 280]


def beyond(table):
    table["w"]["data_offsets"] = [1 << 40, (1 << 40) + 24]


def text(table):
    table["w"]["data_offsets"] = "no"


@pytest.mark.parametrize("change", [swap, move, beyond, text])
def test_moved_weights_are_noticed_without_reading_them(artifact, change):
    rewrite_header(artifact, change, rehash=False)
    with pytest.raises(ArtifactError, match=r"weights\.safetensors"):
        read_artifact(artifact, verify="code")


@pytest.mark.parametrize("change", [move, beyond, text])
def test_headers_that_hold_no_tensors_are_refused_whatever_their_hash(artifact, change):
    rewrite_header(artifact, change, rehash=True)
    with pytest.raises(ArtifactError, match="weight"):
        read_artifact(artifact)


@pytest.mark.parametrize("offset", ["1e999", "NaN", "1.5", "true", '"1"', "[" * 3000 + "]" * 3000, "-256"])
def test_odd_offsets_are_refused(artifact, offset):
    data = artifact.read_bytes()
    opened = Container(artifact)
    length = int.from_bytes(opened.entry(WEIGHTS_ENTRY)[:8].tobytes(), "little")
    header = opened.entry(WEIGHTS_ENTRY)[8 : 8 + length].tobytes()
    new = header.replace(b'"data_offsets":[0,', b'"data_offsets":[' + offset.encode() + b",", 1)
    entry = len(new.rstrip()).to_bytes(8, "little") + new.rstrip()
    from mansard.artifact.weights import parse_header

    with pytest.raises(ArtifactError, match=r"no valid safetensors header|lies outside|starts at"):
        parse_header(np.frombuffer(entry, np.uint8), len(data))


@pytest.mark.parametrize(
    "record", [None, 3, {}, {"size": -1}, {"size": 1 << 70, "sha256": ""}, {"size": True}, {"size": 4096}]
)
def test_a_header_without_a_hash_is_refused(artifact, record):
    opened = Container(artifact)
    opened.manifest["entries"][WEIGHTS_ENTRY]["header"] = record
    with pytest.raises(ArtifactError, match=r"'weights\.safetensors' (has a broken record|does not match)"):
        opened.verify_header(WEIGHTS_ENTRY)


def test_weights_that_the_plan_wants_and_the_file_lacks_are_named_at_once(tmp_path):
    plan = two_device_plan()
    path = tmp_path / "m"
    write_artifact(path, plan, resources_for(plan))
    shapes = {"w": (2, 4), "b": (-1, -3)}
    for name, shape in shapes.items():
        weights = tuple(
            dataclasses.replace(spec, shape=shape) if spec.entry == name else spec for spec in plan.weights
        )
        with pytest.raises(ArtifactError, match=rf"weight '{name}'"):
            read_artifact(path)[1].check_weights(weights)
    missing = dataclasses.replace(plan.weights[0], entry="other")
    with pytest.raises(ArtifactError, match="lacks the weight 'other'"):
        read_artifact(path)[1].check_weights([missing])


# Files that change while they are in use -------------------------------------------------------------


def rewrite(path: Path) -> None:
    content = path.read_bytes()
    with path.open("r+b") as stream:
        stream.seek(len(content) // 2)
        stream.write(b"\0")


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("change", [rewrite, truncate])
def test_a_file_that_changes_before_its_weights_are_used_is_an_error(compiled_file, tmp_path, change):
    path = tmp_path / "m.mansard"
    shutil.copy(compiled_file, path)
    os.utime(path, ns=(0, 0))
    with mansard.load(path, devices="cpu") as model:
        change(path)
        with pytest.raises(ArtifactError, match=r"was changed while it was in use.*copy=True"):
            model(X)
        with pytest.raises(ArtifactError, match="was changed while it was in use"):
            model.save(tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("device", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
@pytest.mark.parametrize("change", [rewrite, truncate, Path.unlink])
def test_a_copied_file_may_change_or_vanish(tmp_path, change, device):
    import torch

    path = tmp_path / "m.mansard"
    layer = torch.nn.Linear(4, 512)
    with mansard.compile(layer, (torch.zeros(3, 4),), devices=device) as model:
        model.save(path)
    for verify in ("code", "full"):
        shutil.copy(path, tmp_path / "copy")
        with mansard.load(tmp_path / "copy", devices=device, verify=verify, copy=True) as model:
            change(tmp_path / "copy")
            assert np.allclose(model(X), layer(torch.from_numpy(X)).detach().numpy(), atol=1e-5)
            model.save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_a_file_that_another_one_replaces_stays_in_use(compiled_file, tmp_path):
    path = tmp_path / "m.mansard"
    shutil.copy(compiled_file, path)
    with mansard.load(path, devices="cpu") as model:
        compile_product(path, 2.0)
        assert np.array_equal(model(X)[:, 0], X.sum(axis=1))
        with mansard.load(path, devices="cpu") as new:
            assert np.array_equal(new(X)[:, 0], 2 * X.sum(axis=1))
        path.unlink()
        assert np.array_equal(model(X)[:, 3], X.sum(axis=1))


def test_a_model_can_be_saved_over_its_own_file(compiled_file, tmp_path):
    path = tmp_path / "m.mansard"
    shutil.copy(compiled_file, path)
    with mansard.load(path, devices="cpu") as model:
        model.save(path)
        assert np.array_equal(model(X)[:, 0], X.sum(axis=1))
    assert path.read_bytes() == compiled_file.read_bytes()


def test_copies_are_told_from_mapped_files_in_the_ledger(compiled_file):
    for copy, where in ((False, "mapped file"), (True, "memory")):
        with mansard.load(compiled_file, devices="cpu", copy=copy) as model:
            (row,) = [row for row in model.memory() if row.what == "weights"]
            assert (row.kind, row.how) == ("mapped", where)
    with pytest.raises(ArtifactError, match="copy=1 is a int; it must be True or False"):
        mansard.load(compiled_file, copy=1)


def test_a_closed_model_holds_no_file(compiled_file):
    def descriptors() -> int:
        return sum(
            str(Path(f"/proc/self/fd/{n}").readlink()) == str(compiled_file) for n in open_descriptors()
        )

    for copy in (False, True):
        model = mansard.load(compiled_file, devices="cpu", copy=copy)
        assert descriptors() == (0 if copy else 2)
        model.close()
        del model
        assert descriptors() == 0


def open_descriptors() -> list[str]:
    return [entry.name for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]


# What is no file --------------------------------------------------------------------------------------


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(tmp_path / "socket"))
        places = {
            tmp_path: "a folder",
            tmp_path / "pipe": "a pipe",
            tmp_path / "socket": "cannot be read",
            Path("/dev/zero"): "a device",
            Path("/dev/null"): "a device",
        }
        for path, what in places.items():
            with pytest.raises(ArtifactError, match=what):
                mansard.load(path)
            with pytest.raises(ArtifactError, match="could not be written: it is a"):
                write_artifact(path, two_device_plan(), resources_for(two_device_plan()))
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, "None is a NoneType, not the path of a file"),
        (3, "not the path of a file"),
        ("", "is empty"),
        ("a\0b", "NUL"),
        (b"a\0b", "NUL"),
        ("a\ud800b", "surrogates not allowed"),
        (b"\xff\xfe", "there is no file"),
        ("x" * 230, "there is no file"),
        ("x" * 300, "File name too long"),
        ("/".join(["x" * 200] * 30), "File name too long"),
    ],
)
def test_odd_paths_are_explained(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError, match=message):
        mansard.load(path)


@pytest.mark.parametrize(
    "name", ["x" * 230, "x" * 255, "é" * 127, os.fsdecode(b"\xff\xfe.mansard"), "a\nb", "-"]
)
def test_any_name_that_the_file_system_takes_can_be_written(tmp_path, name):
    plan = two_device_plan()
    for path in (tmp_path / name, os.fsencode(tmp_path / name)):
        write_artifact(path, plan, resources_for(plan))
        assert read_artifact(path)[0] == plan
    assert len(list(tmp_path.iterdir())) == 1


# Writers that are killed -------------------------------------------------------------------------------

SAVE_FOR_EVER = textwrap.dedent("""
    import sys
    from support.plans.artifact import resources_for, two_device_plan
    from mansard.artifact.resources import write_artifact
    def progress(done, total):
        print("writing", flush=True)
        sys.stdin.read()
    write_artifact(sys.argv[1], two_device_plan(), resources_for(two_device_plan()), progress)
""")


def test_the_next_save_removes_what_a_killed_one_has_left(artifact):
    before = artifact.read_bytes()
    path = os.pathsep.join(["tests", *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", SAVE_FOR_EVER, str(artifact)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as writer:
        assert writer.stdout.readline() == b"writing\n"
        (scratch,) = artifact.parent.glob(".mansard-*.tmp")
        plan = two_device_plan()
        write_artifact(artifact.with_name("other"), plan, resources_for(plan))
        assert scratch.exists(), "its writer lives"
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert scratch.exists()
        write_artifact(artifact.with_name("other"), plan, resources_for(plan))
    assert sorted(p.name for p in artifact.parent.iterdir()) == ["m.mansard", "other"]
    assert artifact.read_bytes() == before
