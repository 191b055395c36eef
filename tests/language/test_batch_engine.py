"""Several texts at a time: each is what it would be alone."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from support.decoders.checkpoints import write_decoder
from support.vulkan_support import usable_device

import mansard
from mansard.language import load_lm
from mansard.language.batch_engine import BatchEngine
from mansard.language.generation import Sampling

DEVICES = ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]
RANDOM = np.random.default_rng(5)
PROMPTS = [RANDOM.integers(0, 97, int(length)).tolist() for length in RANDOM.integers(1, 30, 12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("batched")


@pytest.fixture(scope="module")
def expected(folder):
    module = write_decoder(folder, "llama")
    answers = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        answer = module.generate(ids, attention_mask=mask, max_new_tokens=14, do_sample=False)
        answers.append(answer[0, len(prompt) :].tolist())
    return answers


@pytest.fixture(scope="module")
def on_cpu(folder, expected):
    with load_lm(folder, devices="cpu", context=64, chunk=8, sequences=3) as opened:
        yield opened


@pytest.fixture(scope="module", params=DEVICES)
def lm(request, folder, expected):
    if request.param == "cpu":
        yield request.getfixturevalue("on_cpu")
        return
    usable_device()
    with load_lm(folder, devices=request.param, context=64, chunk=8, sequences=3) as opened:
        yield opened


def ids(tokens):
    return [token.id for token in tokens]


def test_each_of_many_texts_is_what_it_would_be_alone(lm, expected):
    requests = [lm.engine().submit(prompt, 14) for prompt in PROMPTS]
    assert [ids(request) for request in requests] == expected


def test_threads_generate_at_the_same_time(on_cpu, expected):
    answers = [None] * len(PROMPTS)

    def work(number):
        answers[number] = ids(on_cpu.generate(PROMPTS[number], 14))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == expected and on_cpu.engine().active == 0


def test_what_is_drawn_does_not_depend_on_the_others(on_cpu):
    options = Sampling(temperature=1.0, top_k=20, repetition_penalty=1.3, seed=11)
    alone = ids(on_cpu.engine().submit(PROMPTS[0], 14, options))
    others = [on_cpu.engine().submit(p, 14, Sampling(1.5, seed=n)) for n, p in enumerate(PROMPTS)]
    again = ids(on_cpu.engine().submit(PROMPTS[0], 14, options))
    assert again == alone
    for other in others:
        ids(other)


def test_a_cancelled_request_gives_its_place_to_others(on_cpu, expected):
    endless = [on_cpu.engine().submit([1], 40, stop_at_end=False) for _ in range(3)]
    waiting = on_cpu.engine().submit(PROMPTS[0], 14)
    for request in endless:
        request.cancel()
    assert ids(waiting) == expected[0]
    for request in endless:
        with pytest.raises(mansard.CallCancelledError, match="the request was cancelled"):
            ids(request)


def test_the_highest_priority_goes_first(on_cpu):
    engine = on_cpu.engine()
    running = [engine.submit([n], 64, stop_at_end=False) for n in (1, 2, 4)]
    order = []

    def recorded(name, priority):
        request = engine.submit([3], 1, priority=priority)
        deliver = request.deliver
        request.deliver = lambda result: (order.append(name), deliver(result))
        return request

    late = [recorded("low", 0), recorded("high", 5)]
    for request in [*running, *late]:
        ids(request)
    assert order == ["high", "high", "low", "low"]  # a token and the end of each


def test_closing_ends_requests_with_an_error(folder, expected):
    lm = load_lm(folder, devices="cpu", context=64, chunk=8, sequences=3)
    requests = [lm.engine().submit([n], 40, stop_at_end=False) for n in range(5)]
    lm.close()
    for request in requests:
        with pytest.raises(mansard.CallCancelledError, match="the engine was closed"):
            ids(request)
    with pytest.raises(mansard.MansardError, match="the engine is closed"):
        lm.engine().submit([1], 1)


def test_wrong_requests_are_refused(on_cpu):
    with pytest.raises(mansard.InputError, match="65 tokens; the cache holds 1 to 64"):
        on_cpu.engine().submit([1] * 65, 1)
    with pytest.raises(mansard.InputError, match="token 97 is outside the vocabulary of 97"):
        on_cpu.engine().submit([97], 1)
    with pytest.raises(mansard.InputError, match="model for one sequence"):
        on_cpu.logits([1, 2])
    engine = BatchEngine(on_cpu.model, max_waiting=0)
    with pytest.raises(mansard.QueueFullError, match="0 requests wait already"):
        engine.submit([1], 1)
    engine.close()
