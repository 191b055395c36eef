"""Texts with speculation are those without it."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from support.decoders.checkpoints import write_decoder
from support.vulkan_support import usable_device

import mansard
from mansard.language import load_lm
from mansard.language.speculation.opening import open_speculation
from mansard.language.speculation.trace import CallTrace

RANDOM = np.random.default_rng(4)
PROMPTS = [RANDOM.integers(0, 97, length).tolist() for length in (1, 9, 23)]
REPETITIVE = [7, 8, 9, 10, 11, 12] * 4
DRAWN = {"temperature": 0.9, "top_k": 30, "seed": 11}
PENALISED = {"temperature": 0.7, "repetition_penalty": 1.3, "seed": 2}
CONTEXT = 64


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model, and one whose weights differ a little."""
    target, draft = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    module = write_decoder(target, "llama", max_position_embeddings=CONTEXT)
    torch.manual_seed(1)
    for parameter in module.parameters():
        parameter.data += 0.02 * parameter.std() * torch.randn_like(parameter)
    module.save_pretrained(draft)
    return target, draft


def opened(folders, devices, draft_devices=None, draft=None):
    return load_lm(
        folders[0],
        devices=devices,
        context=CONTEXT,
        chunk=8,
        draft=draft or folders[1],
        draft_devices=draft_devices,
    )


@pytest.fixture(scope="module")
def on_cpu(folders):
    with opened(folders, "cpu", "cpu") as lm:
        yield lm


@pytest.fixture(scope="module", params=["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
def lm(request, folders, on_cpu):
    if request.param == "cpu":
        yield on_cpu
        return
    usable_device()
    with opened(folders, "vulkan", "cpu") as other:
        yield other


def ids(tokens):
    return [token.id for token in tokens]


# Tokens are drawn with a penalty, too.
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="greedy"),
        pytest.param(DRAWN, id="drawn", marks=pytest.mark.slow),
        pytest.param(PENALISED, id="penalised"),
    ],
)
def test_texts_are_those_without_speculation(lm, options):
    for prompt in PROMPTS:
        expected = ids(lm.generate(prompt, 40, speculate=False, **options))
        assert lm.stats.speculation is None
        for speculate in (None, 3, 7):
            assert ids(lm.generate(prompt, 40, speculate=speculate, **options)) == expected
            assert lm.stats.speculation.fault is None
        stats = lm.stats.speculation
        assert stats.acceptance > 0.3 and stats.tokens_per_window > 2
        assert stats.windows + stats.accepted + stats.single >= 39


def test_a_text_ends_at_a_token_inside_a_window(on_cpu):
    expected = ids(on_cpu.generate(PROMPTS[1], 40, speculate=False))
    end = next(n for n in itertools.count(9) if expected.index(expected[n]) == n)
    plain = on_cpu.description
    on_cpu.description = dataclasses.replace(plain, end_tokens=(expected[end],))
    try:
        for speculate in (3, 4, 7):
            tokens = ids(on_cpu.generate(PROMPTS[1], 40, speculate=speculate))
            assert tokens == expected[: end + 1]
        assert ids(on_cpu.generate(PROMPTS[1], 40, speculate=7, stop_at_end=False)) == expected
    finally:
        on_cpu.description = plain


@pytest.mark.parametrize("speculate", [None, 1, 7])
def test_a_text_ends_where_the_context_is_full(on_cpu, speculate):
    for length in (CONTEXT - 4, CONTEXT - 1, CONTEXT):
        prompt = np.random.default_rng(length).integers(0, 97, length).tolist()
        tokens = ids(on_cpu.generate(prompt, 1000, speculate=speculate))
        assert tokens == ids(on_cpu.generate(prompt, 1000, speculate=False))
        assert len(tokens) == CONTEXT + 1 - length


def test_as_many_tokens_as_asked_for(on_cpu):
    expected = ids(on_cpu.generate(PROMPTS[0], 9, speculate=False))
    for count in range(1, 10):
        assert ids(on_cpu.generate(PROMPTS[0], count, speculate=7)) == expected[:count]


def test_a_text_that_is_left_inside_a_window_disturbs_none_after_it(lm):
    expected = ids(lm.generate(PROMPTS[2], 30, speculate=False))
    for count in (1, 2, 5, 11):
        left = lm.generate(PROMPTS[1], 50, speculate=7)
        ids(itertools.islice(left, count))
        left.close()
        assert ids(lm.generate(PROMPTS[2], 30)) == expected
    replaced = lm.generate(PROMPTS[1], 50, speculate=3)
    next(replaced)
    assert ids(lm.generate(PROMPTS[2], 30)) == expected
    with pytest.raises(mansard.InputError, match="another text was begun"):
        list(replaced)


def test_a_conversation_goes_on_in_both_caches(on_cpu):
    first = ids(on_cpu.generate(PROMPTS[2], 20))
    longer = [*PROMPTS[2], *first, 5, 6]
    again = ids(on_cpu.generate(longer, 30))
    assert on_cpu.stats.reused == len(PROMPTS[2]) + 19
    assert again == ids(on_cpu.generate(longer, 30, speculate=False))


