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
YARN_SCALING = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
GRANITE = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.7,
    "logits_scaling": 2.0,
}
EXPERTS = {"num_experts_per_tok": 3, "num_local_experts": 8}
LFM2_LAYERS = ["conv", "full_attention", "conv"]
LFM2 = {"num_hidden_layers": 3, "layer_types": LFM2_LAYERS, "norm_eps": 1e-5}
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
    "qwen3-yarn": ("Qwen3", {"head_dim": 16, "rope_parameters": YARN_SCALING}),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
        },
    ),
    "qwen3_moe-mixed": (
        "Qwen3Moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
        },
    ),
    "mixtral": ("Mixtral", EXPERTS),
    "granite": ("Granite", GRANITE),
    "granitemoe": ("GraniteMoe", {**GRANITE, **EXPERTS}),
    "granitemoeshared": ("GraniteMoeShared", {**GRANITE, **EXPERTS, "shared_intermediate_size": 40}),
    "lfm2": ("Lfm2", {**LFM2, "block_multiple_of": 8}),
    "lfm2-biased": (
        "Lfm2",
        {**LFM2, "conv_bias": True, "conv_L_cache": 5, "block_auto_adjust_ff_dim": False},
    ),
    "lfm2_moe": (
        "Lfm2Moe",
        {
            **LFM2,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "num_dense_layers": 1,
            "moe_intermediate_size": 24,
            "routed_scaling_factor": 1.5,
            "tie_word_embeddings": False,
        },
    ),
    "gemma": ("Gemma", {"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh"}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 16,
            "sliding_window": 8,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "attn_implementation": "eager",
        },
    ),
    "gemma3_text": (
        "Gemma3",
        {
            "head_dim": 16,
            "num_hidden_layers": 3,
            "sliding_window": 8,
            "query_pre_attn_scalar": 20,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}
"""Class prefix in transformers, and what its configuration has beside `COMMON`."""


def write_decoder(folder: Path, variation: str, dtype: torch.dtype = torch.float32, **changed: Any) -> Any:
    """Write a decoder to a folder; returns the module."""
    prefix, changes = VARIATIONS[variation]
    kind = getattr(transformers, f"{prefix}ForCausalLM")
    config = kind.config_class(**{**COMMON, **changes, **changed})
    torch.manual_seed(0)
    module = kind(config).eval()
    for name, parameter in module.named_parameters():
        if "norm" in name or "bias" in name:  # initialised to ones and zeros, which would hide mistakes
            parameter.data += 0.2 * torch.randn_like(parameter)
        else:
            parameter.data *= 4
    for name, buffer in module.named_buffers():
        if name.endswith("expert_bias"):
            buffer += 0.2 * torch.randn_like(buffer)
    module = module.to(dtype)
    transformers.utils.logging.disable_progress_bar()
    module.save_pretrained(folder)
    return module


@torch.no_grad()
def reference_logits(module: Any, ids: Any) -> Any:
    """Logits (tokens, vocabulary) of a sequence, f32."""
    return module(torch.as_tensor(ids)[None]).logits[0].float().numpy()
