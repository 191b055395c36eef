"""Tokenizers from the metadata of GGUF files (``tokenizer.ggml.*``).

A file has a vocabulary with merges or scores; how texts are split before that, it only names. The pieces are
put together here as the tokenizers of ``transformers`` for these vocabularies are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mansard.errors import ImportModelError
from mansard.formats.gguf_file import GgufFile
from mansard.formats.gguf_tokens import CONTROL, end_tokens
from mansard.language.tokenizer.backend import backend_module
from mansard.language.tokenizer.gguf_splits import SPLITS
from mansard.language.tokenizer.tokenizer import Tokenizer

_USER_DEFINED = 4
"""The type of tokens that stand for the text that they are named by, whatever is around it."""
_SPECIAL = {
    "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding",
}  # fmt: skip
"""Special tokens, and what GGUF calls them."""
_SPACE = "▁"
"""A space in vocabularies of SentencePiece."""
_INSTEAD = "A folder with the model's tokenizer.json can be used instead"


def gguf_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer that a GGUF file describes: byte-level BPE ("gpt2") or SentencePiece's BPE ("llama").

    Raises ImportModelError for a file without one, and for another kind or way to split texts (named, with
    those supported).
    """
    path, metadata = file.path, _Metadata(file.path, file.metadata)
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    kind = metadata.get("model")
    if not has_tokens(file):
        raise ImportModelError(f"{path} has no tokenizer (tokenizer.ggml.tokens). {_INSTEAD}")
    if kind not in builders:
        raise ImportModelError(
            f"{path} has a tokenizer of kind {kind!r}; supported in GGUF files are gpt2 and llama. {_INSTEAD}"
        )
    backend = builders[kind](metadata)
    _add_tokens(backend, metadata)
    _add_post_processor(backend, metadata, begins=kind == "llama" or SPLITS[metadata.get("pre")].begins)
    template = metadata.all.get("tokenizer.chat_template")
    return Tokenizer(
        backend,
        eos_ids=end_tokens(metadata.all),
        special=metadata.special,
        chat_template=template if isinstance(template, str) else None,
        source=str(path),
    )


def has_tokens(file: GgufFile) -> bool:
    """Whether a GGUF file has a vocabulary."""
    return bool(file.metadata.get("tokenizer.ggml.tokens"))


class _Metadata:
    """What a file says about its tokenizer."""

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path, self.all = path, metadata
        self.tokens: list[str] = self.list_of("tokens", str)
        self.types: list[int] = self.list_of("token_type", int)
        numbers = {name: self.get(f"{part}_token_id") for name, part in _SPECIAL.items()}
        self.special = {
            name: self.tokens[number]
            for name, number in numbers.items()
            if isinstance(number, int) and 0 <= number < len(self.tokens)
        }

    def get(self, key: str) -> Any:
        return self.all.get(f"tokenizer.ggml.{key}")

    def list_of(self, key: str, kind: type) -> list[Any]:
        values = self.get(key) or []
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise ImportModelError(f"tokenizer.ggml.{key} of {self.path} is not a list of {kind.__name__}")
        return values

    def merges(self) -> list[tuple[str, str]]:
        pairs = [merge.split(" ") for merge in self.list_of("merges", str)]
        if any(len(pair) != 2 for pair in pairs):
            raise ImportModelError(
                f"tokenizer.ggml.merges of {self.path} has an entry that is no pair of tokens"
            )
        return [(first, second) for first, second in pairs]

    def model(self, vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], **options: Any) -> Any:
        """A tokenizer with this BPE and nothing else yet."""
        library = backend_module()
        try:
            return library.Tokenizer(library.models.BPE(vocab=dict(vocabulary), merges=merges, **options))
        except Exception as error:  # the bindings raise no narrower one
            raise ImportModelError(f"the tokenizer of {self.path} is not valid: {error}") from error


