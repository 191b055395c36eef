"""Gemma 3, the text decoder: windows with rotations of their own in five layers of six, norms of queries
and keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mansard.frontends.decoders.architecture import Architecture, AttentionLayer
from mansard.frontends.decoders.families import gemma
from mansard.frontends.decoders.families.common import slides
from mansard.frontends.decoders.rotary import rotary_of

LOCAL, GLOBAL = "sliding_attention", "full_attention"


def describe(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a ``gemma3_text`` configuration, in its old form (``rope_local_base_freq``,
    ``sliding_window_pattern``) or in the new one (``rope_parameters`` by kind of layer)."""
    head_dim = config["head_dim"]
    rotations = {
        kind: rotary_of({**config, "rope_parameters": None}, head_dim, given)
        for kind, given in _rotations(config).items()
    }
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6

    def change(attention: AttentionLayer, layer: int) -> AttentionLayer:
        local = slides(config, layer, (layer + 1) % pattern != 0)
        return dataclasses.replace(
            attention,
            window=config.get("sliding_window") if local else None,
            rotary=rotations[LOCAL if local else GLOBAL],
            normalised_heads=True,
        )

    return gemma.describe_second({**config, "rope_parameters": None, "rope_scaling": None}, change)


def _rotations(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What ``rope_parameters`` says of either kind of layer, completed from the keys of the old form."""
    given = config.get("rope_parameters") or {}
    whole = {"rope_theta": config.get("rope_theta", 1_000_000.0), **(config.get("rope_scaling") or {})}
    window = {"rope_theta": config.get("rope_local_base_freq", 10_000.0)}
    return {
        GLOBAL: {**whole, **(given.get(GLOBAL) or {})},
        LOCAL: {"rope_type": "default", **window, **(given.get(LOCAL) or {})},
    }
