"""The artifact file: what is written is read back; everything else is refused with a clear error."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.plans.artifact import resources_for, two_device_plan, weight_array

from mansard.artifact import container as container_module
from mansard.artifact import writing
from mansard.artifact.container import MANIFEST, PAGE, Container
from mansard.artifact.directory import DirectoryError, read_directory
from mansard.artifact.resources import MemoryResources, read_artifact, write_artifact
from mansard.artifact.writing import create
from mansard.dtypes import DType
from mansard.errors import ArtifactError
from mansard.plan.check import check_plan
from mansard.plan.plan import Plan, Segment, WeightSpec
from mansard.plan.serialise import plan_from_json, plan_to_json


@pytest.fixture
def artifact(tmp_path):
    plan = two_device_plan()
    path = tmp_path / "m.mansard"
    write_artifact(path, plan, resources_for(plan))
    return path


def test_a_plan_survives_json():
    plan = two_device_plan()
    assert plan_from_json(plan_to_json(plan)) == plan


def test_infinite_costs_survive_as_text():
    plan = two_device_plan()
    decision = dataclasses.replace(plan.decisions[0], costs={"cpu": float("inf")})
    text = plan_to_json(dataclasses.replace(plan, decisions=(decision,)))
    assert plan_from_json(text).decisions[0].costs == {"cpu": "inf"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"dtype":"f32"', '"dtype":"f33"'),
        ('"step":"transfer"', '"step":"teleport"'),
        ('"step":"barrier"', '"stop":"barrier"'),
        ('"kind":"input"', '"kind":7'),
        ('"12*n"', '"12*m"'),
        ('"12*n"', '"__import__(1)"'),
        ('"12*n"', "1.5"),
        ('"shared":true', '"shared":1'),
        ('"values":[', '"values":3,"x":['),
        ('{"name":"demo"', '["name","demo"'),
        ('"label":"double"', '"labels":"double"'),
    ],
)
def test_a_malformed_plan_is_refused(old, new):
    text = plan_to_json(two_device_plan())
    assert old in text
    with pytest.raises(ArtifactError):
        plan_from_json(text.replace(old, new, 1))


def test_fields_are_read_by_their_former_names() -> None:
    plan = two_device_plan()
    devices = tuple(dataclasses.replace(device, product_names=("H200",)) for device in plan.devices)
    decisions = tuple(dataclasses.replace(each, other_operations=3) for each in plan.decisions)
    plan = dataclasses.replace(plan, devices=devices, decisions=decisions)
    text = plan_to_json(plan)
    former = text.replace('"product_names"', '"made_for"').replace('"other_operations"', '"beside"')
    assert former.count("made_for") == len(devices)
    assert former.count("beside") == len(decisions)
    assert plan_from_json(former) == plan


def test_reading_gives_back_plan_code_and_weights(artifact):
    plan, resources = read_artifact(artifact)
    assert plan == two_device_plan()
    written = resources_for(plan)
    for device in plan.devices:
        for ref in device.executables:
            assert bytes(resources.code(ref.entry)) == written.code(ref.entry)
    for spec in plan.weights:
        assert resources.load(spec).tobytes() == written.load(spec).tobytes()
    (block,) = resources.blocks(plan.weights)
    for spec in plan.weights:
        start = block.offsets[spec.entry]
        assert block.data[start:].tobytes().startswith(written.load(spec).tobytes())
        assert start % 256 == 0
    assert block.data.ctypes.data % PAGE == 0
    assert block.data.size % PAGE == 0


def test_four_bit_weights_are_packed_low_nibble_first():
    spec = WeightSpec("q", DType.I4, (5,))
    packed = MemoryResources({}, [(spec, lambda: weight_array(spec))]).load(spec)
    assert packed.tolist() == [0xED, 0x0F, 0x01]  # -3 -2 | -1 0 | 1


def test_a_weight_of_the_wrong_size_is_refused(tmp_path):
    spec = WeightSpec("w", DType.F32, (4,), "net.w")
    good = two_device_plan()
    values = tuple(dataclasses.replace(v, bytes=16) if v.weight == 0 else v for v in good.values)
    plan = dataclasses.replace(good, weights=(spec, *good.weights[1:]), values=values)
    resources = MemoryResources({}, [(spec, lambda: np.zeros(3, np.float32))])
    with pytest.raises(ArtifactError, match=r"net\.w.*12 bytes.*needs 16"):
        resources.load(spec)
    with pytest.raises(ArtifactError, match="lacks the executable"):
        write_artifact(tmp_path / "m", plan, resources)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_write_leaves_the_old_file(artifact):
    before = artifact.read_bytes()
    plan = two_device_plan()
    good = resources_for(plan)

    def fail() -> np.ndarray:
        raise RuntimeError("disk on fire")

    bad = MemoryResources(
        {r.entry: good.code(r.entry) for d in plan.devices for r in d.executables},
        [(spec, fail) for spec in plan.weights],
    )
    with pytest.raises(RuntimeError, match="on fire"):
        write_artifact(artifact, plan, bad)
    assert artifact.read_bytes() == before
    assert list(artifact.parent.iterdir()) == [artifact]


def test_equal_models_give_equal_files(artifact, tmp_path):
    plan = two_device_plan()
    write_artifact(tmp_path / "again", plan, resources_for(plan))
    assert (tmp_path / "again").read_bytes() == artifact.read_bytes()


def test_progress_ends_at_the_total(tmp_path):
    seen = []
    plan = two_device_plan()
    write_artifact(tmp_path / "m", plan, resources_for(plan), lambda done, total: seen.append((done, total)))
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)
    assert seen[-1][0] == seen[-1][1]


def test_ordinary_tools_read_the_container(artifact, tmp_path):
    with zipfile.ZipFile(artifact) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        archive.extract("weights.safetensors", tmp_path)
        manifest = archive.read(MANIFEST)
    listing = subprocess.run(["unzip", "-l", artifact], capture_output=True, text=True, check=True).stdout
    assert all(name in listing for name in names)
    from safetensors import safe_open

    with safe_open(tmp_path / "weights.safetensors", "np") as weights:
        assert weights.get_tensor("w").tolist() == weight_array(two_device_plan().weights[0]).tolist()
        assert weights.get_tensor("none").shape == (0,)
        assert weights.get_slice("b").get_dtype() == "BF16"
    digest = hashlib.sha256((tmp_path / "weights.safetensors").read_bytes()).hexdigest()
    assert digest.encode() in manifest


def test_entries_start_on_pages(artifact):
    opened = Container(artifact)
    for name in (*opened.names, MANIFEST):
        assert (opened.entry(name).ctypes.data - opened.data.ctypes.data) % PAGE == 0


# Corruption ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.0001, 0.01, 0.3, 0.6, 0.99, 0.9999])
def test_a_truncated_file_says_so(artifact, part):
    data = artifact.read_bytes()
    artifact.write_bytes(data[: max(1, int(len(data) * part))])
    with pytest.raises(
        ArtifactError, match=r"truncated|not a Mansard artifact" if part < 0.001 else "truncated"
    ):
        read_artifact(artifact)


def test_a_flipped_byte_names_the_entry(artifact):
    opened = Container(artifact)
    good = artifact.read_bytes()
    for name in (*opened.names, MANIFEST):
        span = opened.entry(name)
        start = span.ctypes.data - opened.data.ctypes.data
        for position in (start, start + span.size // 2, start + span.size - 1):
            bad = bytearray(good)
            bad[position] ^= 0x40
            artifact.write_bytes(bad)
            with pytest.raises(ArtifactError, match=re.escape(repr(name))):
                read_artifact(artifact, verify="full")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_goes_through(artifact, data):
    """Any flipped bit either does not matter (padding) or raises ArtifactError; no other exception."""
    good = artifact.read_bytes()
    # The directory and the comment, at the end, are the richest in meaning.
    position = data.draw(
        st.one_of(st.integers(0, len(good) - 1), st.integers(len(good) - 900, len(good) - 1))
    )
    bad = bytearray(good)
    bad[position] ^= 1 << data.draw(st.integers(0, 7))
    damaged = artifact.with_name("damaged")
    damaged.write_bytes(bad)
    try:
        plan, resources = read_artifact(damaged, verify=True)
    except ArtifactError:
        return
    original = resources_for(plan)
    assert plan == two_device_plan()
    assert all(resources.load(s).tobytes() == original.load(s).tobytes() for s in plan.weights)


def test_code_is_verified_even_when_weights_are_not(artifact):
    opened = Container(artifact)
    good = artifact.read_bytes()
    for name, raises in (("weights.safetensors", False), ("kernels/0.bin", True), ("plan.json", True)):
        bad = bytearray(good)
        bad[opened.entry(name).ctypes.data - opened.data.ctypes.data + opened.entry(name).size - 1] ^= 1
        artifact.write_bytes(bad)
        if raises:
            with pytest.raises(ArtifactError, match=name):
                read_artifact(artifact)
        else:
            read_artifact(artifact)
            read_artifact(artifact, verify=False)
            with pytest.raises(ArtifactError, match=name):
                read_artifact(artifact, verify=True)
    with pytest.raises(ArtifactError, match="verify is 'some'"):
        read_artifact(artifact, verify="some")


def test_sources_are_checked_when_they_are_read(tmp_path):
    plan, path = two_device_plan(), tmp_path / "m"
    resources = resources_for(plan)
    blobs = {ref.entry: resources.code(ref.entry) for device in plan.devices for ref in device.executables}
    loads = [(spec, lambda spec=spec: weight_array(spec)) for spec in plan.weights]
    write_artifact(path, plan, MemoryResources(blobs, loads, b"made from this"))
    assert read_artifact(path)[1].sources() == b"made from this"
    path.write_bytes(path.read_bytes().replace(b"made from this", b"made from that"))
    opened = read_artifact(path)[1]
    with pytest.raises(ArtifactError, match="sources"):
        opened.sources()
    with pytest.raises(ArtifactError, match="sources"):
        read_artifact(path, verify="full")
    assert resources.sources() is None


def test_foreign_files_are_named_as_such(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"")
    with pytest.raises(ArtifactError, match="empty"):
        read_artifact(path)
    path.write_bytes(bytes(range(256)) * 40)
    with pytest.raises(ArtifactError, match="not a Mansard artifact"):
        read_artifact(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello.txt", "hello")
    with pytest.raises(ArtifactError, match="a ZIP file, but not a Mansard artifact"):
        read_artifact(path)
    with pytest.raises(ArtifactError, match="no file"):
        read_artifact(tmp_path / "missing")
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_artifact(tmp_path)
    with pytest.raises(ArtifactError, match="could not be written"):
        write_artifact(tmp_path / "no" / "such", two_device_plan(), resources_for(two_device_plan()))


def test_a_newer_format_asks_for_an_update(tmp_path, monkeypatch):
    path = tmp_path / "m"
    plan = two_device_plan()
    with monkeypatch.context() as patch:
        patch.setattr(writing, "FORMAT_VERSION", 99)
        write_artifact(path, plan, resources_for(plan))
    with pytest.raises(ArtifactError, match=r"newer Mansard \(format 99"):
        read_artifact(path)


def test_an_older_format_asks_for_another_compilation(tmp_path, monkeypatch):
    path = tmp_path / "m"
    plan = two_device_plan()
    with monkeypatch.context() as patch:
        patch.setattr(writing, "FORMAT_VERSION", 1)
        write_artifact(path, plan, resources_for(plan))
    with pytest.raises(ArtifactError, match=r"older Mansard \(format 1; .* compile the model again"):
        read_artifact(path)


def test_missing_and_added_entries_are_found(artifact):
    with zipfile.ZipFile(artifact) as archive:
        comment = archive.comment
    opened = Container(artifact)
    content = {name: opened.entry(name).tobytes() for name in (*opened.names, MANIFEST)}
    for change, message in (("drop", "lacks the entry 'kernels/1.spv'"), ("add", "unlisted entry 'evil'")):
        entries = {**content, "evil": b"x"} if change == "add" else {**content}
        if change == "drop":
            del entries["kernels/1.spv"]
        with create(artifact) as writer:
            for name, data in entries.items():
                if name not in (MANIFEST, "mansard-artifact"):
                    writer.add(name, [data], len(data))
            writer._write(MANIFEST, [entries[MANIFEST]], len(entries[MANIFEST]))
            writer._zip.comment = comment
        with pytest.raises(ArtifactError, match=message):
            read_artifact(artifact)


def test_data_after_the_end_is_refused(artifact):
    artifact.write_bytes(artifact.read_bytes() + b"tail")
    with pytest.raises(ArtifactError):
        read_artifact(artifact)


@pytest.mark.parametrize("lean", [0, 1 << 20])
def test_large_entries_are_hashed_in_chunks(tmp_path, monkeypatch, lean):
    for module in (container_module, writing):
        monkeypatch.setattr(module, "HASH_CHUNK", 1000)
    monkeypatch.setattr(container_module, "_LEAN_BYTES", lean)
    monkeypatch.setattr(writing, "_ZIP64_FROM", 2000)
    content = bytes(range(250)) * 10
    path = tmp_path / "c"
    with create(path) as writer:
        writer.add("big", [content[:1], memoryview(content)[1:1700], content[1700:]], len(content))
        writer.finish({})
    opened = Container(path)
    assert len(opened.manifest["entries"]["big"]["chunks"]) == 3
    assert opened.manifest["entries"]["big"]["sha256"] == hashlib.sha256(content).hexdigest()
    opened.verify(opened.names)
    assert opened.entry("big").tobytes() == content
    opened.entry("big")[2400] ^= 1  # copy on write: the file stays as it is
    with pytest.raises(ArtifactError, match="'big'"):
        opened.verify(["big"])
    Container(path).verify(["big"])


def test_the_directory_reads_as_the_standard_library_reads_it(artifact, tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 2)  # 64-bit records for a small file
    wide = tmp_path / "wide.zip"
    with zipfile.ZipFile(wide, "w") as archive:
        for number in range(5):
            archive.writestr(f"entry {number}", bytes(60 * number))
        archive.comment = b"a comment"
    for path in (artifact, wide):
        with zipfile.ZipFile(path) as archive:
            wanted = [(i.filename, i.compress_type, i.header_offset, i.file_size) for i in archive.infolist()]
            comment = archive.comment
        entries, comment_read = read_directory(np.fromfile(path, dtype=np.uint8))
        assert [(e.name, e.method, e.header, e.size) for e in entries] == wanted
        assert comment_read == comment


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_of_a_directory_is_one_error(artifact, data):
    good = np.fromfile(artifact, dtype=np.uint8)
    for _ in range(data.draw(st.integers(1, 4))):
        good[-data.draw(st.integers(1, 900))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DirectoryError):
        read_directory(good[data.draw(st.sampled_from([0, 0, 1, 4096])) :])


def test_checking_everything_keeps_nothing_in_memory(tmp_path):
    path, size = tmp_path / "large", 48 << 20
    with create(path) as writer:
        writer.add("big", [bytes(1 << 20) for _ in range(48)], size)
        writer.finish({})
    opened = Container(path)
    opened.verify(["big"])
    before, anonymous = resident(opened)
    assert before < size // 8
    assert anonymous < size // 8
    assert not opened.entry("big").any()
    after, anonymous = resident(opened)
    assert after >= size  # reading it maps it, and still makes no copy
    assert anonymous < size // 8


def resident(opened: Container) -> tuple[int, int]:
    """Bytes of an artifact's mapping that are in memory, and those of them that are private copies."""
    name = str(opened.path)
    blocks = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    fields = [dict(re.findall(r"^(\w+): +(\d+) kB", b, re.M)) for b in blocks if name in b.split("\n")[0]]
    assert fields
    return sum(int(f["Rss"]) for f in fields) << 10, sum(int(f["Anonymous"]) for f in fields) << 10


