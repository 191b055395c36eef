"""Qwen2 and Qwen3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.frontends.decoders.architecture import Architecture, AttentionLayer, Block, FeedForward
from mansard.frontends.decoders.families.common import activation, heads_of
from mansard.frontends.decoders.rotary import rotary_of


def describe(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a ``qwen2`` or ``qwen3`` configuration."""
    heads, key_heads, head_dim = heads_of(config)
    second = config["model_type"] == "qwen2"
    rotary = rotary_of(config, head_dim)
    network = FeedForward(config["intermediate_size"], activation(config.get("hidden_act", "silu")))

    def attention(layer: int) -> AttentionLayer:
        return AttentionLayer(
            heads,
            key_heads,
            head_dim,
            head_dim**-0.5,
            rotary,
            window=_window(config, layer),
            normalised_heads=not second,
            bias=second or bool(config.get("attention_bias", False)),
            output_bias=not second and bool(config.get("attention_bias", False)),
        )

    return Architecture(
        family=config["model_type"],
        vocabulary=config["vocab_size"],
        hidden=config["hidden_size"],
        blocks=tuple(Block(attention(layer), network) for layer in range(config["num_hidden_layers"])),
        norm_epsilon=config["rms_norm_eps"],
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        max_positions=config["max_position_embeddings"],
    )


def _window(config: Mapping[str, Any], layer: int) -> int | None:
    """The window of a layer: those that ``layer_types`` lists, or from ``max_window_layers`` on."""
    if not config.get("use_sliding_window", False) or config.get("sliding_window") is None:
        return None
    kinds = config.get("layer_types")
    slides = kinds[layer] == "sliding_attention" if kinds else layer >= config.get("max_window_layers", 0)
    return int(config["sliding_window"]) if slides else None
