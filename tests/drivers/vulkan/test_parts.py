"""The parts of the Vulkan driver that need no device: free lists, clocks, SPIR-V checks."""

from __future__ import annotations

import random
import struct

import pytest

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.results import check, error_of, result_name
from mansard.drivers.vulkan.memory.free_list import FreeList
from mansard.drivers.vulkan.shaders.copy_kernel import copy_grids
from mansard.drivers.vulkan.shaders.spirv import entry_points
from mansard.drivers.vulkan.submission.clock import ticks_to_ns
from mansard.drivers.vulkan.target_text import parse
from mansard.errors import ArtifactError, DeviceError, DeviceLostError, OutOfMemoryError


def test_free_list_never_hands_out_a_byte_twice() -> None:
    random_numbers = random.Random(7)
    pool = FreeList(1 << 16, 256)
    taken: list[tuple[int, int]] = []
    refused = 0
    for _ in range(2000):
        if taken and random_numbers.random() < 0.45:
            pool.give(*taken.pop(random_numbers.randrange(len(taken))))
            continue
        size = random_numbers.randrange(1, 5000)
        offset = pool.take(size)
        if offset is None:
            refused += 1
            continue
        assert offset % 256 == 0
        assert 0 <= offset <= pool.size - size
        assert all(offset + size <= begin or begin + length <= offset for begin, length in taken)
        taken.append((offset, size))
    assert refused > 0, "the test must fill the list at times"
    for offset, size in taken:
        pool.give(offset, size)
    assert pool.empty
    assert pool.take(1 << 16) == 0


def test_free_list_uses_exactly_what_it_has() -> None:
    pool = FreeList(1024, 256)
    assert [pool.take(1), pool.take(256), pool.take(512), pool.take(1)] == [0, 256, 512, None]
    pool.give(256, 256)
    assert pool.take(257) is None
    assert pool.take(256) == 256


@pytest.mark.parametrize(("chunks", "limit"), [(1, 10), (10, 10), (11, 10), (100, 10), (101, 10), (999, 7)])
def test_copy_grids_cover_each_chunk_once(chunks: int, limit: int) -> None:
    covered: list[int] = []
    for first, x, y in copy_grids(chunks, limit):
        assert 1 <= x <= limit
        assert 1 <= y <= limit
        covered += range(first, first + x * y)
    assert covered == list(range(chunks))


@pytest.mark.parametrize(
    ("ticks", "expected"),
    [(1000, 50_000), (1010, 50_020), (990, 49_980)],
)
def test_ticks_to_ns(ticks: int, expected: int) -> None:
    assert ticks_to_ns(ticks, (1000, 50_000), bits=64, period=2.0) == expected


def test_ticks_wrap() -> None:
    # A counter of 36 bits that went round between the timestamp and the reference, and the reverse.
    top = (1 << 36) - 1
    assert ticks_to_ns(top, (9, 1000), bits=36, period=1.0) == 990
    assert ticks_to_ns(9, (top, 1000), bits=36, period=1.0) == 1010


def test_results_become_errors() -> None:
    check(vk.VK_SUCCESS, "x")
    check(vk.VK_INCOMPLETE, "x")
    kinds = {
        vk.VK_ERROR_OUT_OF_DEVICE_MEMORY: OutOfMemoryError,
        vk.VK_ERROR_OUT_OF_HOST_MEMORY: OutOfMemoryError,
        vk.VK_ERROR_DEVICE_LOST: DeviceLostError,
        vk.VK_ERROR_INITIALIZATION_FAILED: DeviceError,
    }
    for result, kind in kinds.items():
        error = error_of(result, "trying")
        assert type(error) is kind
        assert str(error) == f"trying failed: {result_name(result)}"
        assert result_name(result).startswith("VK_ERROR_")
    assert result_name(-123456) == "VkResult -123456"


HEADER = (0x07230203, 0x00010500, 0, 8, 0)


def module(*words: int) -> bytes:
    return struct.pack(f"<{5 + len(words)}I", *HEADER, *words)


def entry(name: bytes, model: int = 5) -> tuple[int, ...]:
    padded = name + bytes(4 - len(name) % 4)
    text = struct.unpack(f"<{len(padded) // 4}I", padded)
    return ((3 + len(text)) << 16 | 15, model, 1, *text)


def test_entry_points() -> None:
    code = module(2 << 16 | 17, 1, *entry(b"first"), *entry(b"four"), *entry(b"fragment", model=4))
    assert entry_points(code) == {"first", "four"}


@pytest.mark.parametrize(
    "code",
    [b"", b"abc", module()[:-4], module()[::-1], module(0), module(9 << 16 | 17, 1)],
    ids=["empty", "odd", "short", "byte order", "zero length", "cut off"],
)
def test_what_is_no_module_is_refused(code: bytes) -> None:
    with pytest.raises(ArtifactError):
        entry_points(code)


def test_a_target_text_may_ask_for_ptx() -> None:
    target = parse("vulkan:1.3+ptx_sm_90a")
    assert "ptx_sm_90a" in target.features
    assert str(target) == "vulkan:1.3+ptx_sm_90a"
    assert "ptx_sm_90a" not in parse("vulkan:1.3+ptx_sm_90a,-ptx_sm_90a").features
