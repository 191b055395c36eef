"""What configurations of most families say with the same keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.errors import ImportModelError
from mansard.frontends.decoders.architecture import Activation

_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def activation(name: str) -> Activation:
    """The activation of a name that transformers gives it. Raises ImportModelError for another one."""
    if name not in _ACTIVATIONS:
        raise ImportModelError(
            f"activation {name!r} is not supported; supported: {', '.join(sorted(_ACTIVATIONS))}"
        )
    return _ACTIVATIONS[name]


def slides(config: Mapping[str, Any], layer: int, otherwise: bool) -> bool:
    """Whether a layer attends to a window, as ``layer_types`` says, or ``otherwise`` without that key."""
    kinds = config.get("layer_types")
    return bool(kinds[layer] == "sliding_attention") if kinds else otherwise


def heads_of(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Query heads, key heads, and elements of a head."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return heads, config.get("num_key_value_heads") or heads, head_dim
