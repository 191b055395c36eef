"""Granite: Llama with scales of its embeddings, residuals, scores and logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mansard.frontends.decoders.architecture import Architecture, AttentionLayer
from mansard.frontends.decoders.families import llama


def describe(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a ``granite`` configuration."""
    base = llama.describe(config)
    scale = float(config.get("attention_multiplier", 1.0))
    blocks = tuple(
        dataclasses.replace(block, mixer=dataclasses.replace(block.mixer, scale=scale))
        for block in base.blocks
        if isinstance(block.mixer, AttentionLayer)
    )
    return dataclasses.replace(
        base,
        blocks=blocks,
        embedding_scale=float(config.get("embedding_multiplier", 1.0)),
        residual_scale=float(config.get("residual_multiplier", 1.0)),
        logit_scale=1.0 / float(config.get("logits_scaling", 1.0)),
    )
