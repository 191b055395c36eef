"""Mixtral: Mistral with mixtures of experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mansard.frontends.decoders.architecture import Architecture, Experts
from mansard.frontends.decoders.families import llama
from mansard.frontends.decoders.families.common import activation


def describe(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a ``mixtral`` configuration."""
    experts = Experts(
        count=config["num_local_experts"],
        chosen=config["num_experts_per_tok"],
        width=config["intermediate_size"],
        activation=activation(config.get("hidden_act", "silu")),
    )
    base = llama.describe(config)
    blocks = tuple(dataclasses.replace(block, network=experts) for block in base.blocks)
    return dataclasses.replace(base, blocks=blocks)
