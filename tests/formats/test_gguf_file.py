"""GGUF files: what the package gguf writes is read, and what is wrong with others is said."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type

from mansard.errors import ImportModelError
from mansard.formats.gguf_file import read_gguf

MATRIX = np.arange(64, dtype=np.float32).reshape(2, 32)


def write(path, add=lambda writer: None, **options):
    writer = gguf.GGUFWriter(path, "llama", **options)
    writer.add_tensor("a", MATRIX)
    add(writer)
    finish(writer)
    return path


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def text(value):
    return struct.pack("<Q", len(value)) + value


def header(path, tensors=0, values=0, rest=b"", magic=b"GGUF", version=3):
    """A file that no library writes."""
    path.write_bytes(magic + struct.pack("<IQQ", version, tensors, values) + rest)
    return path


def tensor(name, dims, kind, offset):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def test_metadata_of_every_type(tmp_path):
    def add(writer):
        writer.add_uint8("u8", 200)
        writer.add_int64("i64", -5)
        writer.add_float32("f32", 0.5)
        writer.add_bool("yes", True)
        writer.add_string("text", "grüße")
        writer.add_array("numbers", [1, 2, 3])
        writer.add_array("texts", ["a", "", "ß"])
        writer.add_token_list([b"\xff\xfe", b"b"])

    file = read_gguf(write(tmp_path / "x.gguf", add))
    wanted = {"u8": 200, "i64": -5, "f32": 0.5, "yes": True, "text": "grüße", "numbers": [1, 2, 3]}
    assert {key: file.metadata[key] for key in wanted} == wanted
    assert file.metadata["texts"] == ["a", "", "ß"]
    assert file.metadata["general.architecture"] == "llama"
    # Bytes that are no UTF-8 survive, and can be had again.
    assert file.metadata["tokenizer.ggml.tokens"][0].encode(errors="surrogateescape") == b"\xff\xfe"


def test_tensors_are_mapped(tmp_path):
    blocks = gguf.quants.quantize(MATRIX, Type.Q8_0)

    def add(writer):
        writer.add_tensor("q", blocks, raw_dtype=Type.Q8_0)
        writer.add_tensor("empty", np.zeros((0, 32), np.float32))
        writer.add_tensor("half", np.ones((3, 2, 4), np.float16))

    file = read_gguf(write(tmp_path / "x.gguf", add))
    np.testing.assert_array_equal(file.tensors["a"].data.view(np.float32).reshape(2, 32), MATRIX)
    q = file.tensors["q"]
    assert (q.type_name, q.shape, q.block_elements, q.block_bytes) == ("Q8_0", (2, 32), 32, 34)
    np.testing.assert_array_equal(q.data, blocks.reshape(-1))
    assert file.tensors["half"].shape == (3, 2, 4)
    assert file.tensors["empty"].data.size == 0
    assert not q.data.flags.owndata


def test_other_alignments(tmp_path):
    file = read_gguf(write(tmp_path / "x.gguf", lambda writer: writer.add_custom_alignment(256)))
    np.testing.assert_array_equal(file.tensors["a"].data.view(np.float32), MATRIX.reshape(-1))


def test_files_in_parts(tmp_path):
    def add(writer):
        for name in "bcd":
            writer.add_tensor(name, MATRIX)

    write(tmp_path / "x.gguf", add, split_max_tensors=2)
    first = tmp_path / "x-00001-of-00002.gguf"
    assert read_gguf(first).tensors.keys() == set("abcd")
    with pytest.raises(ImportModelError, match="one of 2 parts of a model; open the first"):
        read_gguf(tmp_path / "x-00002-of-00002.gguf")
    renamed = first.rename(tmp_path / "y.gguf")
    with pytest.raises(ImportModelError, match="its name has to contain -00001-of-00002"):
        read_gguf(renamed)
    renamed.rename(first)
    (tmp_path / "x-00002-of-00002.gguf").unlink()
    with pytest.raises(ImportModelError, match=r"x-00002-of-00002.gguf is missing beside it"):
        read_gguf(first)


def test_every_truncation_is_noticed(tmp_path):
    whole = write(tmp_path / "x.gguf", lambda writer: writer.add_token_list(["one", "two"])).read_bytes()
    for size in range(1, len(whole)):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        with pytest.raises(ImportModelError, match=r"cut.gguf is (truncated|not a GGUF file)"):
            read_gguf(tmp_path / "cut.gguf")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"magic": b"GGML"}, "is not a GGUF file: it begins with b'GGML'"),
        ({"version": 1}, "is a GGUF file of version 1; little-endian ones of versions 2 and 3 are read"),
        ({"version": 3 << 24}, "is a GGUF file big-endian"),
        ({"values": 2**60}, "is truncated"),
        ({"tensors": 2**60}, "is truncated"),
        ({"values": 1, "rest": text(b"k") + struct.pack("<I", 77)}, "it has a value of type 77"),
        ({"values": 1, "rest": text(b"k") + struct.pack("<IIQ", 9, 8, 2**61)}, "is truncated"),
        ({"values": 1, "rest": text(b"k") + struct.pack("<IIQ", 9, 4, 2**61)}, "is truncated"),
        ({"values": 1, "rest": text(b"k") + struct.pack("<IIQQ", 9, 8, 1, 2**64 - 1)}, "is truncated"),
        (
            {"values": 1, "rest": text(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9},
            "value of type 9",
        ),
        ({"values": 2, "rest": (text(b"k") + struct.pack("<IB", 0, 1)) * 2}, "it has 'k' twice"),
        (
            {"values": 1, "rest": text(b"general.alignment") + struct.pack("<II", 4, 12)},
            "its alignment is 12",
        ),
        ({"tensors": 1, "rest": tensor(b"a", [1] * 5, 0, 0)}, "tensor 'a' has 5 dims"),
        (
            {"tensors": 1, "rest": tensor(b"a", [2], 99, 0)},
            "has ggml type 99, which is unknown; known are BF16",
        ),
        (
            {"tensors": 1, "rest": tensor(b"a", [33], 8, 0)},
            "have 33 elements, no multiple of the 32 .* of Q8_0",
        ),
        ({"tensors": 1, "rest": tensor(b"a", [], 8, 0)}, "have 1 elements, no multiple of the 32 .* of Q8_0"),
        ({"tensors": 1, "rest": tensor(b"a", [2**40, 2**40], 0, 0)}, "truncated: tensor 'a' ends at byte"),
        (
            {"tensors": 2, "rest": tensor(b"a", [4], 0, 0) + tensor(b"b", [4], 0, 8) + bytes(64)},
            "tensor 'b' overlaps the one before it",
        ),
        (
            {"tensors": 2, "rest": tensor(b"a", [4], 0, 0) + tensor(b"a", [4], 0, 32) + bytes(96)},
            "it has tensor 'a' twice",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said(content, message, tmp_path):
    with pytest.raises(ImportModelError, match=message):
        read_gguf(header(tmp_path / "x.gguf", **content))
