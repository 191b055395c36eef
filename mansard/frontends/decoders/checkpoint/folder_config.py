"""``config.json`` and ``generation_config.json`` of a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mansard.errors import ImportModelError

_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_EXPERTS = ("num_experts", "num_local_experts")
"""Two names of the number of experts, of which transformers' classes read both and files have either."""


def read_config(folder: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The configuration of the decoder, and of generation (empty where the folder has none).

    Of a model of several modalities it is that of its text part. Raises ImportModelError for a folder without
    config.json, and for files that are not JSON objects or name no model_type.
    """
    if not (folder / "config.json").is_file():
        raise ImportModelError(f"{folder} has no config.json, so it is not a Hugging Face model folder")
    whole = _read(folder / "config.json")
    config = _text_part(whole)
    if not isinstance(config.get("model_type"), str):
        raise ImportModelError(f"{folder / 'config.json'} has no model_type")
    path = folder / "generation_config.json"
    generation = _read(path) if path.exists() else {}
    config |= {key: generation[key] for key in _TOKENS if generation.get(key) is not None}
    counts = [config[key] for key in _EXPERTS if config.get(key) is not None]
    if counts:
        config |= {key: config.get(key) or counts[0] for key in _EXPERTS}
    return config, generation


def _text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return dict(config)
    inherited = (*_TOKENS, "tie_word_embeddings")
    return {**{key: config[key] for key in inherited if config.get(key) is not None}, **text}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ImportModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ImportModelError(f"{path} is not a JSON object")
    return content
