"""Small decoders with random weights, as folders that transformers writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

COMMON = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
VARIATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-biased": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-scaled": ("Llama", {"rope_parameters": LLAMA3_SCALING}),
    "mistral": ("Mistral", {"sliding_window": 8}),
    "qwen2": ("Qwen2", {}),
    "qwen2-windows": (
        "Qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.7,
            "logits_scaling": 2.0,
        },
    ),
    "gemma": ("Gemma", {"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh"}),
}
"""Class prefix in transformers, and what its configuration has beside `COMMON`."""


def write_decoder(folder: Path, variation: str, dtype: torch.dtype = torch.float32) -> Any:
    """Write a decoder to a folder; returns the module."""
    prefix, changes = VARIATIONS[variation]
    config = getattr(transformers, f"{prefix}Config")(**{**COMMON, **changes})
    torch.manual_seed(0)
    module = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
    for name, parameter in module.named_parameters():
        if "norm" in name or "bias" in name:  # initialised to ones and zeros, which would hide mistakes
            parameter.data += 0.2 * torch.randn_like(parameter)
        else:
            parameter.data *= 4
    module = module.to(dtype)
    transformers.utils.logging.disable_progress_bar()
    module.save_pretrained(folder)
    return module


@torch.no_grad()
def reference_logits(module: Any, ids: Any) -> Any:
    """Logits (tokens, vocabulary) of a sequence, f32."""
    return module(torch.as_tensor(ids)[None]).logits[0].float().numpy()
