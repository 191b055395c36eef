"""Generation on devices against transformers."""

import asyncio
import shutil
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors import safe_open
from support.decoders.checkpoints import reference_logits, write_decoder
from support.decoders.tokenizers_of_tests import byte_level
from support.vulkan_support import usable_device

import mansard
from mansard.artifact.container import Container
from mansard.artifact.signing import generate_key, sign_artifact
from mansard.language import load_lm, step_pace
from mansard.runtime.calls.pending_call import PendingCall

PROMPT = np.random.default_rng(3).integers(0, 97, 21).tolist()
DEVICES = ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("llama")


@pytest.fixture(scope="module")
def module(folder):
    return write_decoder(folder, "llama")


@pytest.fixture(scope="module", params=DEVICES)
def lm(request, folder, module):
    if request.param == "vulkan":
        usable_device()
    with load_lm(folder, devices=request.param, context=48, chunk=8) as opened:
        yield opened


@pytest.fixture(scope="module")
def on_cpu(folder, module):
    with load_lm(folder, devices="cpu", context=48, chunk=8) as opened:
        yield opened


def ids(tokens):
    return [token.id for token in tokens]


@pytest.fixture(scope="module")
def greedy(module):
    prompt = torch.tensor([PROMPT])
    return module.generate(prompt, max_new_tokens=20, do_sample=False)[0, len(PROMPT) :].tolist()


def test_greedy_tokens_are_those_of_transformers(lm, greedy):
    assert ids(lm.generate(PROMPT, 20)) == greedy
    assert (lm.stats.prompt, lm.stats.generated) == (21, 20)
    assert len(set(greedy)) > 5  # not one token over and over, which would show little


def test_logits_of_every_token_match(lm, module):
    for length in (1, 7, 8, 21):
        expected = reference_logits(module, PROMPT[:length])
        assert np.abs(lm.logits(PROMPT[:length]) - expected).max() / np.abs(expected).max() < 3e-6


def test_a_prompt_that_begins_alike_is_read_from_where_it_differs(on_cpu, greedy):
    on_cpu.generate(PROMPT, 1).__next__()
    assert ids(on_cpu.generate(PROMPT, 20)) == greedy and on_cpu.stats.reused == 20
    list(on_cpu.generate([*PROMPT[:9], 5, 5], 3))
    assert on_cpu.stats.reused == 9
    assert ids(on_cpu.generate(PROMPT, 20)) == greedy and on_cpu.stats.reused == 9


def test_tokens_are_drawn_from_the_distribution(on_cpu, module):
    logits = reference_logits(module, PROMPT)[-1].astype(np.float64) / 1.5
    expected = np.exp(logits - logits.max())
    expected /= expected.sum()
    draws = 600
    counts = Counter(next(on_cpu.generate(PROMPT, 1, temperature=1.5, seed=seed)).id for seed in range(draws))
    observed = np.array([counts[token] for token in range(97)])
    statistic = ((observed - draws * expected) ** 2 / (draws * expected)).sum()
    assert statistic < 170  # chi-squared with 96 degrees of freedom: above with a probability of 5e-6


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 3}, lambda p: 3),
        ({"top_p": 0.4}, lambda p: int(np.searchsorted(np.cumsum(p), 0.4)) + 1),
        ({"min_p": 0.3}, lambda p: int((p >= 0.3 * p[0]).sum())),
    ],
)
def test_truncated_distributions_leave_out_the_rest(on_cpu, module, options, kept):
    logits = reference_logits(module, PROMPT)[-1]
    order = np.argsort(-logits)
    probabilities = np.exp(logits[order] - logits.max())
    allowed = set(order[: kept(probabilities / probabilities.sum())].tolist())
    drawn = {next(on_cpu.generate(PROMPT, 1, temperature=1.0, seed=s, **options)).id for s in range(60)}
    assert drawn <= allowed and len(drawn) > min(len(allowed), 3) // 2


def test_greedy_choice_knows_no_restriction(on_cpu, greedy):
    assert ids(on_cpu.generate(PROMPT, 20, top_k=3, top_p=0.5, min_p=0.2)) == greedy


def test_a_repetition_penalty_acts_on_tokens_that_occurred(on_cpu, module):
    logits = reference_logits(module, PROMPT)[-1].astype(np.float64)
    seen = np.isin(np.arange(97), PROMPT)
    penalised = np.where(seen, np.where(logits > 0, logits / 5, logits * 5), logits)
    assert next(on_cpu.generate(PROMPT, 1, repetition_penalty=5.0)).id == penalised.argmax()
    tokens = ids(on_cpu.generate(PROMPT, 20, repetition_penalty=100.0))
    assert len(set(tokens)) == 20 and not set(tokens) & set(PROMPT)


