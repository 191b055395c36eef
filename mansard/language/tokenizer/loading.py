"""Tokenizers from files: ``tokenizer.json`` with what lies beside it, or the metadata of a GGUF file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mansard.errors import ImportModelError
from mansard.formats.gguf_file import read_gguf
from mansard.language.tokenizer.backend import backend_module
from mansard.language.tokenizer.gguf_tokenizer import gguf_tokenizer, has_tokens
from mansard.language.tokenizer.tokenizer import Tokenizer

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_CONFIGS = ("generation_config.json", "config.json")
"""Where the ids of tokens that end a text are, the first first."""


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a Hugging Face folder, of a ``tokenizer.json`` or of a GGUF file.

    From the folder also ``tokenizer_config.json`` (special tokens), the chat template (there or in
    ``chat_template.jinja``) and the tokens that end a text (``generation_config.json``, ``config.json``) are
    read. Raises ImportModelError that names the file and what is wrong with it.
    """
    place = Path(path)
    if place.is_dir():
        return _of_folder(place, place / "tokenizer.json")
    if not place.exists():
        raise ImportModelError(f"there is no folder or file {place}")
    if place.suffix.lower() == ".json":
        return _of_folder(place.parent, place)
    return gguf_tokenizer(read_gguf(place))


def find_tokenizer(path: str | os.PathLike[str]) -> Tokenizer | None:
    """The tokenizer that comes with a model, None for a folder or GGUF file that has none.

    Raises ImportModelError, as `load_tokenizer` does, for one that cannot be read.
    """
    place = Path(path)
    if place.is_dir():
        return load_tokenizer(place) if (place / "tokenizer.json").is_file() else None
    file = read_gguf(place)
    return gguf_tokenizer(file) if has_tokens(file) else None


def _of_folder(folder: Path, file: Path) -> Tokenizer:
    if not file.is_file():
        other = next((name for name in ("tokenizer.model", "vocab.json") if (folder / name).exists()), None)
        hint = (
            f" ({other} is: AutoTokenizer.from_pretrained(…).save_pretrained(…) of transformers writes one)"
        )
        raise ImportModelError(f"{folder} has no tokenizer.json{hint if other else ''}")
    try:
        backend = backend_module().Tokenizer.from_file(str(file))
    except Exception as error:  # the bindings raise no narrower one
        raise ImportModelError(f"{file} is not a tokenizer: {error}") from error
    backend.no_truncation()  # some files cut texts for the model that they were made for
    backend.no_padding()
    config = _read(folder / "tokenizer_config.json")
    special = {name: text for name in _SPECIAL if (text := _text(config.get(name))) is not None}
    ends = [_read(folder / name).get("eos_token_id") for name in _CONFIGS]
    if "eos_token" in special:
        ends.append(backend.token_to_id(special["eos_token"]))
    end = next((end for end in ends if end is not None), ())
    return Tokenizer(
        backend,
        eos_ids=end if isinstance(end, list | tuple) else (end,),
        special=special,
        chat_template=_chat_template(folder, config),
        source=str(folder),
    )


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The folder's template; of several, the one called "default"."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    template = config.get("chat_template", _read(folder / "chat_template.json").get("chat_template"))
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
        template = named.get("default", next(iter(named.values()), None))
    if template is not None and not isinstance(template, str):
        raise ImportModelError(f"the chat_template of {folder} is a {type(template).__name__}, not text")
    return template


def _text(token: Any) -> str | None:
    """The text of a special token, which files give as such or with its properties."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def _read(path: Path) -> Mapping[str, Any]:
    """A JSON file that may be missing."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ImportModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ImportModelError(f"{path} is not a JSON object")
    return content
