"""Granite with mixtures of experts, with or without a network that every token uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mansard.frontends.decoders.architecture import Architecture, Experts, FeedForward
from mansard.frontends.decoders.families import granite
from mansard.frontends.decoders.families.common import activation


def describe(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a ``granitemoe`` or ``granitemoeshared`` configuration."""
    function = activation(config.get("hidden_act", "silu"))
    width = config.get("shared_intermediate_size", 0) if config["model_type"] == "granitemoeshared" else 0
    shared = FeedForward(width, function, names=("input_linear", None, "output_linear"))
    experts = Experts(
        count=config["num_local_experts"],
        chosen=config["num_experts_per_tok"],
        width=config["intermediate_size"],
        activation=function,
        router_name="router",
        shared=shared if width else None,
    )
    base = granite.describe(config)
    blocks = tuple(
        dataclasses.replace(
            block, network=experts, names=dataclasses.replace(block.names, network="block_sparse_moe")
        )
        for block in base.blocks
    )
    return dataclasses.replace(base, blocks=blocks)
