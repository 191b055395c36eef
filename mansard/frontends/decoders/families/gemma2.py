"""Gemma 2: windows in every other layer, soft caps, norms behind attention and network."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mansard.frontends.decoders.architecture import Architecture, AttentionLayer
from mansard.frontends.decoders.families import gemma
from mansard.frontends.decoders.families.common import slides


def describe(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a ``gemma2`` configuration."""

    def change(attention: AttentionLayer, layer: int) -> AttentionLayer:
        window = config.get("sliding_window") if slides(config, layer, layer % 2 == 0) else None
        return dataclasses.replace(attention, window=window)

    return gemma.describe_second(config, change)
