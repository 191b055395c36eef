"""Safetensors files: what the format's own library writes is read, and what is wrong with others is said."""

from __future__ import annotations

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.formats.safetensors_file import read_safetensors


def write(path, table, data=b""):
    """A file with this header: JSON, or bytes as they are."""
    header = table if isinstance(table, bytes) else json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def row(first, last, dtype="U8", shape=None):
    return {
        "dtype": dtype,
        "shape": [last - first] if shape is None else shape,
        "data_offsets": [first, last],
    }


@pytest.mark.parametrize("dtype", [d for d in DType if d.bits >= 8])
def test_every_dtype_is_mapped(tmp_path, dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype.numpy)
    save_file({"a": array, "empty": np.zeros((0, 4), dtype.numpy)}, tmp_path / "w.safetensors")
    tensors = read_safetensors(tmp_path / "w.safetensors")
    assert (tensors["a"].dtype, tensors["a"].shape, tensors["empty"].shape) == (dtype, (2, 3), (0, 4))
    np.testing.assert_array_equal(tensors["a"].data.view(dtype.numpy).reshape(2, 3), array)
    assert not tensors["a"].data.flags.owndata


def test_a_dtype_that_mansard_lacks_is_named(tmp_path):
    save_file(
        {"a": np.zeros(3, np.complex64), "b": np.ones(2, ml_dtypes.bfloat16)},
        tmp_path / "w.safetensors",
    )
    tensors = read_safetensors(tmp_path / "w.safetensors")
    assert (tensors["a"].dtype, tensors["a"].type_name, tensors["b"].dtype) == (None, "C64", DType.BF16)


def test_a_data_part_at_an_odd_address(tmp_path):
    array = np.arange(5, dtype=np.float32)
    header = b' {"a":{"dtype":"F32","shape":[5],"data_offsets":[0,20]}}'
    for length in range(8):
        path = write(tmp_path / f"{length}", header + b" " * length, array.tobytes())
        np.testing.assert_array_equal(read_safetensors(path)["a"].data.view(np.float32), array)


@pytest.mark.parametrize(
    ("table", "data", "message"),
    [
        (b"no json", b"", "its header is no JSON"),
        (b"\xff\xfe", b"", "its header is no JSON"),
        (b"[" * 100_000, b"", "its header is no JSON"),
        ([], b"", "no JSON object"),
        ({"a": row(0, 8)}, b"1234", r"truncated: tensor 'a' ends at byte \d+ of the file"),
        ({"a": row(0, 3), "b": row(2, 4)}, b"1234", "tensor 'b' overlaps the one before it"),
        ({"a": row(0, 2), "b": row(3, 4)}, b"1234", "tensor 'b' leaves a gap before it"),
        ({"a": row(0, 2)}, b"1234", "2 bytes follow the last tensor"),
        ({"a": row(0, 4, "F32", [2])}, b"1234", r"'a' \(F32\[2\]\) needs 8 bytes, and its offsets span 4"),
        ({"a": row(-1, 3)}, b"1234", "without negative numbers"),
        ({"a": row(0, 4, shape=[-4])}, b"1234", "without negative numbers"),
        ({"a": row(0, 4, shape=[True])}, b"1234", "tensor 'a' needs dtype"),
        ({"a": row(3, 2, shape=[0])}, b"1234", "ends at byte 2, before it begins"),
        ({"a": {"dtype": "U8", "shape": [4]}}, b"1234", "tensor 'a' needs dtype"),
        ({"a": 3}, b"1234", "tensor 'a' needs dtype"),
        ({"a": row(0, 4, 7)}, b"1234", "tensor 'a' needs dtype"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, table, data, message):
    path = write(tmp_path / "w.safetensors", table, data)
    with pytest.raises(ImportModelError, match=message) as caught:
        read_safetensors(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty, not a safetensors file"),
        (b"1234", "truncated: 4 bytes"),
        (struct.pack("<Q", 100) + b"{}", "truncated or not a safetensors file"),
        (b"\x80\x02}q\x00X\x05\x00" * 4, "its header would have"),
    ],
)
def test_files_without_a_whole_header(tmp_path, content, message):
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(ImportModelError, match=message):
        read_safetensors(tmp_path / "w")


def test_what_is_no_file(tmp_path):
    with pytest.raises(ImportModelError, match="there is no file"):
        read_safetensors(tmp_path / "none")
    with pytest.raises(ImportModelError, match="not a regular file"):
        read_safetensors(tmp_path)
