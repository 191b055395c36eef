"""The tokenizer of a language model as an asset of its artifact."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from mansard.errors import ArtifactError
from mansard.language.tokenizer.backend import backend_module
from mansard.language.tokenizer.tokenizer import Tokenizer

ASSET = "tokenizer.json.z"
"""Its name: JSON, compressed by zlib."""
_FORMAT = 1


def tokenizer_to_bytes(tokenizer: Tokenizer) -> bytes:
    """The content of the asset."""
    content = {
        "format": _FORMAT,
        "tokenizer": tokenizer.to_json(),
        "eos_ids": tokenizer.eos_ids,
        "special": tokenizer.special,
        "chat_template": tokenizer.chat_template,
    }
    return zlib.compress(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode())


def tokenizer_from_bytes(data: bytes, source: str) -> Tokenizer:
    """The tokenizer of an asset; ``source`` is what errors call it. Raises ArtifactError for content of
    another form, ImportModelError without the package ``tokenizers``."""
    backend = backend_module().Tokenizer
    try:
        content = json.loads(zlib.decompress(data))
        form = content["format"]
        if form != _FORMAT:
            raise ArtifactError(f"{source} is in format {form!r}; this version of Mansard reads {_FORMAT}")
        return Tokenizer(
            backend.from_str(_checked(content, "tokenizer", str)),
            eos_ids=_checked(content, "eos_ids", list),
            special=_checked(content, "special", dict),
            chat_template=_checked(content, "chat_template", str | None),
            source=source,
        )
    except ArtifactError:
        raise
    except Exception as error:  # the bindings raise no narrower one
        raise ArtifactError(f"{source} is no tokenizer: {error}") from error


def _checked(content: Mapping[str, Any], name: str, kind: Any) -> Any:
    if not isinstance(content[name], kind):
        raise TypeError(f"{name!r} is of type {type(content[name]).__name__}")
    return content[name]
