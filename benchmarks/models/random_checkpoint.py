"""Checkpoints of Qwen3 shapes, with experts or without, and random bf16 weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

Array = npt.NDArray[Any]
BLOCK = 1 << 22
"""Random numbers, which large weights repeat from different places: to make them takes little time."""


def write_checkpoint(folder: Path, config: Mapping[str, Any]) -> None:
    """Write a folder as Hugging Face has them: one file of weights for each layer, and the configuration."""
    generator = np.random.default_rng(0)
    block = (generator.standard_normal(BLOCK).astype(np.float32) * 0.02).astype(ml_dtypes.bfloat16)

    def weight(*shape: int) -> Array:
        size, first = int(np.prod(shape)), int(generator.integers(0, BLOCK))
        return np.resize(np.roll(block, -first), size).reshape(shape)

    def gain(size: int) -> Array:
        return (1 + 0.1 * generator.standard_normal(size)).astype(ml_dtypes.bfloat16)

    def network() -> dict[str, Array]:
        return {
            "mlp.gate_proj.weight": weight(inner, hidden),
            "mlp.up_proj.weight": weight(inner, hidden),
            "mlp.down_proj.weight": weight(hidden, inner),
        }

    def experts() -> dict[str, Array]:
        """A router that prefers some experts, and their stacked weights."""
        count, width = config["num_experts"], config["moe_intermediate_size"]
        preference = np.exp(0.7 * generator.standard_normal((count, 1))).astype(ml_dtypes.bfloat16)
        return {
            "mlp.gate.weight": weight(count, hidden) * preference,
            "mlp.experts.gate_up_proj": weight(count, 2 * width, hidden),
            "mlp.experts.down_proj": weight(count, hidden, width),
        }

    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shards: dict[str, dict[str, Array]] = {"model-ends": {"model.norm.weight": gain(hidden)}}
    shards["model-ends"]["model.embed_tokens.weight"] = weight(config["vocab_size"], hidden)
    if not config["tie_word_embeddings"]:
        shards["model-ends"]["lm_head.weight"] = weight(config["vocab_size"], hidden)
    index: dict[str, str] = {}
    for layer in range(-1, config["num_hidden_layers"]):
        name = f"model-{layer:03}" if layer >= 0 else "model-ends"
        tensors = shards.get(name) or {
            f"model.layers.{layer}.{key}": value
            for key, value in {
                "input_layernorm.weight": gain(hidden),
                "post_attention_layernorm.weight": gain(hidden),
                "self_attn.q_proj.weight": weight(queries, hidden),
                "self_attn.k_proj.weight": weight(keys, hidden),
                "self_attn.v_proj.weight": weight(keys, hidden),
                "self_attn.o_proj.weight": weight(hidden, queries),
                "self_attn.q_norm.weight": gain(head_dim),
                "self_attn.k_norm.weight": gain(head_dim),
                **(experts() if "num_experts" in config else network()),
            }.items()
        }
        save_file(tensors, folder / f"{name}.safetensors", {"format": "pt"})
        index.update(dict.fromkeys(tensors, f"{name}.safetensors"))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    name = "Qwen3MoeForCausalLM" if "num_experts" in config else "Qwen3ForCausalLM"
    settings = {**config, "architectures": [name], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(settings))