def test_a_trace_shows_drafts_while_another_device_verifies(lm):
    expected = ids(lm.generate(PROMPTS[1], 50, speculate=4))
    lm.trace = CallTrace()
    assert ids(lm.generate(PROMPTS[1], 50, speculate=4)) == expected
    rows, lm.trace = lm.trace.rows, None
    windows = [row for row in rows if row.label.startswith("verify")]
    drafts = [row for row in rows if row.label == "draft"]
    assert len(windows) == lm.stats.speculation.windows and {row.slot for row in drafts} == {"cpu"}
    meanwhile = [d for d in drafts if any(w.start_ns < d.start_ns < w.end_ns for w in windows)]
    (device,) = {row.slot for row in windows}
    assert len(meanwhile) > 5 if device == "vulkan" else not meanwhile


def failing(begin, calls, error):
    """A method that fails after some calls."""
    left = iter(range(calls))

    def limited(*args, **options):
        if next(left, None) is None:
            raise error
        return begin(*args, **options)

    return limited


@pytest.mark.parametrize("calls", [0, 5])
def test_a_fault_of_the_draft_does_not_end_the_text(on_cpu, monkeypatch, calls):
    expected = ids(on_cpu.generate(PROMPTS[1], 50, speculate=False))
    session = on_cpu.draft.model.method("decode").bind()
    gone = mansard.DeviceError("the device is gone")
    monkeypatch.setattr(session, "begin", failing(session.begin, calls, gone))
    with pytest.warns(RuntimeWarning, match="goes on without speculation: the device is gone"):
        assert ids(on_cpu.generate(PROMPTS[1], 50, speculate=3)) == expected
    assert on_cpu.stats.speculation.fault == "the device is gone"
    monkeypatch.undo()
    assert ids(on_cpu.generate(PROMPTS[1], 50, speculate=3)) == expected
    assert on_cpu.stats.speculation.fault is None


def test_a_fault_of_the_model_ends_the_text(on_cpu, monkeypatch):
    session = on_cpu.model.method("verify").bind()
    gone = mansard.DeviceError("the device is gone")
    monkeypatch.setattr(session, "begin_all", failing(session.begin_all, 2, gone))
    with pytest.raises(mansard.DeviceError, match="the device is gone"):
        list(on_cpu.generate(PROMPTS[1], 50, speculate=3))


def test_the_text_so_far_proposes(folders, tmp_path):
    accepted = 0
    with opened(folders, "cpu", draft="ngram") as lm:
        for prompt in (*PROMPTS, REPETITIVE):
            for options in (DRAWN, PENALISED, {}):
                expected = ids(lm.generate(prompt, 40, speculate=False, **options))
                assert ids(lm.generate(prompt, 40, **options)) == expected
                assert ids(lm.generate(prompt, 40, speculate=7, **options)) == expected
                accepted += lm.stats.speculation.accepted
        lm.save(tmp_path / "lm.mansard")
    assert accepted > 20
    with load_lm(tmp_path / "lm.mansard", draft="ngram") as lm:
        assert ids(lm.generate(REPETITIVE, 40, speculate=7)) == expected


def test_a_model_with_convolutions_verifies_but_does_not_draft(on_cpu, tmp_path):
    write_decoder(tmp_path, "lfm2", num_hidden_layers=2, layer_types=["conv", "full_attention"])
    with load_lm(tmp_path, devices="cpu", context=64, chunk=8, draft="ngram", proposals=3) as lm:
        for prompt in (PROMPTS[1], REPETITIVE):
            expected = ids(lm.generate(prompt, 40, speculate=False))
            assert ids(lm.generate(prompt, 40, speculate=3)) == expected
            longer = [*prompt, *expected[:20]]
            assert ids(lm.generate(prompt, 20, speculate=3)) == expected[:20]
            assert ids(lm.generate(longer, 20, speculate=3)) == expected[20:]
        with pytest.raises(mansard.InputError, match="a lfm2 model cannot be a draft: the state of its conv"):
            open_speculation(on_cpu, lm)


def test_wrong_drafts_and_windows(folders, on_cpu, tmp_path):
    write_decoder(tmp_path / "other", "llama", vocab_size=64, num_hidden_layers=1)
    with (
        load_lm(tmp_path / "other", devices="cpu", context=16, chunk=8) as other,
        pytest.raises(mansard.InputError, match="a vocabulary of 64 tokens, the model one of 97"),
    ):
        open_speculation(on_cpu, other)
    with pytest.raises(mansard.InputError, match="'nothing' is neither 'ngram' nor the path"):
        opened(folders, "cpu", draft="nothing")
    with pytest.raises(mansard.InputError, match="a draft is for a model of one sequence"):
        load_lm(folders[0], devices="cpu", sequences=2, draft="ngram")
    with pytest.raises(mansard.InputError, match="speculate=8 is outside 0 to 7"):
        on_cpu.generate([1], speculate=8)
    with pytest.raises(mansard.InputError, match="has no draft to speculate with"):
        on_cpu.draft.generate([1], speculate=True)
    on_cpu.draft.save(tmp_path / "plain.mansard")
    with pytest.raises(mansard.InputError, match="compiled without the verification of proposals"):
        load_lm(tmp_path / "plain.mansard", draft="ngram")
