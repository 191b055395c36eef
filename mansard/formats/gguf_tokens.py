"""What the metadata of a GGUF file say about tokens, for the configuration and for the tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONTROL = 3
"""The type (``tokenizer.ggml.token_type``) of tokens that stand for no text."""
_ENDS = ("eos", "eot", "eom")
_END_TEXTS = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>"}
)
"""Tokens that end an answer, as in llama.cpp: a file has one ``eos``, and chats may end by another."""


def end_tokens(metadata: Mapping[str, Any]) -> list[int]:
    """The tokens that end a text or a turn, the file's ``eos`` first."""
    named = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in _ENDS]
    texts, kinds = metadata.get("tokenizer.ggml.tokens", []), metadata.get("tokenizer.ggml.token_type", [])
    pairs = enumerate(zip(texts, kinds, strict=False))  # a file may have no types
    known = [token for token, (text, kind) in pairs if kind == CONTROL and text in _END_TEXTS]
    return list(dict.fromkeys(token for token in (*named, *known) if isinstance(token, int)))
