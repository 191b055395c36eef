"""Families of decoders: what the keys of each configuration mean. One file describes one family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mansard.errors import ImportModelError
from mansard.frontends.decoders.architecture import Architecture
from mansard.frontends.decoders.families import (
    gemma,
    gemma2,
    gemma3,
    granite,
    granite_moe,
    lfm2,
    llama,
    mixtral,
    qwen,
    qwen3_moe,
)

Describe = Callable[[Mapping[str, Any]], Architecture]

FAMILIES: Mapping[str, Describe] = {
    "gemma": gemma.describe,
    "gemma2": gemma2.describe,
    "gemma3_text": gemma3.describe,
    "granite": granite.describe,
    "granitemoe": granite_moe.describe,
    "granitemoeshared": granite_moe.describe,
    "lfm2": lfm2.describe,
    "lfm2_moe": lfm2.describe,
    "llama": llama.describe,
    "mistral": llama.describe,
    "mixtral": mixtral.describe,
    "qwen2": qwen.describe,
    "qwen3": qwen.describe,
    "qwen3_moe": qwen3_moe.describe,
}
"""By ``model_type`` of a configuration."""


def describe(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a configuration states.

    Raises ImportModelError for a family that is not known, naming those that are, for a key that is missing,
    and for a variation that is not supported.
    """
    family = str(config.get("model_type"))
    if family not in FAMILIES:
        raise ImportModelError(
            f"decoders of type {family!r} are not known; known: {', '.join(sorted(FAMILIES))}. Any other "
            "decoder can be exported from its PyTorch code (docs/language-models.md)"
        )
    try:
        return FAMILIES[family](config)
    except KeyError as error:
        raise ImportModelError(f"the configuration of a {family} model lacks {error.args[0]!r}") from error
