"""Which blocks of a persistent kernel come to which dispatches."""

from __future__ import annotations

import random

import pytest

from mansard.drivers.vulkan.shaders.persistent import END
from mansard.drivers.vulkan.submission.block_schedule import ALIGNMENT, BlockSchedule, Share, schedule

STREAM = Share(None, False)


def small(groups: int, everywhere: bool = False) -> Share:
    return Share(groups, everywhere)


def blocks_of(found: BlockSchedule, number: int) -> list[int]:
    return [block for block, steps in enumerate(found.lists) if number in steps]


def test_small_dispatches_follow_each_other_around_the_blocks() -> None:
    found = schedule([STREAM, small(3), small(4), small(2), STREAM, small(5)], 8)
    assert found.starts == (0, 0, 3, 7, 0, 0)
    assert [blocks_of(found, n) for n in (1, 2, 3, 5)] == [[0, 1, 2], [3, 4, 5, 6], [0, 7], [0, 1, 2, 3, 4]]
    assert blocks_of(found, 0) == blocks_of(found, 4) == list(range(8))


@pytest.mark.parametrize("groups", [8, 9, 30])
def test_large_dispatches_begin_at_the_first_block(groups: int) -> None:
    found = schedule([small(3), small(groups), small(2)], 8)
    assert found.starts == (0, 0, 0)
    assert blocks_of(found, 1) == list(range(8))


def test_all_blocks_come_to_where_they_wait() -> None:
    found = schedule([small(2, everywhere=True), small(2)], 4)
    assert found.lists == ((0,), (0,), (0, 1), (0, 1))


def test_words() -> None:
    found = schedule([STREAM, small(1), STREAM], 3)
    assert found.stride == 4 and found.bytes == ALIGNMENT
    words = found.words()
    assert len(words) == ALIGNMENT // 8
    entries = [half for word in words for half in (word & END, word >> 32)]
    assert entries[:12] == [0, 1, 2, END, 0, 2, END, END, 0, 2, END, END]


def test_every_list_ends() -> None:
    for length in range(6):
        found = schedule([STREAM] * length, 2)
        assert found.stride % 2 == 0 and found.stride > length


def test_random_dispatches_have_all_their_blocks_once() -> None:
    generator = random.Random(5)
    for _ in range(50):
        blocks = generator.randint(1, 12)
        shares = [
            generator.choice([STREAM, small(generator.randint(1, 20), generator.random() < 0.2)])
            for _ in range(generator.randint(1, 15))
        ]
        found = schedule(shares, blocks)
        for number, (share, start) in enumerate(zip(shares, found.starts, strict=True)):
            taking = blocks_of(found, number)
            wanted = blocks if share.groups is None else min(share.groups, blocks)
            needed = {(start + n) % blocks for n in range(wanted)}
            assert needed <= set(taking) and (share.everywhere or len(taking) == wanted)
        assert all(list(steps) == sorted(set(steps)) for steps in found.lists)