# Plan checks --------------------------------------------------------------------------------------


def _broken(**changes) -> Plan:
    return dataclasses.replace(two_device_plan(), **changes)


def _with_value(**changes) -> Plan:
    plan = two_device_plan()
    return _broken(values=(dataclasses.replace(plan.values[0], **changes), *plan.values[1:]))


def _with_wait(wait) -> Plan:
    cpu, gpu = two_device_plan().devices
    return _broken(devices=(dataclasses.replace(cpu, segments=(Segment(wait, cpu.segments[0].steps),)), gpu))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (_with_value(id=1), "twice"),
        (_with_value(kind="magic"), "unknown kind"),
        (_with_value(device=2), "device slot"),
        (_with_value(kind="transient"), "bound to a value of kind transient"),
        (_broken(inputs=()), "no input names it"),
        (_broken(weights=()), "weight of"),
        (_broken(states=((2, 9),)), "missing value 9"),
        (_with_wait(((1, 0),)), "circle"),
        (_with_wait(((0, 5),)), "segment of a wait"),
        (_with_wait(((7, 0),)), "device slot of a wait"),
    ],
)
def test_an_unsound_plan_is_refused(plan, message):
    with pytest.raises(ArtifactError, match=message):
        check_plan(plan)


def test_the_sample_plan_is_sound():
    check_plan(two_device_plan())


def test_pieces_end_at_multiples_in_the_file() -> None:
    parts = [
        bytes([i % 251]) * n for i, n in enumerate((5, 0, writing._WRITE_BYTES, 3, 2 * writing._WRITE_BYTES))
    ]
    start, written, place = 3 * PAGE, b"", 3 * PAGE
    for piece in writing._pieces(parts, start):
        written += bytes(piece)
        place += len(piece)
        assert place % writing._WRITE_BYTES == 0 or len(written) == sum(map(len, parts))
    assert written == b"".join(parts)