def test_steps_that_are_submitted_together_give_the_same_texts(lm, greedy, monkeypatch):
    monkeypatch.setattr(step_pace, "TOGETHER_S", 60.0)
    session = lm.model.method("decode_unrestricted").bind()
    begin, counts = session.begin_all, []
    monkeypatch.setattr(session, "begin_all", lambda inputs: (counts.append(len(inputs)), begin(inputs))[1])
    sampled = {"temperature": 0.8, "seed": 5, "repetition_penalty": 1.2}
    drawn = ids(lm.generate(PROMPT, 20, **sampled))
    for most in (8, 3):
        monkeypatch.setattr(lm._pace, "most", most)
        assert ids(lm.generate(PROMPT, 20)) == greedy
        assert ids(lm.generate(PROMPT, 20, **sampled)) == drawn
        tokens = lm.generate(PROMPT, 20)  # dropped while steps run
        assert [next(tokens).id for _ in range(4)] == greedy[:4]
        assert ids(lm.generate(PROMPT[:9], 9)) == ids(lm.generate(PROMPT[:9], 9))
        assert max(counts) == most
        counts.clear()


def test_texts_that_nothing_restricts_take_the_shorter_steps(lm, monkeypatch):
    short, long = lm.model.method("decode_unrestricted"), lm.model.method("decode")
    assert len(short.plan.decisions) < len(long.plan.decisions)
    called = []
    for session in (short.bind(), long.bind()):
        begin = session.begin_all

        def watched(*args, session=session, begin=begin, **kwargs):
            called.append(session)
            return begin(*args, **kwargs)

        monkeypatch.setattr(session, "begin_all", watched)
    options = {"temperature": 0.8, "seed": 5, "repetition_penalty": 1.2}
    drawn = ids(lm.generate(PROMPT, 12, **options))
    assert set(called) == {short.bind()}
    called.clear()
    assert ids(lm.generate(PROMPT, 12, **options, min_p=1e-30)) == drawn
    assert set(called) == {long.bind()}


def test_equal_seeds_give_equal_texts(on_cpu):
    def draw(seed):
        return ids(on_cpu.generate(PROMPT, 10, temperature=1.0, seed=seed))

    assert draw(7) == draw(7) != draw(8)


def test_tokens_come_to_coroutines(on_cpu):
    expected = [token.id for token in on_cpu.generate([3, 4], 8)]

    async def whole():
        return [token.id async for token in on_cpu.generate_async([3, 4], 8)]

    async def cancelled():
        begun = asyncio.Event()

        async def read():
            async for _ in on_cpu.generate_async([5], 40):
                begun.set()

        reader = asyncio.create_task(read())
        await begun.wait()
        reader.cancel()
        await asyncio.wait([reader])
        return reader.cancelled()

    assert asyncio.run(whole()) == expected and asyncio.run(cancelled())
    assert [token.id for token in on_cpu.generate([3, 4], 8)] == expected


