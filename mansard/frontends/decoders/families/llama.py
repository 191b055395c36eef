"""Llama and Mistral."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.frontends.decoders.architecture import Architecture, AttentionLayer, Block, FeedForward
from mansard.frontends.decoders.families.common import activation, heads_of
from mansard.frontends.decoders.rotary import rotary_of


def describe(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a ``llama`` or ``mistral`` configuration."""
    heads, key_heads, head_dim = heads_of(config)
    bias = bool(config.get("attention_bias", False))
    attention = AttentionLayer(
        heads,
        key_heads,
        head_dim,
        head_dim**-0.5,
        rotary_of(config, head_dim),
        window=config.get("sliding_window"),
        bias=bias,
        output_bias=bias,
    )
    network = FeedForward(
        config["intermediate_size"],
        activation(config.get("hidden_act", "silu")),
        bias=bool(config.get("mlp_bias", False)),
    )
    return Architecture(
        family=config["model_type"],
        vocabulary=config["vocab_size"],
        hidden=config["hidden_size"],
        blocks=(Block(attention, network),) * config["num_hidden_layers"],
        norm_epsilon=config["rms_norm_eps"],
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        max_positions=config["max_position_embeddings"],
    )