def _byte_level(metadata: _Metadata) -> Any:
    library = backend_module()
    split = SPLITS.get(metadata.get("pre"))
    if split is None:
        raise ImportModelError(
            f"{metadata.path} splits texts as {metadata.get('pre')!r} (tokenizer.ggml.pre); supported are "
            f"{', '.join(SPLITS)}. {_INSTEAD}"
        )
    backend = metadata.model(_numbered(metadata.tokens), metadata.merges(), ignore_merges=split.whole_words)
    backend.pre_tokenizer = split.pre_tokenizer()
    backend.decoder = library.decoders.ByteLevel()
    if split.composed:
        backend.normalizer = library.normalizers.NFC()
    return backend


def _sentencepiece(metadata: _Metadata) -> Any:
    library = backend_module()
    gemma = str(metadata.all.get("general.architecture")).startswith("gemma")
    tokens = metadata.tokens
    if gemma:  # its file has real spaces in tokens that consist of them
        tokens = [_SPACE * len(token) if not token.strip(" ") else token for token in tokens]
    vocabulary = _numbered(tokens)
    merges = metadata.merges() or _merges_of_scores(metadata, tokens, vocabulary, by_position=gemma)
    backend = metadata.model(
        vocabulary, merges, unk_token=metadata.special.get("unk_token"), fuse_unk=True, byte_fallback=True
    )
    given = metadata.get("add_space_prefix")
    prefix = not gemma if given is None else bool(given)
    backend.pre_tokenizer = library.pre_tokenizers.Metaspace(
        replacement=_SPACE, prepend_scheme="first" if prefix else "never", split=False
    )
    decoders = library.decoders
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _merges_of_scores(
    metadata: _Metadata, tokens: Sequence[str], vocabulary: Mapping[str, int], *, by_position: bool
) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose union has the best score; as merges, best first.

    The scores of Gemma's vocabularies do not follow the order in which their tokens were made; their
    positions do.
    """
    scores = [-float(at) for at in range(len(tokens))] if by_position else metadata.list_of("scores", float)
    if len(scores) != len(tokens):
        raise ImportModelError(
            f"{metadata.path} has {len(scores)} scores (tokenizer.ggml.scores) for {len(tokens)} tokens"
        )

    def pairs() -> Iterator[tuple[float, int, int, str, str]]:
        for token, score in zip(tokens, scores, strict=True):
            for cut in range(1, len(token)):
                first, second = token[:cut], token[cut:]
                if first in vocabulary and second in vocabulary:
                    yield -score, vocabulary[first], vocabulary[second], first, second

    return [(first, second) for _, _, _, first, second in sorted(pairs())]


def _add_tokens(backend: Any, metadata: _Metadata) -> None:
    """Tokens that are looked for in a text before anything else: those for control, and the user's own."""
    added: dict[int, list[Any]] = {CONTROL: [], _USER_DEFINED: []}
    for token, kind in zip(metadata.tokens, metadata.types, strict=False):  # a file may have no types
        if kind in added and token and backend.token_to_id(token) is not None:
            entry = backend_module().AddedToken(token, normalized=False, special=kind == CONTROL)
            added[kind].append(entry)
    backend.add_special_tokens(added[CONTROL])
    backend.add_tokens(added[_USER_DEFINED])


def _add_post_processor(backend: Any, metadata: _Metadata, *, begins: bool) -> None:
    """What `Tokenizer.encode` adds around a text; ``begins`` unless the file says otherwise."""
    begin, end = metadata.get("add_bos_token"), metadata.get("add_eos_token")
    first = metadata.special.get("bos_token") if (begins if begin is None else begin) else None
    last = metadata.special.get("eos_token") if end else None
    used = {token: backend.token_to_id(token) for token in (first, last) if token is not None}
    if used:
        single = [part for part in (first, "$A", last) if part is not None]
        backend.post_processor = backend_module().processors.TemplateProcessing(
            single=single, special_tokens=list(used.items())
        )
