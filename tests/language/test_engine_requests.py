"""Requests of a batch engine: stop texts, scores, deadlines, errors, caches that are used again."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import threading
import time

import numpy as np
import pytest
from support.decoders.checkpoints import write_decoder
from support.decoders.tokenizers_of_tests import byte_level
from support.vulkan_support import usable_device

import mansard
from mansard.language import load_lm, step_pace
from mansard.language.batch_engine import BatchEngine
from mansard.language.caches.slot import common_prefix
from mansard.language.generation import Sampling

RANDOM = np.random.default_rng(8)


def prompt_of(length):
    return RANDOM.integers(5, 300, length).tolist()


def write_lm(folder, variation="llama", **changed):
    write_decoder(folder, variation, vocab_size=byte_level().get_vocab_size(), **changed)
    byte_level().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_lm(tmp_path_factory.mktemp("engine"), max_position_embeddings=128)


@pytest.fixture(scope="module")
def lm(folder):
    with load_lm(folder, devices="cpu", context=64, chunk=8, sequences=3, logprobs=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def lfm2(tmp_path_factory):
    folder = write_lm(tmp_path_factory.mktemp("lfm2"), "lfm2")
    with load_lm(folder, devices="cpu", context=64, chunk=8, sequences=3) as opened:
        yield opened


@pytest.fixture(params=["llama", "lfm2"])
def family(request):
    """A language model whose caches hold keys and values, and one with convolutions beside them."""
    return request.getfixturevalue({"llama": "lm", "lfm2": "lfm2"}[request.param])


@pytest.fixture
def engine(lm):
    engine = BatchEngine(lm.model, lm.tokenizer)
    yield engine
    engine.close()


def ids(tokens):
    return [token.id for token in tokens]


def idle(engine):
    """Wait until no request has a place, nor waits for one."""
    end = time.monotonic() + 20
    while engine.active or engine.waiting:
        assert time.monotonic() < end
        time.sleep(0.001)


async def read(request):
    return [token async for token in request]


def test_tokens_reach_coroutines(lm, engine):
    prompts = [prompt_of(length) for length in (3, 17, 9, 1, 30)]
    expected = [ids(engine.submit(prompt, 9)) for prompt in prompts]

    async def work():
        before = threading.active_count()
        requests = [engine.submit(prompt, 9) for prompt in prompts]
        readers = [asyncio.ensure_future(read(request)) for request in requests]
        await asyncio.sleep(0)
        assert threading.active_count() == before
        return [ids(await reader) for reader in readers]

    assert asyncio.run(work()) == expected

    async def one():
        return ids([token async for token in lm.generate_async(prompts[1], 9)])

    assert asyncio.run(one()) == expected[1]


def test_a_cancelled_coroutine_gives_up_its_place(engine):
    async def work():
        readers = [asyncio.ensure_future(read(engine.submit([n], 60, stop_at_end=False))) for n in (5, 6)]
        await asyncio.sleep(0.01)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

    asyncio.run(work())
    idle(engine)


def test_text_ends_before_a_stop_text(lm, engine):
    prompt = lm.encode("The quick brown")
    whole = engine.submit(prompt, 20)
    text = "".join(token.text for token in whole)
    assert whole.finish_reason == "length" and whole.generated == 20
    stop = text[6:9]
    request = engine.submit(prompt, 20, stop=["not there", stop])
    assert "".join(token.text for token in request) == text[: text.index(stop)]
    assert request.finish_reason == "stop" and request.generated < 20
    assert lm.text(prompt, 20, stop=stop) == text[: text.index(stop)]
    idle(engine)


def test_scores_come_to_those_who_ask(engine):
    prompt = prompt_of(12)
    others = [engine.submit(prompt_of(5), 12, Sampling(1.0, seed=n)) for n in range(2)]
    tokens = list(engine.submit(prompt, 8, scored=True))
    assert ids(tokens) == ids(engine.submit(prompt, 8))
    for token in tokens:
        best, logprob = token.score.ranked[0]
        assert (best, logprob) == (token.id, pytest.approx(token.score.logprob)) and logprob < 0
        assert len(token.score.ranked) == 20
    assert all(token.score is None for other in others for token in other)


def test_a_deadline_ends_its_request_only(engine):
    late = [engine.submit([n], 60, stop_at_end=False, deadline=0.0) for n in (5, 6, 7, 8)]
    fine = engine.submit([9], 10, deadline=100.0)
    assert len(ids(fine)) == 10
    for request in late:
        with pytest.raises(mansard.DeadlineExceededError, match="not complete after 0 s"):
            ids(request)
    with pytest.raises(mansard.InputError, match="deadline"):
        engine.submit([1], 1, deadline="soon")
    idle(engine)


def test_a_deadline_holds_while_the_device_hangs(engine, monkeypatch):
    hangs = threading.Event()
    advance = engine.methods.advance
    monkeypatch.setattr(engine.methods, "advance", lambda *args: (hangs.wait(20), advance(*args))[1])
    request = engine.submit([5], 10, stop_at_end=False, deadline=0.05)
    with pytest.raises(mansard.DeadlineExceededError, match=r"after 0.05 s.* 1 tokens were there"):
        ids(request)
    assert not hangs.is_set()
    hangs.set()


def test_an_error_while_a_prompt_is_read_ends_that_request(engine, monkeypatch):
    read = engine.methods.read

    def failing(place, part, *rest):
        if part[-1] == 77:
            raise mansard.OutOfMemoryError("no room for it")
        return read(place, part, *rest)

    expected = ids(engine.submit([5], 30))
    monkeypatch.setattr(engine.methods, "read", failing)
    beside = engine.submit([5], 30)
    bad = engine.submit([6, 77], 30)
    with pytest.raises(mansard.OutOfMemoryError, match="no room for it"):
        ids(bad)
    assert ids(beside) == expected
    monkeypatch.setattr(engine.methods, "read", lambda *args: 1 / 0)
    with pytest.raises(mansard.MansardError, match="generation: division by zero"):
        ids(engine.submit([8], 3))
    monkeypatch.undo()
    assert ids(engine.submit([5], 30)) == expected


def test_an_error_in_a_step_ends_those_that_took_part(engine, monkeypatch):
    expected = ids(engine.submit([5, 6], 20))
    advance = engine.methods.advance
    failures = iter([mansard.DeviceLostError("gone")])

    def failing(*args):
        for error in failures:
            raise error
        return advance(*args)

    monkeypatch.setattr(engine.methods, "advance", failing)
    with pytest.raises(mansard.DeviceLostError, match="gone"):
        ids(engine.submit([5, 6], 20))
    assert ids(engine.submit([5, 6], 20)) == expected


def test_a_cache_that_begins_equally_is_used_again(family):
    engine, fresh = BatchEngine(family.model), BatchEngine(family.model)
    fresh.close()
    start = prompt_of(20)
    first = engine.submit(start, 5)
    answer = ids(first)
    other = ids(engine.submit(prompt_of(3), 30))  # its steps pass over the first one's cache
    longer = start + answer + prompt_of(6)
    again = engine.submit(longer, 5)
    reused = ids(again), again.reused
    engine.submit(start, 1).cancel()
    alone = BatchEngine(family.model)
    assert reused[0] == ids(alone.submit(longer, 5))
    assert len(other) == 30 and first.reused == 0
    assert reused[1] == (24 if family.description.rewinds else 0)
    # directly after each other nothing is lost
    turn = alone.submit(longer + reused[0] + [9, 9], 5)
    assert len(ids(turn)) == 5 and turn.reused == len(longer) + 4
    assert alone.stats.reused_tokens == turn.reused
    penalised = alone.submit(longer, 5, Sampling(repetition_penalty=1.2))
    assert len(ids(penalised)) == 5 and penalised.reused == 0
    alone.close()
    engine.close()


@pytest.mark.parametrize(
    ("device", "cache"),
    [("cpu", "f32"), ("cpu", "int8"), pytest.param("vulkan", "f32", marks=pytest.mark.vulkan)],
)
def test_a_prompt_that_begins_like_another_one_is_not_read_twice(device, cache, folder):
    if device == "vulkan":
        usable_device()
    options = {"context": 64, "chunk": 8, "sequences": 3, "cache_dtype": cache}
    with load_lm(folder, devices=device, **options) as lm:
        engine, shared = lm.engine(), prompt_of(40)
        prompts = [shared + prompt_of(n) for n in (1, 5, 2)]
        settings = [Sampling(), Sampling(0.8, seed=3), Sampling(0.8, seed=4)]
        alone = []
        for prompt, sampling in zip(prompts, settings, strict=True):
            for slot in engine._slots:
                engine._caches.forget(slot)
            alone.append(ids(engine.submit(prompt, 12, sampling)))
        for slot in engine._slots:
            engine._caches.forget(slot)
        before = engine.stats.prompt_tokens
        requests = [engine.submit(*each) for each in zip(prompts, [12] * 3, settings, strict=True)]
        assert [ids(request) for request in requests] == alone
        assert [request.reused for request in requests] == [0, 40, 40]
        assert engine.stats.prompt_tokens - before == 41 + 5 + 2
        # a copy of a slot whose first position was overwritten meanwhile
        ids(engine.submit([7], 4))
        engine._caches.forget(engine._slots[0])
        later = engine.submit(prompts[1], 12, settings[1])
        assert ids(later) == alone[1] and later.reused >= 40


@pytest.mark.parametrize("together", [1, 5])
def test_steps_that_are_submitted_ahead_give_the_same_texts(family, together, monkeypatch):
    """As on GPUs, here on the CPU: texts end by a token that nobody foresees while the next steps run."""
    monkeypatch.setattr(step_pace, "TOGETHER_S", 60.0)
    engine = BatchEngine(family.model)
    prompts = [prompt_of(length) for length in (3, 20, 9, 1, 14, 30, 2, 5)]
    whole = [ids(engine.submit(prompt, 25)) for prompt in prompts]
    ends = (whole[0][4], whole[1][9], whole[4][2])
    engine.description = dataclasses.replace(engine.description, end_tokens=ends)
    expected = [ids(engine.submit(prompt, 25)) for prompt in prompts]
    assert expected != whole
    engine._steps.ahead, engine._steps.pace.most = True, together
    for _ in range(2):
        requests = [engine.submit(prompt, 25) for prompt in prompts]
        gone = engine.submit([9], 40, stop_at_end=False)
        next(iter(gone))
        assert [ids(request) for request in requests] == expected
        gone.cancel()
    longer = [prompt + answer for prompt, answer in zip(prompts, expected, strict=True)]
    again = [ids(engine.submit(text[:40], 6)) for text in longer]
    for slot in engine._slots:
        engine._caches.forget(slot)
    engine._steps.ahead = False
    assert [ids(engine.submit(text[:40], 6)) for text in longer] == again
    engine.close()


@pytest.mark.vulkan
@pytest.mark.parametrize("pages", [None, 512])
def test_steps_that_a_device_runs_as_one_submission_give_the_same_texts(folder, pages, monkeypatch):
    """Of several texts, while others come and go."""
    usable_device()
    monkeypatch.setattr(step_pace, "TOGETHER_S", 60.0)
    options = {"devices": "vulkan", "context": 128, "chunk": 8, "sequences": 3, "cache_positions": pages}
    with load_lm(folder, **options) as lm:
        engine, counts = lm.engine(), []
        prompts = [prompt_of(length) for length in (3, 20, 9, 1, 14, 30, 2)]
        samplings = [Sampling(0.8 if n % 2 else 0.0, seed=n) for n in range(len(prompts))]
        engine._steps.pace.most = 1
        expected = [ids(engine.submit(*each)) for each in zip(prompts, [25] * 7, samplings, strict=True)]
        begin = engine.methods.begin_steps
        monkeypatch.setattr(
            engine.methods,
            "begin_steps",
            lambda steps, *rest: (counts.append(len(steps)), begin(steps, *rest))[1],
        )
        engine._steps.pace.most = 4
        for _ in range(3):
            requests = [engine.submit(*each) for each in zip(prompts, [25] * 7, samplings, strict=True)]
            gone = engine.submit([9], 90, stop_at_end=False)
            next(iter(gone))
            gone.cancel()
            assert [ids(request) for request in requests] == expected
        assert {1, 2, 4} <= set(counts)
        idle(engine)


def test_an_error_of_a_step_submitted_ahead_ends_those_that_took_part(engine, monkeypatch):
    expected = [ids(engine.submit([n, 6], 20)) for n in (5, 7)]
    engine._steps.ahead = True
    begin = engine.methods.begin_steps
    calls = itertools.count()

    def failing(*args):
        if next(calls) == 3:
            raise mansard.DeviceLostError("gone")
        return begin(*args)

    monkeypatch.setattr(engine.methods, "begin_steps", failing)
    with pytest.raises(mansard.DeviceLostError, match="gone"):
        ids(engine.submit([5, 6], 20))
    requests = [engine.submit([n, 6], 20) for n in (5, 7)]
    assert [ids(request) for request in requests] == expected


def test_a_long_prompt_does_not_hold_up_the_others(engine):
    running = engine.submit([5], 60, stop_at_end=False)
    tokens = iter(running)
    for _ in range(4):
        next(tokens)  # with the first two, steps are submitted in advance
    order = []
    for name in ("read", "advance"):
        method = getattr(engine.methods, name)
        setattr(engine.methods, name, lambda *args, m=method, n=name: (order.append(n), m(*args))[1])
    long = engine.submit(prompt_of(40), 2)
    assert len(ids(long)) == 2
    running.cancel()
    reads = [n for n, name in enumerate(order) if name == "read"]
    assert len(reads) == 5 and all(b - a == 2 for a, b in itertools.pairwise(reads))


def test_requests_the_model_cannot_serve_are_refused(engine, lm):
    with pytest.raises(mansard.InputError, match="at least one character"):
        engine.submit([5], 1, stop=[""])
    without = BatchEngine(lm.model)
    with pytest.raises(mansard.InputError, match="need a tokenizer"):
        without.submit([5], 1, stop="a")
    without.methods.scores = False
    with pytest.raises(mansard.InputError, match="logprobs=True"):
        without.submit([5], 1, scored=True)
    without.close()


def test_common_prefixes():
    for length in range(6):
        for same in range(length + 1):
            first = list(range(length))
            second = [*first[:same], *(-n - 1 for n in range(length - same))]
            assert common_prefix(first, second) == same == common_prefix(second, [*first, 99])
