"""Qwen3 decoders as GGUF files, for llama.cpp."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    writer = gguf.GGUFWriter(path, "qwen3")
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
    for name, values in tensors:
        if not name.endswith("weight") or name == "lm_head.weight":
            continue
        for old, new in _NAMES.items():
            name = name.replace(old, new)
        stored = gguf.GGMLQuantizationType[kind if values.ndim == 2 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
