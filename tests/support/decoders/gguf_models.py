"""Models of transformers written as GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

import re

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Type

ARCHITECTURES = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "granite": "granite",
    "granitemoe": "granitemoe", "granitemoeshared": "granitemoe", "gemma": "gemma", "gemma2": "gemma2",
    "gemma3_text": "gemma3", "lfm2": "lfm2", "lfm2_moe": "lfm2moe",
}  # fmt: skip
PERMUTED = ("llama", "granite", "granitemoe")
_FEED_FORWARD = re.compile(r".*layers\.(\d+)\.(?:.*experts|shared_mlp)\.(\w+)(?:\.weight)?")


def permute(weights, heads):
    """llama.cpp's order of the rows of queries and keys."""
    shape = weights.shape
    return weights.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def write_model(model, path, kind=Type.F32, tokenizer=None):
    """Write the model; matrices have type ``kind`` where their rows are whole blocks, all else is F32.

    ``tokenizer`` is called with the writer. Returns the file's tensors by GGUF's names, as they were before
    they were quantised.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config.model_type])
    write_config(writer, config)
    if tokenizer is not None:
        tokenizer(writer)
    written = {}
    state = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    for name, array in state.items():
        for target, data in converted(name, array, config):
            written[target] = data
            whole = data.ndim > 1 and data.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
            used = kind if whole and "conv" not in target else Type.F32
            writer.add_tensor(target, gguf.quants.quantize(np.ascontiguousarray(data), used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


def converted(name, array, config):
    """The tensors of the file that llama.cpp's converter makes of one of the model."""
    architecture = ARCHITECTURES[config.model_type]
    key = next(key for key, known in gguf.MODEL_ARCH_NAMES.items() if known == architecture)
    names = gguf.get_tensor_name_map(key, config.num_hidden_layers)
    if match := _FEED_FORWARD.fullmatch(name):
        number, part = match.groups()
        suffix = "shexp" if "shared_mlp" in name else "exps"
        if part in ("down_proj", "output_linear"):
            return [(f"blk.{number}.ffn_down_{suffix}.weight", array)]
        gate, up = np.split(array, 2, axis=-2)
        return [
            (f"blk.{number}.ffn_gate_{suffix}.weight", gate),
            (f"blk.{number}.ffn_up_{suffix}.weight", up),
        ]
    if name.endswith("expert_bias"):
        name += ".bias"
    base, suffix = name.replace(".router.", ".router.layer.").rsplit(".", 1)
    target = names.get_name(base)
    assert target is not None, name
    if architecture in PERMUTED and base.endswith(("q_proj", "k_proj")):
        array = permute(
            array, config.num_attention_heads if base.endswith("q_proj") else config.num_key_value_heads
        )
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        array = array + np.float32(1)
    if "conv.conv" in name and suffix == "weight":
        array = array.squeeze(1)
    return [(f"{target}.{suffix}", array)]


def write_config(writer, config):
    """The metadata that the converter writes for the configuration."""
    kind = config.model_type
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps if kind.startswith("lfm2") else config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    key_heads = config.num_key_value_heads
    if kind.startswith("lfm2"):
        key_heads = [key_heads if layer == "full_attention" else 0 for layer in config.layer_types]
        writer.add_shortconv_l_cache(config.conv_L_cache)
    writer.add_head_count_kv(key_heads)
    if kind.startswith(("qwen3", "gemma")):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if kind.startswith("gemma"):
        writer.add_sliding_window(getattr(config, "sliding_window", 0) or 0)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if kind.startswith("granite"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if "moe" in kind:
        writer.add_expert_count(getattr(config, "num_experts", None) or config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if kind == "granitemoeshared":
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    if kind in ("qwen3_moe", "lfm2_moe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if kind == "lfm2_moe":
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
