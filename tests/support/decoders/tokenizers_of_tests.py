"""Tokenizers that are trained in a moment, and GGUF files that hold them."""

from __future__ import annotations

import functools
import json

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

TEXTS = [
    "The quick brown fox jumps over the lazy dog, and it's 12345 times faster.",
    "Größenwahn! Straße, naïve café — “quotes”…",
    "日本語のテキストと中文文本。 한국어도 있어요 🙂🙃 👩‍👩‍👧",
    "  leading and   many   spaces\n\n\tdef f(x):\n        return x ** 2  # comment\r\n",
    "I'LL WE'RE don't CamelCaseWords snake_case 3.14159 1,000,000",
    "",
    " ",
    "e\u0301 combining",
    "<|im_start|>user\nHi<|im_end|>",
]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CHAT = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@functools.cache
def byte_level():
    """Byte-level BPE with the split of Llama 3 and a first token."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [
        AddedToken(t, special=True, normalized=False) for t in ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
    ]
    trainer = BpeTrainer(
        vocab_size=420, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


@functools.cache
def sentencepiece():
    """BPE over characters with bytes for the others, as SentencePiece makes it and Llama 2 has it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = BpeTrainer(vocab_size=420, special_tokens=special, limit_alphabet=60, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    # Bytes are found by falling back to them, not in texts.
    plain = json.loads(tokenizer.to_str())
    plain["added_tokens"] = [token for token in plain["added_tokens"] if token["id"] < 3]
    plain["pre_tokenizer"]["split"] = False
    tokenizer = Tokenizer.from_str(json.dumps(plain))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def write_tokenizer(writer, tokenizer, kind="gpt2", pre="llama-bpe", scores=False):
    """The metadata that llama.cpp's converter writes for the tokenizer."""
    content = json.loads(tokenizer.to_str())
    tokens = [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]
    special = {token["id"] for token in content["added_tokens"]}
    writer.add_tokenizer_model(kind)
    if kind == "gpt2":
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    types = [
        gguf.TokenType.CONTROL if number in special
        else gguf.TokenType.BYTE if kind == "llama" and token.startswith("<0x") else gguf.TokenType.NORMAL
        for number, token in enumerate(tokens)
    ]  # fmt: skip
    writer.add_token_types(types)
    merges = [tuple(merge) for merge in content["model"]["merges"]]
    if scores:
        ranks = {first + second: rank for rank, (first, second) in reversed(list(enumerate(merges)))}
        writer.add_token_scores([-float(ranks.get(token, len(merges))) for token in tokens])
    else:
        writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(tokenizer.token_to_id("<s>"))
    writer.add_eos_token_id(tokenizer.token_to_id("</s>"))
    if kind == "llama":
        writer.add_unk_token_id(0)
    writer.add_chat_template(CHAT)


def write_gguf(path, tokenizer, architecture="llama", **options):
    """A file with the tokenizer and no tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    write_tokenizer(writer, tokenizer, **options)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(folder, tokenizer, **config):
    """A folder as transformers writes it."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>"},
        "chat_template": CHAT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **config}))
    return folder
