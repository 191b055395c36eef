"""Qwen3 with mixtures of experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mansard.frontends.decoders.architecture import Architecture, Block, Experts
from mansard.frontends.decoders.families import qwen
from mansard.frontends.decoders.families.common import activation


def describe(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a ``qwen3_moe`` configuration: Qwen3 whose networks are experts, in every layer or
    in each ``decoder_sparse_step``-th, but not in ``mlp_only_layers``."""
    base = qwen.describe(config)
    experts = Experts(
        count=config["num_experts"] if "num_experts" in config else config["num_local_experts"],
        chosen=config["num_experts_per_tok"],
        width=config["moe_intermediate_size"],
        activation=activation(config.get("hidden_act", "silu")),
        normalised=bool(config.get("norm_topk_prob", False)),
    )
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()

    def changed(block: Block, layer: int) -> Block:
        sparse = layer not in dense and (layer + 1) % step == 0
        return dataclasses.replace(block, network=experts) if sparse and experts.count else block

    blocks = tuple(changed(block, layer) for layer, block in enumerate(base.blocks))
    return dataclasses.replace(base, blocks=blocks)
