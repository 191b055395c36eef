"""How texts are split before byte-level BPE: what ``tokenizer.ggml.pre`` of a GGUF file names.

The patterns are those of the models' own ``tokenizer.json``, under llama.cpp's names for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mansard.language.tokenizer.backend import backend_module


@dataclass(frozen=True)
class Split:
    """``pattern`` matches the pieces; with ``gpt2`` what it leaves is split as GPT-2 does."""

    pattern: str | None
    gpt2: bool = False
    whole_words: bool = False
    """Pieces that are in the vocabulary are one token, whatever the merges would make of them."""
    begins: bool = False
    """Models with this split expect a first token, unless the file says otherwise."""
    composed: bool = False
    """Texts are brought into Unicode's composed form (NFC) before."""

    def pre_tokenizer(self) -> Any:
        """The split as a pre-tokenizer of the package ``tokenizers``."""
        library = backend_module().pre_tokenizers
        bytes_only = library.ByteLevel(add_prefix_space=False, use_regex=self.gpt2)
        if self.pattern is None:
            return bytes_only
        pieces = library.Split(backend_module().Regex(self.pattern), behavior="isolated")
        return library.Sequence([pieces, bytes_only])


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SPLITS: Mapping[str, Split] = {
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2"), Split(_LLAMA3, whole_words=True, begins=True)
    ),
    **dict.fromkeys(("smaug-bpe", "dbrx"), Split(_LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), Split(_QWEN2, composed=True)),
    **dict.fromkeys(("stablelm2", "megrez"), Split(_QWEN2)),
    "tekken": Split(_TEKKEN, whole_words=True, begins=True),
    **dict.fromkeys(("gpt-2", "phi-2", "mellum", "modern-bert"), Split(None, gpt2=True)),
    **dict.fromkeys(("refact", "command-r", "smollm", "starcoder", "codeshell"), Split(r"\p{N}", gpt2=True)),
}
"""By the name in the file."""
