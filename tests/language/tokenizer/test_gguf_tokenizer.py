"""Tokenizers of GGUF files are those that were written, and those that transformers reads."""

from __future__ import annotations

import gguf
import pytest
from support.decoders.tokenizers_of_tests import TEXTS, byte_level, sentencepiece, write_gguf, write_tokenizer
from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from mansard.errors import ImportModelError
from mansard.language.tokenizer import find_tokenizer, load_tokenizer
from mansard.language.tokenizer.gguf_splits import SPLITS

KINDS = {
    "byte-level": (byte_level, {"kind": "gpt2"}),
    "sentencepiece, merges": (sentencepiece, {"kind": "llama"}),
    "sentencepiece, scores": (sentencepiece, {"kind": "llama", "scores": True}),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_tokenizer_comes_back(name, tmp_path):
    make, options = KINDS[name]
    known = make()
    path = write_gguf(tmp_path / "t.gguf", known, **options)
    tokenizer = load_tokenizer(path)
    for text in TEXTS:
        assert tokenizer.encode(text) == known.encode(text).ids, text
        assert tokenizer.decode(tokenizer.encode(text)) == known.decode(known.encode(text).ids)
    assert tokenizer.vocabulary == known.get_vocab_size()
    assert tokenizer.bos_id == known.token_to_id("<s>")
    assert tokenizer.special["eos_token"] == "</s>"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}]).startswith(
        "<s><|im_start|>user\nHi"
    )


def test_a_file_without_tokens_has_no_tokenizer(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "none.gguf", "llama")
    finish(writer)
    assert find_tokenizer(tmp_path / "none.gguf") is None
    assert find_tokenizer(write_gguf(tmp_path / "t.gguf", byte_level())).encode("a", special_tokens=False)
    assert find_tokenizer(tmp_path) is None


def test_tokens_that_end_a_turn(tmp_path):
    known = byte_level()
    tokenizer = load_tokenizer(write_gguf(tmp_path / "t.gguf", known))
    assert tokenizer.eos_ids == (known.token_to_id("</s>"), known.token_to_id("<|im_end|>"))


@pytest.mark.parametrize("split", [*sorted(SPLITS.keys() & GGUF_PRE_TOKENIZER_SPLITS.keys()), "gpt-2"])
def test_texts_are_split_as_in_transformers(split, tmp_path):
    path = write_gguf(tmp_path / "t.gguf", byte_level(), pre=split)
    known, _ = convert_gguf_tokenizer(*get_gguf_tokenizer(str(path))[:2])
    for text in TEXTS:
        pieces = SPLITS[split].pre_tokenizer().pre_tokenize_str(text)
        assert pieces == known.pre_tokenizer.pre_tokenize_str(text)


def test_digits_one_by_one_within_the_split_of_gpt2(tmp_path):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "t.gguf", byte_level(), pre="refact"))
    ids = tokenizer.encode("The 12 foxes", special_tokens=False)
    assert {"1", "2"} <= {tokenizer.decode([token]) for token in ids}
    assert tokenizer.decode(ids) == "The 12 foxes"


def test_sentencepiece_is_read_as_in_transformers(tmp_path):
    path = write_gguf(tmp_path / "t.gguf", sentencepiece(), kind="llama", scores=True)
    tokenizer = load_tokenizer(path)
    known, _ = convert_gguf_tokenizer(*get_gguf_tokenizer(str(path))[:2])
    for text in TEXTS:
        assert (
            tokenizer.encode(text, special_tokens=False) == known.encode(text, add_special_tokens=False).ids
        )


def test_gemma_has_no_first_space_and_spaces_as_spaces(tmp_path):
    """Tokens of spaces are real spaces in its file, and the order of merges is that of positions."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{b:02X}>" for b in range(256)), "  ", "   "]
    tokens += ["▁a", "▁ab", *"▁abc"]
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "gemma3")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-1000.0] * len(tokens))
    writer.add_token_types([3, 3, 3, 2] + [6] * 256 + [4, 4] + [1] * 6)
    for add, number in (
        (writer.add_bos_token_id, 2),
        (writer.add_eos_token_id, 1),
        (writer.add_unk_token_id, 3),
    ):
        add(number)
    finish(writer)
    tokenizer = load_tokenizer(tmp_path / "t.gguf")
    names = [tokenizer.token(number) for number in tokenizer.encode("ab  ab c ab")]
    assert names == ["<bos>", "a", "b", "▁▁", "a", "b", "▁", "c", "▁ab"]
    assert tokenizer.decode(tokenizer.encode("ab  ab c ab")) == "ab  ab c ab"


@pytest.mark.parametrize(
    ("begin", "end", "wanted"), [(True, True, [0, 1]), (False, False, []), (False, True, [1])]
)
def test_what_is_added_around_a_text(begin, end, wanted, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    write_tokenizer(writer, byte_level(), pre="gpt-2")
    writer.add_add_bos_token(begin)
    writer.add_add_eos_token(end)
    finish(writer)
    assert load_tokenizer(tmp_path / "t.gguf").encode("") == wanted


def test_tokens_of_the_user_are_found_whole(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "qwen3")
    alphabet = [chr(c) for c in range(ord("!"), ord("~") + 1)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*alphabet, "Ġ", "<think>", "<|endoftext|>"])
    writer.add_token_types([1] * 95 + [4, 3])
    writer.add_token_merges([])
    finish(writer)
    tokenizer = load_tokenizer(tmp_path / "t.gguf")
    ids = tokenizer.encode("a<think>b<|endoftext|>")
    assert [tokenizer.token(number) for number in ids] == ["a", "<think>", "b", "<|endoftext|>"]
    assert tokenizer.decode(ids) == "a<think>b"
    assert tokenizer.eos_ids == (96,)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda w: None, r"has no tokenizer \(tokenizer.ggml.tokens\)"),
        (lambda w: w.add_tokenizer_model("bert"), "has a tokenizer of kind 'bert'; supported"),
        (lambda w: (w.add_tokenizer_model("gpt2"), w.add_tokenizer_pre("odd")), "splits texts as 'odd'"),
        (lambda w: w.add_tokenizer_model("gpt2"), "splits texts as None"),
        (
            lambda w: (
                w.add_tokenizer_model("gpt2"),
                w.add_tokenizer_pre("gpt-2"),
                w.add_token_merges(["a b c"]),
            ),
            "an entry that is no pair of tokens",
        ),
        (
            lambda w: (
                w.add_tokenizer_model("gpt2"),
                w.add_tokenizer_pre("gpt-2"),
                w.add_token_merges(["x y"]),
            ),
            "the tokenizer of .* is not valid",
        ),
        (
            lambda w: (w.add_tokenizer_model("llama"), w.add_token_scores([1.0])),
            "has 1 scores .* for 2 tokens",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said(spoil, message, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    if message != r"has no tokenizer \(tokenizer.ggml.tokens\)":
        writer.add_token_list(["a", "b"])
    spoil(writer)
    finish(writer)
    with pytest.raises(ImportModelError, match=message):
        load_tokenizer(tmp_path / "t.gguf")


def test_a_list_of_something_else(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_array("tokenizer.ggml.tokens", [1, 2])
    finish(writer)
    with pytest.raises(ImportModelError, match=r"tokenizer.ggml.tokens of .* is not a list of str"):
        load_tokenizer(tmp_path / "t.gguf")
