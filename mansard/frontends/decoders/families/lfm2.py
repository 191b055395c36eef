"""LFM2: short convolutions, and attention in some layers; with mixtures of experts in ``lfm2_moe``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.frontends.decoders.architecture import (
    Architecture,
    AttentionLayer,
    Block,
    BlockNames,
    Experts,
    FeedForward,
    ShortConvolution,
)
from mansard.frontends.decoders.families.common import heads_of
from mansard.frontends.decoders.rotary import rotary_of

_MODULES: tuple[str, str | None, str] = ("w1", "w3", "w2")


def describe(config: Mapping[str, Any]) -> Architecture:
    """The architecture of an ``lfm2`` or ``lfm2_moe`` configuration."""
    return Architecture(
        family=config["model_type"],
        vocabulary=config["vocab_size"],
        hidden=config["hidden_size"],
        blocks=tuple(_block(config, layer) for layer in range(config["num_hidden_layers"])),
        norm_epsilon=config["norm_eps"],
        tied_embeddings=bool(config.get("tie_word_embeddings", config.get("tie_embedding", True))),
        max_positions=config["max_position_embeddings"],
        final_norm="model.embedding_norm",
    )


def _block(config: Mapping[str, Any], layer: int) -> Block:
    attends = _attends(config, layer)
    names = BlockNames("self_attn" if attends else "conv", "feed_forward", "operator_norm", "ffn_norm")
    convolution = ShortConvolution(config["conv_L_cache"], bool(config.get("conv_bias", False)))
    return Block(_attention(config) if attends else convolution, _network(config, layer), names)


def _attends(config: Mapping[str, Any], layer: int) -> bool:
    kinds = config.get("layer_types")
    if kinds:
        return bool(kinds[layer] != "conv")
    indices = config.get("full_attn_idxs")
    return indices is None or layer in indices


def _attention(config: Mapping[str, Any]) -> AttentionLayer:
    heads, key_heads, head_dim = heads_of(config)
    return AttentionLayer(
        heads,
        key_heads,
        head_dim,
        head_dim**-0.5,
        rotary_of({"rope_theta": 1_000_000.0, **config}, head_dim),
        normalised_heads=True,
        output_name="out_proj",
        norm_names=("q_layernorm", "k_layernorm"),
    )


def _network(config: Mapping[str, Any], layer: int) -> FeedForward | Experts:
    if config["model_type"] == "lfm2":
        return FeedForward(_width(config), "silu", names=_MODULES)
    if layer < config.get("num_dense_layers", 2):
        return FeedForward(config["intermediate_size"], "silu", names=_MODULES)
    return Experts(
        count=config["num_experts"],
        chosen=config["num_experts_per_tok"],
        width=config["moe_intermediate_size"],
        activation="silu",
        scores="sigmoid",
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor", 1.0)),
        biased=bool(config.get("use_expert_bias", True)),
    )


def _width(config: Mapping[str, Any]) -> int:
    """The width of the networks: two thirds of what is stated, rounded up to a multiple, where
    ``block_auto_adjust_ff_dim`` says so."""
    width = int(config["block_ff_dim"] if "block_ff_dim" in config else config["intermediate_size"])
    if not config.get("block_auto_adjust_ff_dim", True):
        return width
    width = int(2 * width / 3)
    if (factor := config.get("block_ffn_dim_multiplier", 1.0)) is not None:
        width = int(factor * width)
        multiple = int(config.get("block_multiple_of", 256))
        width = -(-width // multiple) * multiple
    return width
