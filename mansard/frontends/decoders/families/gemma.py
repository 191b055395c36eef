"""Gemma."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from mansard.errors import ImportModelError
from mansard.frontends.decoders.architecture import Architecture, AttentionLayer
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


def describe_second(
    config: Mapping[str, Any], change: Callable[[AttentionLayer, int], AttentionLayer]
) -> Architecture:
    """Gemma with norms behind attention and network as well, and soft caps; ``change`` gets the attention of
    each layer, which attends to all positions, and the layer's number."""
    if config.get("use_bidirectional_attention"):
        raise ImportModelError(
            f"{config['model_type']} with use_bidirectional_attention is an encoder, not a decoder"
        )
    base = describe({**config, "sliding_window": None})
    cap = config.get("final_logit_softcapping")
    blocks = []
    for number, block in enumerate(base.blocks):
        assert isinstance(block.mixer, AttentionLayer)
        attention = dataclasses.replace(
            block.mixer,
            scale=float(config["query_pre_attn_scalar"]) ** -0.5,
            softcap=config.get("attn_logit_softcapping"),
        )
        blocks.append(
            dataclasses.replace(
                block,
                mixer=change(attention, number),
                names=dataclasses.replace(block.names, network_norm="pre_feedforward_layernorm"),
                output_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
            )
        )
    return dataclasses.replace(base, blocks=tuple(blocks), logit_softcap=cap)
