"""Qwen3 decoders, with experts or without, as GGUF files for llama.cpp."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# The parts of a transformers parameter name and what GGUF calls them, applied in this order.
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "mlp.gate.": "ffn_gate_inp.",
    "mlp.experts.": "ffn_",
    "mlp.": "ffn_",
    "_proj": "",
    "model.layers.": "blk.",
}


def write_gguf(
    path: Path,
    config: Mapping[str, Any],
    tensors: Iterable[tuple[str, npt.NDArray[np.float32]]],
    kind: str,
) -> None:
    """Write a Qwen3 decoder whose head is its embedding.

    Args:
        path: The file.
        config: The keys of a Hugging Face configuration, with ``rope_theta``.
        tensors: Weights by their names in transformers; the head's are left out.
        kind: GGUF's name of the type of matrices, such as ``BF16`` or ``Q4_0``; vectors are F32.
    """
    import gguf

    experts = config.get("num_experts", 0)
    writer = gguf.GGUFWriter(path, "qwen3moe" if experts else "qwen3")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    for name, values in _apart(tensors):
        if name == "lm_head.weight":
            continue
        for old, new in _NAMES.items():
            name = name.replace(old, new)
        # llama.cpp keeps routers in F32.
        matrix = values.ndim > 1 and "ffn_gate_inp" not in name
        stored = gguf.GGMLQuantizationType[kind if matrix else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _apart(
    tensors: Iterable[tuple[str, npt.NDArray[np.float32]]],
) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Stacks of experts under the names of single networks' weights, gate and up apart."""
    for name, values in tensors:
        stem, _, part = name.rpartition(".")
        if part == "gate_up_proj":
            gate, up = np.split(values, 2, axis=1)
            yield f"{stem}.gate_exps.weight", np.ascontiguousarray(gate)
            yield f"{stem}.up_exps.weight", np.ascontiguousarray(up)
        elif part == "down_proj":
            yield f"{stem}.down_exps.weight", values
        elif part == "weight":
            yield name, values
