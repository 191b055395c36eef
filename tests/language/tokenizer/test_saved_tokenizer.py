"""Tokenizers as assets of artifacts."""

import json
import zlib

import pytest
from support.decoders.tokenizers_of_tests import CHAT, TEXTS, byte_level, sentencepiece, write_gguf

from mansard.errors import ArtifactError
from mansard.language.tokenizer import load_tokenizer
from mansard.language.tokenizer.saved import tokenizer_from_bytes, tokenizer_to_bytes

MESSAGES = [{"role": "user", "content": "Hi"}]


def in_folder(folder, tokenizer):
    """The folder of a checkpoint with the tokenizer."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": CHAT, "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
@pytest.mark.parametrize("of_gguf", [False, True])
def test_a_tokenizer_comes_back(make, of_gguf, tmp_path):
    if of_gguf:
        kind = {byte_level: "gpt2", sentencepiece: "llama"}[make]
        known = load_tokenizer(write_gguf(tmp_path / "t.gguf", make(), kind=kind))
    else:
        known = load_tokenizer(in_folder(tmp_path, make()))
    loaded = tokenizer_from_bytes(tokenizer_to_bytes(known), "it")
    for text in TEXTS:
        assert loaded.encode(text) == known.encode(text)
        assert loaded.decode(loaded.encode(text)) == known.decode(known.encode(text))
    assert (loaded.eos_ids, loaded.special, loaded.bos_id) == (known.eos_ids, known.special, known.bos_id)
    assert loaded.apply_chat_template(MESSAGES) == known.apply_chat_template(MESSAGES)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "in format 2; this version of Mansard reads 1"),
        ({"tokenizer": "{}"}, "no tokenizer"),
        ({"eos_ids": 3}, "'eos_ids' is of type int"),
        ({"chat_template": []}, "'chat_template' is of type list"),
    ],
)
def test_other_content_is_an_error(change, reason, tmp_path):
    good = json.loads(zlib.decompress(tokenizer_to_bytes(load_tokenizer(in_folder(tmp_path, byte_level())))))
    with pytest.raises(ArtifactError, match=f"^it .*{reason}"):
        tokenizer_from_bytes(zlib.compress(json.dumps({**good, **change}).encode()), "it")
    with pytest.raises(ArtifactError, match=r"^it is no tokenizer"):
        tokenizer_from_bytes(b"not compressed", "it")
