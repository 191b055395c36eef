"""Executables with a PTX module: what the container holds, and what is refused as broken."""

from __future__ import annotations

import json

import pytest
from support import ptx_kernels

from mansard.drivers.vulkan.shaders.abi import (
    BodyInfo,
    ShaderModule,
    body_parts,
    device_formats,
    join,
    join_body,
    join_ptx,
    modules_of,
    ptx_parts,
    spirv_modules,
)
from mansard.drivers.vulkan.shaders.ptx import ptx_entry_points
from mansard.errors import ArtifactError
from mansard.hal.exchanges import Exchange
from mansard.hal.executable import ExecutableSpec
from mansard.hal.weight_streams import StreamOperand, WeightStream

SPIRV = ShaderModule("bda", b"\x03\x02#\x07 words", ("float16", "int64"))
MODULE = ShaderModule("ptx", b".version 8.0\n.entry a()", ("shared_memory>=49152",), 384)
PTX_NEEDS = ("shared_memory>=49152", "buffer_device_address", "int64", "ptx_sm_90a")


def spec(code_format: str, code: bytes, requires: tuple[str, ...] = ()) -> ExecutableSpec:
    return ExecutableSpec(code_format, "vulkan:1.3", code, (), requires)


def test_both_parts_come_back_and_all_is_needed() -> None:
    code_format, code, requires = join_ptx(MODULE, SPIRV)
    assert code_format == "spirv-ptx"
    assert set(requires) == {*PTX_NEEDS, "float16"}
    ptx, spirv = ptx_parts(spec(code_format, code, requires))
    assert ptx == ShaderModule("ptx", MODULE.code, PTX_NEEDS, 384)
    assert spirv == ShaderModule("bda", SPIRV.code, ("float16", "int64", "buffer_device_address"))


def test_ptx_alone() -> None:
    code_format, code, requires = join_ptx(MODULE, None)
    assert requires == PTX_NEEDS
    assert ptx_parts(spec(code_format, code, requires)) == (
        ShaderModule("ptx", MODULE.code, PTX_NEEDS, 384),
        None,
    )


STREAM = WeightStream(4096, 2, (StreamOperand(1, 1024, 0), StreamOperand(2, 512, 1024)))

TURNS = WeightStream(4096, 2, tuple(StreamOperand(n, 1024, 0) for n in (1, 2)), products=2)


@pytest.mark.parametrize("stream", [None, STREAM, TURNS])
def test_a_body_beside_spirv(stream: WeightStream | None) -> None:
    exchange = Exchange(frozenset({0, 3}), frozenset({3}))
    info = BodyInfo(2048, (3,), stream, exchange, frozenset({2}))
    body = ShaderModule("ptx-body", b"bra JOIN;", (), 128, info)
    code_format, code, requires = join_body(body, SPIRV)
    assert code_format == "spirv-body"
    assert requires == (*SPIRV.requires, "buffer_device_address"), "devices without PTX load it too"
    spirv, found = body_parts(spec(code_format, code, requires))
    assert spirv.code == SPIRV.code
    assert (found.code, found.threads, found.body) == (b"bra JOIN;", 128, body.body)
    assert "ptx_sm_90a" in found.requires
    assert spirv_modules(spec(code_format, code, requires)) == [SPIRV.code]


def test_the_spirv_modules_of_every_format() -> None:
    descriptors = ShaderModule("descriptors", b"\x03\x02#\x07 other words", ())
    both = [SPIRV.code, descriptors.code]
    formats = {
        join(modules)[0]: spirv_modules(spec(*join(modules)))
        for modules in ([SPIRV], [descriptors], [SPIRV, descriptors])
    }
    assert formats == {"spirv": both[:1], "spirv-descriptors": both[1:], "spirv-all": both}
    assert spirv_modules(spec(*join_ptx(MODULE, SPIRV))) == both[:1]
    assert spirv_modules(spec(*join_ptx(MODULE, None))) == []
    assert spirv_modules(spec("cpu-image", b"code")) == []


def head(*parts: object, rest: bytes = b"123") -> bytes:
    return json.dumps(parts).encode() + b"\n" + rest


PTX_PART = {"abi": "ptx", "bytes": 3, "requires": [], "threads": 32}
SPIRV_PART = {"abi": "bda", "bytes": 0, "requires": []}
BODY = {"shared": 0, "writes": [1]}
BODY_PART = {**PTX_PART, "abi": "ptx-body", "body": BODY}


def streaming(*stream: object, products: int = 1) -> dict[str, object]:
    """The part of a body with a stream."""
    return {**BODY_PART, "body": {**BODY, "stream": list(stream), "products": products}}


def exchanging(*exchange: object) -> dict[str, object]:
    """The part of a body that takes part in an exchange."""
    return {**BODY_PART, "body": {**BODY, "exchange": list(exchange)}}


@pytest.mark.parametrize(
    "code",
    [
        b"",
        b"no json\n",
        b"[" * 100_000,
        b"{}\n",
        b"5\n",
        b"[5]\n",
        b"[]\n",
        head(rest=b""),
        head(PTX_PART, rest=b"1234"),
        head(PTX_PART, rest=b"12"),
        head({**PTX_PART, "bytes": -1}, rest=b""),
        head({**PTX_PART, "bytes": float("inf")}),
        head({**PTX_PART, "bytes": None}),
        head({**PTX_PART, "threads": 0}),
        head({**PTX_PART, "threads": -32}),
        head({**PTX_PART, "threads": "many"}),
        head({**PTX_PART, "requires": None}),
        head({**PTX_PART, "abi": "descriptors"}),
        head({**PTX_PART, "abi": []}),
        head({name: value for name, value in PTX_PART.items() if name != "threads"}),
        head(PTX_PART, PTX_PART, rest=b"123123"),
        head({**SPIRV_PART, "bytes": 3}),
        head(SPIRV_PART, {**SPIRV_PART, "bytes": 3}),
        head({**SPIRV_PART, "threads": 1}, PTX_PART),
    ],
)
def test_a_broken_container(code: bytes) -> None:
    with pytest.raises(ArtifactError, match="spirv-ptx"):
        ptx_parts(spec("spirv-ptx", code))