def test_text_goes_in_and_comes_out(module, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    tokenizer = byte_level()
    small = tokenizer.encode("The lazy dog").ids
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    with load_lm(tmp_path / "model", devices="cpu", context=48, chunk=8) as lm:
        assert lm.encode("The lazy dog") == small
        with pytest.raises(mansard.InputError, match="outside the vocabulary of 97"):
            lm.text("The lazy dog")  # this vocabulary is larger than the model's
        tokens = list(lm.generate([5, 6, 7], 20))
        assert "".join(token.text for token in tokens) == lm.text([5, 6, 7], 20)
        assert lm.tokenizer.decode([5, 6, 7, *ids(tokens)]).endswith(lm.text([5, 6, 7], 20))


def test_an_artifact_generates_the_same(on_cpu, greedy, tmp_path):
    on_cpu.save(tmp_path / "lm.mansard")
    with mansard.load_lm(tmp_path / "lm.mansard") as loaded:
        assert ids(loaded.generate(PROMPT, 20)) == greedy


def test_an_artifact_has_its_tokenizer(module, folder, tmp_path, monkeypatch):
    path = tmp_path / "lm.mansard"
    with load_lm(folder, devices="cpu", context=48, chunk=8, tokenizer=known_tokenizer(tmp_path)) as lm:
        expected = lm.text([5, 6, 7], 20)
        lm.save(path)
    with load_lm(path) as lm:
        assert lm.text([5, 6, 7], 20) == expected and expected
        lm.save(path)  # still has it
    with load_lm(path) as lm:
        assert lm.encode("The lazy dog") == byte_level().encode("The lazy dog").ids
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # not installed
    with load_lm(path) as lm:
        assert lm.tokenizer is None and len(list(lm.generate([5, 6, 7], 4))) == 4
        with pytest.raises(mansard.ImportModelError, match=r"pip install 'mansard\[lm\]'"):
            lm.encode("The lazy dog")


def known_tokenizer(folder):
    """A file with a tokenizer."""
    byte_level().save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_an_artifact_is_as_it_was_compiled(on_cpu, tmp_path):
    path, held = tmp_path / "lm.mansard", on_cpu.description
    on_cpu.save(path)
    same = {name: getattr(held, name) for name in ("context", "chunk", "sequences", "proposals")}
    mansard.load_lm(path, **same).close()
    for name, value in {**same, "logprobs": 0}.items():
        with pytest.raises(mansard.InputError, match=f"compiled with {name}=.*, not .*leave {name} out"):
            mansard.load_lm(path, **{name: value + 1})


def test_an_artifact_is_trusted_by_its_signature(on_cpu, folder, greedy, tmp_path):
    private, public, _ = generate_key(tmp_path / "release.pem")
    signed, unsigned = tmp_path / "signed.mansard", tmp_path / "unsigned.mansard"
    on_cpu.save(unsigned)
    sign_artifact(unsigned, private, signed)
    with load_lm(signed, trusted_keys=[public], copy=True) as lm:
        assert ids(lm.generate(PROMPT, 20)) == greedy
    with pytest.raises(mansard.SignatureError):
        load_lm(unsigned, trusted_keys=[public])
    with pytest.raises(mansard.SignatureError):  # the draft
        load_lm(signed, trusted_keys=[public], draft=unsigned)
    opened = Container(unsigned)
    content, weights = bytearray(opened.data), opened.entry("weights.safetensors")
    content[weights.ctypes.data - opened.data.ctypes.data + weights.size - 1] ^= 1
    unsigned.write_bytes(content)
    with pytest.raises(mansard.ArtifactError, match="altered"):
        load_lm(unsigned, verify="full")
    for option in ({"trusted_keys": [public]}, {"copy": True}, {"verify": "full"}):
        with pytest.raises(mansard.InputError, match=f"is a checkpoint: {next(iter(option))}: for artifacts"):
            load_lm(folder, **option)


def test_a_cpu_has_each_weight_once_where_the_checkpoint_is_mapped(on_cpu, folder):
    list(on_cpu.generate(PROMPT, 3))
    kinds = Counter()
    for row in on_cpu.memory():
        kinds[row.kind] += row.bytes if row.what == "weights" else 0
    with safe_open(folder / "model.safetensors", "np") as file:
        total = sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118
    assert 0 <= kinds["mapped"] - total < 64  # a table of rotations is no weight of the checkpoint
    assert not kinds["uploaded"]


def test_generation_ends_where_the_context_is_full(on_cpu):
    tokens = ids(on_cpu.generate(PROMPT, 1000))
    assert len(PROMPT) + len(tokens) == 48 + 1


def test_a_second_generation_ends_the_first(on_cpu):
    first = on_cpu.generate(PROMPT, 10)
    next(first)
    list(on_cpu.generate(PROMPT[:5], 2))
    with pytest.raises(mansard.InputError, match="another text was begun"):
        list(first)


def test_steps_are_submitted_before_the_token_behind_the_prompt_is_read(on_cpu, monkeypatch):
    expected = ids(on_cpu.generate(PROMPT, 4))
    events: list[str] = []
    submit, result = on_cpu._submit, PendingCall.result

    def submitted(*args):
        events.append("submitted")
        return submit(*args)

    def read(call, *args, **options):
        events.append("read")
        return result(call, *args, **options)

    monkeypatch.setattr(on_cpu, "_submit", submitted)
    monkeypatch.setattr(PendingCall, "result", read)
    text = on_cpu.generate([*PROMPT], 4)
    assert next(text).id == expected[0]
    assert events.index("read") > events.index("submitted") and events.count("read") == 1
    assert [token.id for token in text] == expected[1:]
    events.clear()
    next(on_cpu.generate(PROMPT, 1))
    assert events == ["read"]  # one token needs no step


def test_a_text_that_is_left_behind_its_first_token_leaves_no_step(on_cpu, monkeypatch):
    expected, submit = ids(on_cpu.generate(PROMPT, 3)), on_cpu._submit
    calls: list[PendingCall] = []

    def submitted(*args):
        calls.extend(submit(*args))
        return list(calls)

    monkeypatch.setattr(on_cpu, "_submit", submitted)
    text = on_cpu.generate(PROMPT, 10)
    next(text)
    text.close()
    assert len(calls) == 1
    with pytest.raises(mansard.CallCancelledError):
        calls[0].result()
    monkeypatch.undo()
    assert ids(on_cpu.generate(PROMPT, 3)) == expected


def test_a_prompt_that_fails_leaves_no_step_behind(on_cpu, monkeypatch):
    expected, result = ids(on_cpu.generate(PROMPT, 4)), PendingCall.result
    calls: list[PendingCall] = []

    def failing(call, *args, **options):
        calls.append(call)
        result(call, *args, **options)
        raise mansard.DeviceError("the device failed")

    with monkeypatch.context() as patched:
        patched.setattr(PendingCall, "result", failing)
        with pytest.raises(mansard.DeviceError, match="the device failed"):
            next(on_cpu.generate([1, 2, 3], 4))
    assert len(calls) == 1 and on_cpu._cached != [1, 2, 3]
    assert ids(on_cpu.generate(PROMPT, 4)) == expected


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "the prompt is empty"),
        ([1] * 49, {}, "49 tokens; the cache holds 48"),
        ([97], {}, "token 97 is outside the vocabulary of 97"),
        ("text", {}, "has no tokenizer"),
        ([1], {"max_new_tokens": 0}, "at least one token"),
        ([1], {"temperature": -1}, "temperature=-1 is not a number in 0 to 100"),
        ([1], {"top_p": float("nan")}, "top_p=nan"),
        ([1], {"top_k": 1000}, "top_k=1000 is outside 0"),
    ],
)
def test_wrong_input_is_one_clear_error(on_cpu, prompt, options, message):
    with pytest.raises(mansard.InputError, match=message):
        next(on_cpu.generate(prompt, **options))


