"""The syntax of tensors, files and dynamic dims on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from mansard.cli.models import by_name
from mansard.cli.specs import (
    InputType,
    parse_dynamic,
    parse_memory,
    parse_output,
    parse_pins,
    parse_tensor,
)
from mansard.dims import Dim
from mansard.dtypes import DType


def test_splat() -> None:
    array = parse_tensor("1x3x2x2xf32=0.5").load()
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, np.full((1, 3, 2, 2), 0.5, np.float32))


def test_comma_list_in_row_major_order() -> None:
    argument = parse_tensor("ids=2x3xi64=1,2,3, 4,5,-6")
    assert argument.name == "ids"
    np.testing.assert_array_equal(argument.load(), [[1, 2, 3], [4, 5, -6]])


def test_scalar_and_default() -> None:
    scalar = parse_tensor("f16=2.5").load()
    assert scalar.shape == ()
    assert scalar == np.float16(2.5)
    np.testing.assert_array_equal(parse_tensor("4xi32").load(), np.zeros(4, np.int32))


def test_bool_hex_bf16_and_int4() -> None:
    np.testing.assert_array_equal(parse_tensor("3xbool=true,0,False").load(), [True, False, False])
    assert parse_tensor("u8=0xff").load() == 255
    assert float(parse_tensor("bf16=1.5").load()) == 1.5
    assert [int(v) for v in parse_tensor("2xi4=-8,7").load()] == [-8, 7]


def test_random_is_reproducible_and_typed() -> None:
    argument = parse_tensor("64xf32=random")
    np.testing.assert_array_equal(argument.load(1), argument.load(1))
    assert not np.array_equal(argument.load(1), argument.load(2))
    integers = parse_tensor("100xi64=random").load()
    assert integers.min() >= 0
    assert integers.max() <= 7
    assert len(np.unique(integers)) > 1


def test_dtype_name_is_not_taken_for_a_name() -> None:
    assert parse_tensor("f32=1").name == ""
    assert parse_tensor("x=f32=1").name == "x"


def test_npy_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(6).reshape(2, 3))
    for text, name in ((f"@{path}", ""), (f"x=@{path}", "x"), (f"x=2x3xi64=@{path}", "x")):
        argument = parse_tensor(text)
        assert argument.name == name
        np.testing.assert_array_equal(argument.load(), np.arange(6).reshape(2, 3))
    with pytest.raises(typer.BadParameter, match=r"holds int64 \(2, 3\), not 2x3xf32"):
        parse_tensor(f"2x3xf32=@{path}").load()


def test_npy_file_with_pickles_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(typer.BadParameter, match="not a readable"):
        parse_tensor(f"@{path}").load()


def test_raw_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(np.arange(6, dtype="<f4").tobytes())
    np.testing.assert_array_equal(parse_tensor(f"2x3xf32=@{path}").load(), np.arange(6).reshape(2, 3))
    with pytest.raises(typer.BadParameter, match="has 24 bytes; 2x2xf32 takes 16"):
        parse_tensor(f"2x2xf32=@{path}").load()


@pytest.mark.parametrize("text", ["", "x", "3x", "1x3xq8", "x=", "1x-3xf32", "@", "3xf32=", "f32x3"])
def test_malformed(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="SHAPExDTYPE"):
        parse_tensor(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3xf32=1,2", "takes 3 values, 2 were given"),
        ("2xi8=1,300", "300 does not fit i8"),
        ("u8=-1", "-1 does not fit u8"),
        ("i32=1.5", "'1.5' is not a value of i32"),
        ("f32=abc", "'abc' is not a value of f32"),
        ("@missing.npy", "missing.npy"),
    ],
)
def test_bad_values(text: str, message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        parse_tensor(text).load()


@given(
    st.lists(st.integers(0, 99), max_size=5),
    st.sampled_from(list(DType)),
    st.sampled_from(["", "x", "input.0"]),
)
def test_printed_types_read_back(shape: list[int], dtype: DType, name: str) -> None:
    kind = InputType(tuple(shape), dtype)
    argument = parse_tensor(f"{name}={kind}" if name else str(kind))
    assert (argument.name, argument.type) == (name, kind)


def test_assignment_by_position_and_name() -> None:
    arguments = [parse_tensor(text) for text in ("b=f32=1", "i32=2", "i8=3")]
    given_ = by_name("input", ["a", "b", "c"], arguments)
    assert {name: argument.value for name, argument in given_.items()} == {"a": "2", "b": "1", "c": "3"}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["z=f32=1"], "no input named z; inputs: a, b"),
        (["f32=1", "f32=1", "f32=1"], "3 inputs given; the model has 2"),
        (["a=f32=1", "a=f32=1"], "'a' is given twice"),
    ],
)
def test_bad_assignment(texts: list[str], message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        by_name("input", ["a", "b"], [parse_tensor(text) for text in texts])


def test_outputs() -> None:
    assert parse_output("@y.npy").name == ""
    named = parse_output("logits=@out/y.bin")
    assert (named.name, named.path) == ("logits", Path("out/y.bin"))
    with pytest.raises(typer.BadParameter, match="@FILE"):
        parse_output("y.npy")


def test_npy_and_raw_outputs(tmp_path: Path) -> None:
    array = np.arange(4, dtype=np.float32)
    parse_output(f"@{tmp_path}/y.npy").save(array)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), array)
    parse_output(f"@{tmp_path}/y.bin").save(array)
    assert (tmp_path / "y.bin").read_bytes() == array.tobytes()
    with pytest.raises(typer.BadParameter, match="cannot be written"):
        parse_output(f"@{tmp_path}/no/such/y.npy").save(array)


def test_dynamic_dims() -> None:
    seq = Dim("seq", 1, 512, 16)
    result = parse_dynamic(["ids:1=seq:1..512/16", "mask:1=seq:1..512/16", "ids:0=1..8"])
    assert result == {"ids": {1: seq, 0: Dim("ids_0", 1, 8)}, "mask": {1: seq}}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["ids=1..2"], "INPUT:AXIS="),
        (["ids:0=4..2"], "no value"),
        (["ids:0=1..3/4"], "multiple of 4"),
        (["ids:0=1..3/0"], "at least 1"),
        (["ids:0=n:1..2", "ids:1=n:1..3"], "another range"),
    ],
)
def test_bad_dynamic_dims(texts: list[str], message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        parse_dynamic(texts)


def test_pins() -> None:
    assert parse_pins(["contraction*=vulkan", "a=b=cpu"]) == (("contraction*", "vulkan"), ("a=b", "cpu"))
    for wrong in ("contraction", "=cpu", "x="):
        with pytest.raises(typer.BadParameter, match="PATTERN=DEVICE"):
            parse_pins([wrong])


def test_memory_limits() -> None:
    limits = parse_memory(["vulkan=2GB", "npu:1=1.5MiB", "cpu=4096", "a=3k"])
    assert limits == (("vulkan", 2 * 10**9), ("npu:1", 3 << 19), ("cpu", 4096), ("a", 3000))
    for wrong in ("vulkan", "=2GB", "vulkan=", "vulkan=-1", "vulkan=2TB", "vulkan=lots"):
        with pytest.raises(typer.BadParameter, match="not DEVICE=BYTES"):
            parse_memory([wrong])
