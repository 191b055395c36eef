"""Commands as words: barriers name what is on both of their sides, and no more."""

from __future__ import annotations

import pytest

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.submission.command_stream import (
    BARRIER,
    COMPUTE,
    COPY,
    DISPATCH,
    FILL,
    LAUNCH,
    TIMESTAMP,
    TRANSFER,
    CommandStream,
    joined_words,
)

SHADER, COPIES = vk.VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT, vk.VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT
HOST = vk.VK_PIPELINE_STAGE_2_HOST_BIT


def parse(words: list[int]) -> list[tuple[int, list[int]]]:
    """(kind, words) of every command."""
    commands, at = [], 0
    while at < len(words):
        count = words[at] >> 8
        commands.append((words[at] & 0xFF, words[at + 1 : at + 1 + count]))
        at += 1 + count
    assert at == len(words)
    return commands


def stages(stream: CommandStream) -> list[tuple[int, int]]:
    return [(w[0], w[2]) for kind, w in parse(stream.finish()) if kind == BARRIER]


def work(stream: CommandStream, *kinds: int) -> None:
    for kind in kinds:
        stream.begin("", kind)
        if kind == COMPUTE:
            stream.dispatch(1, 2, (3, 4, 5), [6], False)
        else:
            stream.fill(1, 0, 4, 0)
        stream.end("")


def test_barriers_name_their_neighbours() -> None:
    stream = CommandStream()
    work(stream, COMPUTE, COMPUTE)
    stream.barrier()
    work(stream, COMPUTE)
    stream.barrier()
    work(stream, TRANSFER)
    stream.barrier()
    work(stream, COMPUTE, TRANSFER)
    both = SHADER | COPIES
    assert stages(stream) == [(HOST, both), (SHADER, SHADER), (SHADER, COPIES), (COPIES, both), (both, HOST)]


def test_barriers_that_order_nothing_are_left_out() -> None:
    stream = CommandStream()
    stream.barrier()
    work(stream, COMPUTE)
    stream.barrier()
    stream.barrier()
    work(stream, COMPUTE)
    stream.barrier()
    assert stages(stream) == [(HOST, SHADER), (SHADER, SHADER), (SHADER, HOST)]


def test_a_command_without_work_keeps_its_times() -> None:
    stream = CommandStream(profile=True)
    work(stream, COMPUTE)
    stream.barrier()
    stream.begin("empty copy", 0)
    stream.end("empty copy")
    stream.barrier()
    commands = parse(stream.finish())
    assert [words[1] for kind, words in commands if kind == TIMESTAMP] == [0, 1, 2, 3]
    assert [(w[0], w[2]) for kind, w in commands if kind == BARRIER] == [
        (HOST, SHADER),
        (SHADER, 0),
        (SHADER, HOST),
    ]


def test_nothing_recorded_is_no_words() -> None:
    stream = CommandStream()
    stream.barrier()
    assert stream.finish() == []


def test_timestamps_wait_for_the_work_before_them() -> None:
    stream = CommandStream(profile=True)
    work(stream, COMPUTE, COMPUTE)
    stream.barrier()
    work(stream, TRANSFER)
    work(stream, COMPUTE)
    timestamps = [words for kind, words in parse(stream.finish()) if kind == TIMESTAMP]
    stages = [SHADER, SHADER, SHADER, SHADER, COPIES, COPIES, COPIES, SHADER]
    assert timestamps == [[stage, query] for query, stage in enumerate(stages)]


def test_words_of_commands() -> None:
    stream = CommandStream(profile=True)
    stream.begin("a", COMPUTE | TRANSFER)
    stream.dispatch(11, 12, (1, 2, 3), [7, 8, 9], True)
    stream.copy(1, 2, 3, 4, 5)
    stream.fill(1, 2, 4, 9)
    stream.end("a")
    commands = [(kind, words) for kind, words in parse(stream.finish()) if kind in (DISPATCH + 1, COPY, FILL)]
    assert commands == [
        (DISPATCH + 1, [11, 12, 1 | 2 << 32, 3, 7, 8, 9]),
        (COPY, [1, 2, 3, 4, 5]),
        (FILL, [1, 2, 4, 9]),
    ]
    assert stream.rows == ["a"]
    assert stream.table_bytes == 32  # three words, rounded up to 16 bytes


def test_words_of_a_launch() -> None:
    stream = CommandStream()
    stream.begin("a", COMPUTE)
    stream.launch(11, (1, 2, 3), 128, [7, 8])
    stream.end("a")
    before, launched, after = parse(stream.finish())
    assert launched == (LAUNCH, [11, 1 | 2 << 32, 3 | 128 << 32, 7, 8])
    assert (before[1][2], after[1][0]) == (SHADER, SHADER), "it is compute work"
    assert stream.table_bytes == 0


def test_joined_streams_have_one_barrier_between_them() -> None:
    streams = [CommandStream() for _ in range(4)]
    work(streams[0], COMPUTE)
    work(streams[2], TRANSFER)
    work(streams[3], COMPUTE)
    parts = [stream.finish() for stream in streams]
    commands = parse(joined_words(parts))
    assert [kind for kind, _ in commands] == [BARRIER, DISPATCH, BARRIER, FILL, BARRIER, DISPATCH, BARRIER]
    barriers = [(words[0], words[2]) for kind, words in commands if kind == BARRIER]
    assert barriers == [(HOST, SHADER), (SHADER, COPIES), (COPIES, SHADER), (SHADER, HOST)]
    assert joined_words([]) == joined_words([parts[1]]) == []
    assert joined_words([parts[1], parts[0]]) == parts[0]


def _step(given: int, token: int, at: int = 10) -> list[int]:
    """A copy of ``given`` to buffer ``at``, work, and a copy from buffer 11 to ``token``."""
    stream = CommandStream()
    for copy in ((given, at, 0, 0, 8), None, (11, token, 0, 0, 8)):
        stream.begin("", TRANSFER if copy else COMPUTE)
        if copy:
            stream.copy(*copy)
        else:
            stream.launch(1, (1, 1, 1), 32, [])
        stream.end("")
        stream.barrier()
    return stream.finish()


def test_copies_that_end_and_begin_joined_streams_have_no_barrier_between_them() -> None:
    words = joined_words([_step(1, 12), _step(2, 13), _step(3, 14)])
    commands = parse(words)
    step = [COPY, BARRIER, LAUNCH, BARRIER, COPY]
    assert [kind for kind, _ in commands] == [BARRIER, *step, *step, *step, BARRIER]
    stages = [(words[0], words[2]) for kind, words in commands if kind == BARRIER]
    inner = [(COPIES, SHADER), (SHADER, COPIES)] * 3
    assert stages == [(HOST, SHADER | COPIES), *inner, (SHADER | COPIES, HOST)]
    assert [words[0] for kind, words in commands if kind == COPY] == [1, 11, 2, 11, 3, 11]


@pytest.mark.parametrize(
    "steps",
    [
        (_step(1, 12), _step(12, 13)),  # reads what was written
        (_step(1, 10), _step(2, 13)),  # writes what was written
        (_step(1, 12), _step(2, 13, at=11)),  # writes what is read
    ],
)
def test_copies_that_depend_on_each_other_keep_the_barrier(steps: tuple[list[int], list[int]]) -> None:
    kinds = [kind for kind, _ in parse(joined_words(steps))]
    assert kinds.count(BARRIER) == 7
    assert kinds[5:8] == [COPY, BARRIER, COPY]