@pytest.mark.parametrize(
    "code",
    [
        head(SPIRV_PART, PTX_PART),
        head(SPIRV_PART),
        head(BODY_PART),
        head(SPIRV_PART, BODY_PART, rest=b"\xff12"),
        head(SPIRV_PART, {**PTX_PART, "abi": "ptx-body"}),
        head(SPIRV_PART, {**PTX_PART, "body": BODY}),
        head(SPIRV_PART, {**BODY_PART, "body": {"shared": 0}}),
        head(SPIRV_PART, {**BODY_PART, "body": {**BODY, "shared": -1}}),
        head(SPIRV_PART, {**BODY_PART, "body": {**BODY, "writes": [-1]}}),
        head(SPIRV_PART, {**BODY_PART, "body": 5}),
        head(SPIRV_PART, streaming()),
        head(SPIRV_PART, streaming(8, 1)),
        head(SPIRV_PART, streaming(0, 1, [1, 512, 0])),
        head(SPIRV_PART, streaming(8, -1, [1, 512, 0])),
        head(SPIRV_PART, streaming(8, 1, [1, 0, 0])),
        head(SPIRV_PART, streaming(8, 1, [1, 8, 0])),
        head(SPIRV_PART, streaming(8, 1, [1, 512])),
        head(SPIRV_PART, streaming(8, 1, [1, 512, 0], [2, 512, 256])),
        head(SPIRV_PART, streaming(8, 1, [-1, 512, 0])),
        head(SPIRV_PART, streaming(8, 1, *([1, 16, 16 * i] for i in range(8)))),
        head(SPIRV_PART, streaming(8, 1, [1, 4096, 0])),
        head(SPIRV_PART, streaming(8, 1, [1, 512, 0], products=0)),
        head(SPIRV_PART, streaming(8, 1, [1, 512, 0], products=2)),
        head(SPIRV_PART, streaming(8, 1, [1, 512, 0], [2, 512, 512], products=2)),
        head(SPIRV_PART, streaming(8, 1, [1, 512, 0], [2, 256, 0], products=2)),
        head(SPIRV_PART, streaming(8, 3, [1, 512, 0], [2, 512, 0], products=2)),  # 6 parts for 8 subgroups
        head(SPIRV_PART, exchanging([1], [0])),  # writes what it does not write
        head(SPIRV_PART, exchanging([-1], [])),
        head(SPIRV_PART, exchanging([1], [1], [1])),
        head(SPIRV_PART, exchanging(1, 2)),
        head(SPIRV_PART, {**BODY_PART, "body": {**BODY, "lookups": [-1]}}),
    ],
)
def test_a_broken_body(code: bytes) -> None:
    with pytest.raises(ArtifactError, match="spirv-body"):
        body_parts(spec("spirv-body", code))


def test_a_good_one_beside_the_broken_ones() -> None:
    assert ptx_parts(spec("spirv-ptx", head(SPIRV_PART, PTX_PART)))[0].code == b"123"
    assert body_parts(spec("spirv-body", head(SPIRV_PART, BODY_PART)))[1].body == BodyInfo(0, (1,))
    stream = streaming(8, 3, [1, 512, 0], [2, 1024, 512])
    assert body_parts(spec("spirv-body", head(SPIRV_PART, stream)))[1].body.stream.slot_bytes == 1536
    stream = streaming(8, 4, [1, 512, 0], [2, 512, 0], products=2)
    assert body_parts(spec("spirv-body", head(SPIRV_PART, stream)))[1].body.stream.slot_bytes == 512
    found = body_parts(spec("spirv-body", head(SPIRV_PART, exchanging([0, 1], [1]))))[1].body
    assert found.exchange == Exchange(frozenset({0, 1}), frozenset({1}))


def test_ptx_is_no_alternative_among_others() -> None:
    with pytest.raises(ArtifactError, match="spirv-all"):
        modules_of(spec("spirv-all", head(PTX_PART)))


def test_formats_of_a_device() -> None:
    both = {"buffer_device_address": True, "int64": True}
    assert device_formats(both) == ("spirv", "spirv-body", "spirv-all", "spirv-descriptors")
    assert device_formats({**both, "ptx_sm_90a": True}) == ("spirv-ptx", *device_formats(both))
    assert device_formats({**both, "ptx_sm_90a": False}) == device_formats(both)


def test_entry_points_of_a_text() -> None:
    text = b""".version 8.0
    .target sm_90a
    // .entry commented
    /* .entry out
       .entry too */
    .visible .entry first(.param .b64 a) { ret; }
    .weak .entry
        $second_2() { ret; }
    .func third() { ret; }
    """
    assert ptx_entry_points(text) == ptx_entry_points(text + b"\0") == {"first", "$second_2"}
    assert ptx_entry_points(ptx_kernels.TRIPLE_TEXT) == {"triple"}


@pytest.mark.parametrize(
    "code", [b"", b"\0", b"\x7fELF", b".version 8.0\xff", b".version\0 .entry a", b".entry"]
)
def test_what_is_no_text_of_ptx(code: bytes) -> None:
    with pytest.raises(ArtifactError, match="not a PTX module"):
        ptx_entry_points(code)
