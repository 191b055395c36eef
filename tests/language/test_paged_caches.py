"""Texts whose caches lie in pages that all share: each is what it would be alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.decoders.checkpoints import write_decoder
from support.vulkan_support import usable_device

from mansard.errors import CompileError, InputError
from mansard.language import load_lm
from mansard.language.caches.page_pool import PagePool
from mansard.language.generation import Sampling

DEVICES = ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]
RANDOM = np.random.default_rng(5)
PROMPTS = [RANDOM.integers(0, 97, int(length)).tolist() for length in (150, 7, 250, 129, 128, 1, 640, 90)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("paged")


@pytest.fixture(scope="module")
def expected(folder):
    module = write_decoder(folder, "llama", max_position_embeddings=768)
    answers = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        answer = module.generate(ids, attention_mask=mask, max_new_tokens=14, do_sample=False)
        answers.append(answer[0, len(prompt) :].tolist())
    return answers


OPTIONS = {"context": 768, "chunk": 64, "sequences": 3, "cache_positions": 1024}
"""Three texts share eight pages; the context is long enough for GPUs to split attention along it."""


@pytest.fixture(scope="module")
def on_cpu(folder, expected):
    with load_lm(folder, devices="cpu", **OPTIONS) as opened:
        yield opened


@pytest.fixture(scope="module", params=DEVICES)
def lm(request, folder, expected):
    if request.param == "cpu":
        yield request.getfixturevalue("on_cpu")
        return
    usable_device()
    with load_lm(folder, devices=request.param, **OPTIONS) as opened:
        yield opened


def ids(tokens):
    return [token.id for token in tokens]


def test_each_of_many_texts_is_what_it_would_be_alone(lm, expected):
    requests = [lm.engine().submit(prompt, 14) for prompt in PROMPTS]
    assert [ids(request) for request in requests] == expected


@pytest.mark.slow
@pytest.mark.parametrize("family", ["lfm2", "qwen3_moe"])
@pytest.mark.parametrize("cache", [None, "int8"])
def test_families_and_types_of_caches_in_pages(tmp_path, family, cache):
    write_decoder(tmp_path, family, max_position_embeddings=768)
    answers = []
    for pages in ({}, {"cache_positions": 512}):
        options = {"context": 300, "chunk": 64, "sequences": 2, "cache_dtype": cache, **pages}
        with load_lm(tmp_path, devices="cpu", **options) as lm:
            requests = [lm.engine().submit(prompt, 14, stop_at_end=False) for prompt in PROMPTS[:6]]
            answers.append([ids(request) for request in requests])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("ahead", [False, True])
def test_texts_that_run_out_of_pages_are_read_again_and_go_on(on_cpu, monkeypatch, ahead):
    """With steps submitted ahead, as on GPUs, too."""
    engine = on_cpu.engine()
    monkeypatch.setattr(engine._steps, "ahead", ahead)
    prompts = [RANDOM.integers(0, 97, 120).tolist() for _ in range(3)]
    alone = [ids(engine.submit(prompt, 170, stop_at_end=False)) for prompt in prompts]
    before = engine.stats.preempted
    requests = [engine.submit(prompt, 170, stop_at_end=False, priority=p) for p, prompt in enumerate(prompts)]
    assert [ids(request) for request in requests] == alone
    assert engine.stats.preempted > before


def test_drawn_texts_are_the_same_when_they_had_to_give_way(on_cpu):
    engine = on_cpu.engine()
    options = Sampling(temperature=1.0, top_k=20, repetition_penalty=1.3, seed=11)
    prompts = [RANDOM.integers(0, 97, 125).tolist() for _ in range(3)]
    alone = [ids(engine.submit(prompt, 150, options, stop_at_end=False)) for prompt in prompts]
    before = engine.stats.preempted
    requests = [engine.submit(prompt, 150, options, stop_at_end=False) for prompt in prompts]
    assert [ids(request) for request in requests] == alone
    assert engine.stats.preempted > before


def test_a_text_begins_with_pages_that_hold_its_beginning(on_cpu, expected):
    engine = on_cpu.engine()
    first = engine.submit(PROMPTS[2], 14)
    assert ids(first) == expected[2]
    again = engine.submit(PROMPTS[2], 14)
    assert ids(again) == expected[2]
    assert again.reused == 128  # of 250 tokens one page is full


def test_a_text_larger_than_all_pages_is_refused(folder, expected):
    with load_lm(folder, devices="cpu", **{**OPTIONS, "cache_positions": 128}) as lm:
        with pytest.raises(InputError, match=r"may have 140 positions.*128"):
            lm.engine().submit(PROMPTS[1] * 10, 70)
        assert len(ids(lm.engine().submit(PROMPTS[1], 30, stop_at_end=False))) == 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequences": 2, "cache_positions": 5}, "a page has 128 positions"),
        ({"cache_positions": 1000}, "shared by several texts"),
    ],
)
def test_wrong_numbers_of_positions_are_refused(folder, expected, options, message):
    with pytest.raises(CompileError, match=message):
        load_lm(folder, devices="cpu", context=300, **options)


# The pool ------------------------------------------------------------------------------------
def filled(pool, tokens):
    """Pages of a text, published and in use."""
    pages, numbers = pool.match(tokens)
    for index in range(len(pages), len(tokens) // pool.size):
        page = pool.allocate()
        assert page is not None
        pages.append(page)
        part = tokens[index * pool.size : (index + 1) * pool.size]
        numbers.append(pool.publish(page, numbers[-1] if numbers else 0, part))
    return pages


def test_pages_are_shared_and_kept_until_they_are_needed():
    pool = PagePool(5, 2)
    first = filled(pool, [1, 2, 3, 4])
    assert filled(pool, [1, 2, 3, 4]) == first and pool.available == 2
    pool.release(first)
    assert pool.available == 2
    pool.release(first)
    assert pool.available == 4
    assert pool.match([1, 2, 3, 4, 5])[0] == first
    pool.release(first)
    assert pool.match([3, 4])[0] == []  # the same tokens, but at the beginning of a text
    taken = [pool.allocate() for _ in range(4)]
    assert sorted(taken) == [1, 2, 3, 4] and pool.allocate() is None
    assert pool.match([1, 2])[0] == []


def test_of_a_text_that_nobody_uses_the_end_goes_first():
    pool = PagePool(4, 2)
    pages = filled(pool, [1, 2, 3, 4, 5, 6])
    pool.release(pages)
    assert pool.allocate() == pages[2]
    assert pool.match([1, 2, 3, 4])[0] == pages[:2]


def test_forgotten_pages_are_free_but_those_in_use():
    pool = PagePool(4, 2)
    kept = filled(pool, [1, 2])
    pool.release(filled(pool, [7, 8]))
    pool.clear()
    assert pool.match([1, 2])[0] == [] and pool.match([7, 8])[0] == [] and pool.available == 2
    pool.release(kept)
    assert pool.available == 3