def test_a_cache_that_does_not_fit_is_refused(tmp_path):
    write_decoder(tmp_path, "llama", max_position_embeddings=1 << 30, num_hidden_layers=1)
    with pytest.raises(mansard.OutOfMemoryError, match=r"takes 1\d\d\.\d GB on cpu, which has .* smaller"):
        load_lm(tmp_path, devices="cpu", context=1 << 30, chunk=8)


def test_wrong_limits_and_paths(folder, module, tmp_path):
    with pytest.raises(mansard.CompileError, match="context=100: the model has 2 to 64 positions"):
        load_lm(folder, devices="cpu", context=100)
    with pytest.raises(mansard.InputError, match="does not exist: load_lm takes"):
        load_lm(tmp_path / "nothing")
    with pytest.raises(mansard.ImportModelError, match=r"has no config.json, so it is not a Hugging Face"):
        load_lm(tmp_path)
    shutil.copytree(folder, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(mansard.ImportModelError, match=r"is truncated: tensor .* ends at byte .*; download"):
        load_lm(tmp_path / "cut")
    shutil.copytree(folder, tmp_path / "other")
    (tmp_path / "other" / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(
        mansard.ImportModelError, match=r"type 'mamba' are not known; known: gemma, .*qwen3_moe"
    ):
        load_lm(tmp_path / "other")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF")
    with pytest.raises(mansard.ImportModelError, match="is truncated: its header goes beyond the 4 bytes"):
        load_lm(tmp_path / "cut.gguf")


def test_pieces_of_one_length_give_the_same_text(folder, on_cpu, greedy):
    with load_lm(folder, devices="cpu", context=48, chunk=8, fixed_chunk=True, sequences=2) as fixed:
        method = fixed.model.method("prefill")
        assert next(spec.shape for spec in method.inputs if spec.name == "tokens") == (1, 8)
        assert ids(fixed.generate(PROMPT, 20)) == greedy
        # The last piece of a prompt that fills the context is padded beyond it.
        long = (PROMPT * 3)[:45]
        assert ids(fixed.generate(long, 3)) == ids(on_cpu.generate(long, 3))
    with pytest.raises(mansard.CompileError, match="fixed_chunk pads"):
        load_lm(folder, devices="cpu", chunk=8, fixed_chunk=True, sequences=2, cache_positions=256)
