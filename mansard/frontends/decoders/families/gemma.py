"""Gemma."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mansard.frontends.decoders.architecture import Architecture
from mansard.frontends.decoders.families import llama


def describe(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a ``gemma`` configuration: norms weigh by ``1 + weight``, in f32, and embeddings
    are multiplied by the root of their length."""
    given = {**config, "hidden_act": config.get("hidden_activation") or "gelu_pytorch_tanh"}
    return dataclasses.replace(
        llama.describe(given),
        norm_offset=1.0,
        norm_in_f32=True,
        embedding_scale=float(config["hidden_size"]) ** 0.5,
        tied_embeddings=bool(config.get("tie_word_embeddings", True)),
    )
